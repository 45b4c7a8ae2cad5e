"""`quorate support-bundle`: what is in it, that no secret is, and that trouble stops it not."""

import hashlib
import io
import json
import logging
import os
import stat
import sys
import tarfile
from pathlib import Path

import pytest
import trio
import zstandard

import quorate
from quorate.cli.app import EX_OSERR, EX_USAGE, run
from quorate.cli.trouble import support_bundle
from quorate.client.resp import open_resp
from quorate.errors import StorageError
from quorate.local.survey import at
from quorate.log_events import HumanLines, JsonLines
from quorate.node.requests.status import MemberAddress
from quorate.storage.lmdb.file_check import DATA_FILE
from quorate.support import collecting
from quorate.support.collecting import collect
from quorate.support.settings import REMOVED, settings_of, without_texts
from quorate.support.tracebacks import without_quotes
from tests.doctor.test_examination import own_file
from tests.security.test_secrets import forms
from tests.support.certificates import authority, uri

KEY, VALUE = b"a-key-of-a-customer", b"a-value-of-a-customer"
PASSWORD = b"a-password-of-alice"
TOKEN = b"a-token-of-the-web-port-that-is-long-enough"
TYPED = "typed-into-the-file-by-mistake"


def files_of(archive: Path) -> dict[str, bytes]:
    """All files of an archive, without the folder that they are in."""
    data = archive.read_bytes()
    if archive.suffix == ".zst":
        data = zstandard.ZstdDecompressor().stream_reader(data).read()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        found = {each.name.partition("/")[2]: tar.extractfile(each) for each in tar}
        return {name: file.read() for name, file in found.items() if file}


def bundle(*words: object) -> int:
    return run(["support-bundle", *map(str, words)])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no child processes; each would import all of quorate."""

    def child(*words: str) -> bytes:
        return json.dumps({"findings": [], "words": words}).encode()

    monkeypatch.setattr(collecting, "_child", child)


async def test_no_key_value_password_hash_or_private_key_is_in_it(tmp_path: Path) -> None:
    """Of a member that runs, has users and data, and whose file has a mistake."""
    config = own_file(tmp_path)
    named = uri(0, cluster=config.cluster)
    files, token = authority().write(tmp_path, named), tmp_path / "token"
    async with quorate.open_node(config) as node:
        await node.wait_for_leader()
        async with open_resp(config.own.host, config.own.client_port) as client:
            await client.call("SET", KEY, VALUE)
            await client.call("ACL", "SETUSER", "alice", "on", b">" + PASSWORD, "~*", "+@all")
        await node.snapshot()
        with (tmp_path / "node.toml").open("a") as file:
            token.write_bytes(TOKEN)
            token.chmod(0o600)
            web = f'[web]\nport = 18001\ntoken_file = "{token}"\n'
            lines = (
                web,
                "[security]",
                f'certificate = "{files.certificate}"',
                f'key = "{files.key}"',
            )
            file.write("\n".join((*lines, f'password = "{TYPED}"', f'ca = "{TYPED}-----"')))
        address = MemberAddress(0, config.own.host, config.own.client_port)
        parts = await collect(tmp_path / "node.toml", [address])
    found = {part.name: part.data for part in parts}
    assert found.keys() >= {"settings.txt", "doctor.json", "status.json", "info-0.txt"}
    assert str(files.key).encode() in found["settings.txt"]
    assert f"security.password = {REMOVED}".encode() in found["settings.txt"]
    secrets = [
        KEY,
        VALUE,
        TOKEN,
        PASSWORD,
        hashlib.sha256(PASSWORD).hexdigest().encode(),
        TYPED.encode(),
    ]
    secrets += [line for line in files.key.read_bytes().splitlines() if b"-----" not in line]
    for secret in secrets:
        for name, data in found.items():
            assert not any(form in data for form in forms(secret)), (name, secret)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("ending", [".tar.zst", ".tar.gz"])
def test_the_list_has_every_file_and_the_archive_is_private(
    tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = own_file(tmp_path)
    config.directory.mkdir(exist_ok=True)
    (config.directory / "member.log").write_text("a line of a log\n")
    (config.directory / "audit.jsonl").write_text('{"event": "login"}\n')
    (config.directory / "flight").mkdir()
    (config.directory / "flight/0.qtrace").write_text("{}\n")
    to = tmp_path / f"sent{ending}"
    assert bundle(tmp_path / "node.toml", "--to", to) == 0
    shown = capsys.readouterr().out
    assert stat.S_IMODE(to.stat().st_mode) == 0o600
    found = files_of(to)
    rows = json.loads(found.pop("manifest.json"))["files"]
    assert [row["name"] for row in rows] == [*found]
    assert all(row["sha256"] == hashlib.sha256(found[row["name"]]).hexdigest() for row in rows)
    assert all(name in shown for name in found)
    assert found["member.log"] == b"a line of a log\n"
    assert found["flight/0.qtrace"] == b"{}\n"
    assert found.keys() >= {"audit.jsonl", "proc/meminfo", "versions.json", "log.json"}
    assert bundle(tmp_path / "node.toml", "--to", to) == EX_OSERR  # it is there


@pytest.mark.usefixtures("quick")
def test_a_recording_that_goes_away_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = own_file(tmp_path)
    flight = config.directory / "flight"
    flight.mkdir(parents=True)
    for name in ("flight.qtrace", "flight.qtrace.1"):
        (flight / name).write_text("{}\n")
    as_it_was = Path.stat

    def turns(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        seen = as_it_was(self, follow_symlinks=follow_symlinks)
        if self.name == "flight.qtrace.1":
            self.unlink()
        return seen

    def no_files(directory: Path) -> bytes:
        return b""

    monkeypatch.setattr(collecting, "_files", no_files)
    monkeypatch.setattr(Path, "stat", turns)
    to = tmp_path / "sent.tar.gz"
    assert bundle(tmp_path / "node.toml", "--to", to) == 0
    found = files_of(to)
    assert found["flight/flight.qtrace"] == b"{}\n"
    assert "flight/flight.qtrace.1" in json.loads(found["missing.json"])


def test_a_name_that_can_not_be_right_is_refused_before_anything_is_gathered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gathered(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(support_bundle, "collect", gathered)
    to = tmp_path / "sent.tar.gz"
    assert bundle(tmp_path / "absent.toml", "--to", to) == EX_USAGE
    assert "absent.toml: there is no such file: expected" in capsys.readouterr().err
    assert not to.exists()
    to.touch()
    assert bundle("--to", to) == EX_OSERR
    assert "sent.tar.gz: there is a file already" in capsys.readouterr().err
    assert bundle("--to", tmp_path / "no" / "sent.tar.gz") == EX_OSERR
    assert "there is no directory" in capsys.readouterr().err


def test_a_damaged_store_stops_nothing(tmp_path: Path) -> None:
    config = own_file(tmp_path)
    (config.directory / "log").mkdir(parents=True)
    (config.directory / "log" / DATA_FILE).write_bytes(b"no store" * 4096)
    to = tmp_path / "sent.tar.gz"
    assert bundle(tmp_path / "node.toml", "--to", to) == 0
    found = files_of(to)
    assert "log.json" not in found
    assert "expected a store" in json.loads(found["missing.json"])["log.json"]
    assert json.loads(found["doctor.json"])["verdict"] == "problems"


@pytest.mark.usefixtures("quick")
def test_without_to_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_file(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert bundle(tmp_path / "node.toml") == 0
    assert "Nothing was written" in capsys.readouterr().out
    assert sorted(tmp_path.rglob("*")) == before
    assert bundle("--to", tmp_path / "sent.zip") == EX_USAGE


def test_settings_keep_what_is_known_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        f'cluster = "orders"\npassphrase = "{TYPED}"\n"{TYPED}" = 5\ntags = ["{TYPED}"]\n'
        f'[[members]]\nhost = "db1"\nmember_port = 7100\n[limits]\nname = "{TYPED}"\n'
    )
    text = settings_of(file)
    assert TYPED not in text
    assert 'cluster = "orders"' in text
    assert 'members[0].host = "db1"\nmembers[0].member_port = 7100\n' in text
    assert f"passphrase = {REMOVED}" in text
    file.write_text(f"a = {TYPED}")
    with pytest.raises(ValueError, match="not a TOML file") as raised:
        settings_of(file)
    assert TYPED not in str(raised.value)
    assert without_texts(f'a = "{TYPED}": expected b') == f'a = "{REMOVED}": expected b'


@pytest.mark.parametrize("lines", [HumanLines, JsonLines])
@pytest.mark.parametrize("journal", ["", "Nov 27 13:40:01 db1 quorate[4711]: "])
def test_a_traceback_keeps_places_and_types_but_no_quotes(
    lines: type[logging.Formatter], journal: str
) -> None:
    def note(words: str, *, trace: bool = False) -> str:
        found = sys.exc_info() if trace else None
        record = logging.LogRecord("quorate", logging.ERROR, "x", 1, words, (), found)
        record.event = "note"
        return lines().format(record)

    def fail() -> None:
        group = [KeyError("alice@a"), ValueError("alice@b\n  alice@c\nalice@d: x")]
        raise ExceptionGroup("alice@e", group) from StorageError("the disk is odd")

    text = ""
    try:
        fail()
    except ExceptionGroup:
        text = "\n".join([note("before"), note("bug", trace=True), note("after: KeyError: 'x'")])
    text = "".join(f"{journal}{line}\n" for line in text.splitlines())
    found = without_quotes(text.encode()).decode()
    assert "alice" in text
    assert "alice" not in found
    for kept in ("before", "bug", "after: KeyError: 'x'", "StorageError: the disk is odd"):
        assert kept in found
    for kept in ("KeyError: (removed)", "ValueError: (removed)", "test_support_bundle.py"):
        assert kept in found


@pytest.mark.usefixtures("quick")
def test_the_end_of_a_log_begins_with_a_whole_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "MAX_TAIL_BYTES", 10)
    log = tmp_path / "lines"
    log.write_text("first\nsecond\nthird\n")
    parts = trio.run(lambda: collect(None, [], log_file=log))
    assert {part.name: part.data for part in parts}["member.log"] == b"third\n"
    assert at(MemberAddress(0, "::1", 7000)) == "[::1]:7000"

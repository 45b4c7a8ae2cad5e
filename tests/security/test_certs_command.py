"""`quorate certs`: what it makes is what members accept, and what is wrong is found and said."""

import json
import ssl
import stat
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import dsa
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate.cli.app import EX_CONFIG, EX_USAGE, run
from quorate.errors import ConfigurationError
from quorate.local.certificates import (
    Authority,
    begin_rotation,
    found_authority,
    identity_of,
)
from quorate.local.cluster import lay_out
from quorate.local.pem import (
    MAX_BYTES,
    certificates_untrusted,
    key_untrusted,
    read_certificates,
)
from quorate.node.config.config import Security
from quorate.transport import Purpose
from quorate.transport.tls import TlsFiles, load_material
from tests.support.certificates import DAY, NOW, authority, pem_of, uri, write

CLUSTER = "orders"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found_authority(tmp_path / "certs", CLUSTER)
    return tmp_path / "certs"


def certs(*words: object) -> int:
    return run(["certs", *map(str, words)])


def files(folder: Path, name: str) -> TlsFiles:
    return TlsFiles(folder / f"{name}.crt", folder / f"{name}.key", folder / "ca.crt")


def issue(folder: Path, purpose: Purpose, name: str, days: int = 365) -> TlsFiles:
    identity = identity_of(CLUSTER, purpose.value, name)
    made = Authority.load(folder).issue(identity, days=days)
    return TlsFiles(made.certificate, made.key, folder / "ca.crt")


def problems(capsys: pytest.CaptureFixture[str], *words: object) -> list[str]:
    """The problems that a check finds; its exit status says whether there are any."""
    capsys.readouterr()
    status = certs("check", *words, "--json")
    found = [line for one in json.loads(capsys.readouterr().out) for line in one["problems"]]
    assert status == bool(found)
    return found


# What is made -----------------------------------------------------------------------------------


@pytest.mark.parametrize("purpose", [Purpose.MEMBER, Purpose.READER, Purpose.BACKUP])
def test_members_accept_what_is_issued(folder: Path, purpose: Purpose) -> None:
    assert certs("issue", purpose.value, "7", "--dir", folder) == 0
    found = load_material(
        files(folder, f"{purpose.value}-7"), cluster=CLUSTER, purposes=(purpose,), name="7"
    )
    assert found.identity == identity_of(CLUSTER, purpose.value, "7")


def test_keys_are_private_and_the_names_of_hosts_are_in_the_certificate(folder: Path) -> None:
    words = ["--host", "10.0.0.1", "--host", "db0.example.org"]
    assert certs("issue", "member", 0, "--dir", folder, *words) == 0
    (own,) = read_certificates(folder / "member-0.crt")
    assert own.hosts == ("db0.example.org", "10.0.0.1")
    for name in ("ca.key", "member-0.key"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def shakes_hands(server: TlsFiles, client: TlsFiles, host: str) -> None:
    """Connect as strict programs do that are not ours; raises ssl.SSLError."""
    ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(client.ca))
    ours.verify_mode = ssl.CERT_REQUIRED
    ours.load_cert_chain(server.certificate, server.key)
    theirs = ssl.create_default_context(cafile=str(client.ca))
    theirs.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    theirs.load_cert_chain(client.certificate, client.key)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        theirs.wrap_bio(to_client, to_server, server_hostname=host),
        ours.wrap_bio(to_server, to_client, server_side=True),
    )
    for end in ends * 4:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue


def test_strict_clients_accept_a_member_by_its_host(folder: Path) -> None:
    assert certs("issue", "member", 0, "--dir", folder, "--host", "127.0.0.1") == 0
    client = issue(folder, Purpose.CLIENT, "alice")
    shakes_hands(files(folder, "member-0"), client, "127.0.0.1")
    with pytest.raises(ssl.SSLError, match="IP address mismatch"):
        shakes_hands(files(folder, "member-0"), client, "127.0.0.2")


def test_the_certificate_of_a_client_cannot_serve(folder: Path) -> None:
    client = issue(folder, Purpose.CLIENT, "alice")
    with pytest.raises(ssl.SSLError, match="purpose"):
        shakes_hands(client, client, "127.0.0.1")


def test_nothing_outlives_the_ca(tmp_path: Path) -> None:
    made = found_authority(tmp_path, CLUSTER, days=10)
    issued = made.issue(identity_of(CLUSTER, "member", "0"))
    assert issued.ends == made.own.ends


# What is refused --------------------------------------------------------------------------------


def test_nothing_is_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    issue(folder, Purpose.MEMBER, "0")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert certs("init", CLUSTER, "--dir", folder) == EX_CONFIG
    assert "quorate certs rotate" in capsys.readouterr().err
    assert certs("issue", "member", 0, "--dir", folder) == EX_CONFIG
    assert "add --renew" in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert certs("issue", "member", 1, "--dir", folder, "--renew") == EX_CONFIG
    assert certs("rotate", "--finish", "--dir", folder) == EX_CONFIG


def test_a_renewed_certificate_has_another_key_and_the_same_hosts(folder: Path) -> None:
    certs("issue", "member", 0, "--dir", folder, "--host", "db0", "--days", 1)
    (before,) = read_certificates(folder / "member-0.crt")
    assert certs("issue", "member", 0, "--dir", folder, "--renew") == 0
    (after,) = read_certificates(folder / "member-0.crt")
    assert after.hosts == before.hosts == ("db0",)
    assert after.public_key != before.public_key
    assert after.ends > before.ends + timedelta(days=300)
    assert not [*folder.glob("*.new")]


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["member", "x"], EX_USAGE),
        (["member", "01"], EX_USAGE),
        (["member", "2147483648"], EX_USAGE),
        (["client", "a/b"], EX_USAGE),
        (["client", "é"], EX_USAGE),
        (["client", "a" * 65], EX_USAGE),
        (["king", "a"], EX_USAGE),
        (["member", "0", "--host", "dömäne"], EX_USAGE),
        (["member", "0", "--days", "0"], EX_USAGE),
        (["member", "0", "--days", "1000000"], EX_USAGE),
    ],
)
def test_a_wrong_word_makes_nothing(folder: Path, words: list[str], status: int) -> None:
    assert certs("issue", *words, "--dir", folder) == status
    assert {file.name for file in folder.iterdir()} == {"ca.crt", "ca.key"}


def test_a_cluster_needs_a_name_that_fits_into_a_certificate(tmp_path: Path) -> None:
    assert certs("init", "or ders", "--dir", tmp_path / "c") == EX_USAGE
    assert not (tmp_path / "c").exists()


def test_a_key_that_others_can_read_is_not_used(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "ca.key").chmod(0o640)
    assert certs("issue", "member", 0, "--dir", folder) == EX_CONFIG
    assert "chmod 600" in capsys.readouterr().err


def test_a_folder_without_a_ca_says_how_to_make_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certs("issue", "member", 0, "--dir", tmp_path) == EX_CONFIG
    assert f"quorate certs init CLUSTER --dir {tmp_path}" in capsys.readouterr().err


def test_without_the_library_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import builtins  # noqa: PLC0415
    import sys  # noqa: PLC0415

    for name in ("certificates", "pem", "certificate_check", "secured"):
        monkeypatch.delitem(sys.modules, f"quorate.local.{name}", raising=False)
    real = builtins.__import__

    def without(name: str, *args: object) -> object:
        if name.startswith("cryptography"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *args)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(builtins, "__import__", without)
    assert certs("init", CLUSTER, "--dir", tmp_path) == EX_CONFIG
    assert run(["cluster", "--dir", str(tmp_path / "x"), "--tls"]) == EX_CONFIG
    assert capsys.readouterr().err.count('pip install ".[certs]"') == 2


# A rotation -------------------------------------------------------------------------------------


def test_each_step_of_a_rotation_trusts_the_certificates_of_the_one_before(folder: Path) -> None:
    names = "member-0", "member-1"
    for number in (0, 1):
        issue(folder, Purpose.MEMBER, str(number))
    first_ca = (folder / "ca.crt").read_bytes()

    def loads(name: str) -> bool:
        try:
            load_material(files(folder, name), cluster=CLUSTER, purposes=(Purpose.MEMBER,))
        except ConfigurationError:
            return False
        return True

    assert certs("rotate", "--dir", folder) == 0
    assert all(map(loads, names))
    assert certs("rotate", "--dir", folder) == EX_CONFIG  # it has begun
    assert certs("issue", "member", 0, "--dir", folder, "--renew") == 0
    assert all(map(loads, names))
    assert certs("rotate", "--finish", "--dir", folder) == 1  # one is left
    assert all(map(loads, names))
    assert certs("issue", "member", 1, "--dir", folder, "--renew") == 0
    assert certs("rotate", "--finish", "--dir", folder) == 0
    assert all(map(loads, names))
    assert {file.name for file in folder.glob("*ca*")} == {"ca.crt", "ca.key"}
    (folder / "ca.crt").write_bytes(first_ca)
    assert not any(map(loads, names))


def test_a_crash_within_a_rotation_is_mended_by_the_next_call(folder: Path) -> None:
    old = (folder / "ca.crt").read_bytes()
    begin_rotation(folder)
    (folder / "ca.crt").write_bytes(old)  # the key was written, the certificate was not
    assert certs("issue", "member", 0, "--dir", folder) == EX_CONFIG
    assert certs("rotate", "--dir", folder) == 0
    assert len(read_certificates(folder / "ca.crt")) == 2
    key = (folder / "next-ca.key").read_bytes()
    assert certs("rotate", "--finish", "--dir", folder) == 0
    (folder / "next-ca.key").touch(0o600)
    (folder / "next-ca.key").write_bytes(key)  # the certificate was written, the key not renamed
    assert certs("rotate", "--finish", "--dir", folder) == 0
    issue(folder, Purpose.MEMBER, "0")


# Checks -----------------------------------------------------------------------------------------


def test_a_check_of_what_was_issued_finds_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for purpose in Purpose:
        issue(folder, purpose, "0")
    assert problems(capsys, folder) == []
    assert problems(capsys, folder / "reader-0.crt") == []
    begin_rotation(folder)
    assert problems(capsys, folder) == []


def laid_out(tmp_path: Path, name: str = "member-0") -> Path:
    at = f"{tmp_path}/certs/{name}"
    security = Security(f"{at}.crt", f"{at}.key", f"{tmp_path}/certs/ca.crt")
    (config,) = lay_out(
        tmp_path, members=1, client_port=7000, cluster=CLUSTER, security=lambda _: security
    )
    return config.directory / "node.toml"


def test_a_members_file_is_checked_with_its_id_and_cluster(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    issue(folder, Purpose.MEMBER, "0")
    file = laid_out(tmp_path)
    assert problems(capsys, file) == []
    for purpose, name in ((Purpose.MEMBER, "1"), (Purpose.READER, "0")):
        made = issue(folder, purpose, name)
        made.certificate.replace(folder / "member-0.crt")
        made.key.replace(folder / "member-0.key")
        (found,) = problems(capsys, file)
        assert "expected" in found


def test_each_problem_has_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test, other = authority(), authority("another CA")
    own, key = test.issue(uri(0, Purpose.CLIENT), ends=NOW - DAY / 2)
    made = write(tmp_path, own, pem_of(other.key), other.pem)
    made.key.chmod(0o600)
    (tmp_path / "reader.toml").write_text(
        '[security]\ncertificate = "own.crt"\nkey = "own.key"\nca = "ca.crt"\n'
    )
    found = problems(capsys, tmp_path / "reader.toml")
    parts = ("not the key of", "it is for a client", "ended at", "has signed it")
    assert len(found) == len(parts)
    for part, line in zip(parts, found, strict=True):
        assert part in line
    made.key.write_bytes(key)
    assert len(problems(capsys, tmp_path / "reader.toml")) == 3


def test_a_certificate_that_ends_soon_is_a_problem(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    issue(folder, Purpose.MEMBER, "0", days=10)
    (found,) = problems(capsys, folder)
    assert "ends in less than 14 days" in found
    assert problems(capsys, folder, "--days", 9) == []


def test_what_only_a_member_would_notice_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here: a certificate signed by one that is no CA by its name, and a table without security."""
    (tmp_path / "reader.toml").write_text("[security]\ninsecure_network = true\n")
    (found,) = problems(capsys, tmp_path / "reader.toml")
    assert "everybody is believed" in found
    (tmp_path / "reader.toml").write_text('[security]\ncluster_key_file = "k"\n')
    (found,) = problems(capsys, tmp_path / "reader.toml")
    assert "cannot be read" in found
    (tmp_path / "k").touch(0o600)
    (tmp_path / "k").write_bytes(bytes(32))
    assert problems(capsys, tmp_path / "reader.toml") == []


@pytest.mark.parametrize("data", [b"", b"nonsense", bytes(MAX_BYTES + 1), b"-----BEGIN"])
def test_a_file_of_something_else_is_named(
    folder: Path, data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    made = issue(folder, Purpose.MEMBER, "0")
    for path in (made.certificate, made.key, made.ca):
        before = path.read_bytes()
        path.write_bytes(data)
        (found,) = problems(capsys, made.certificate)
        assert str(path) in found
        assert "PEM" in found
        path.write_bytes(before)
    made.key.unlink()
    (found,) = problems(capsys, made.certificate)
    assert "cannot be read" in found


def test_keys_of_other_kinds_and_with_a_password_are_refused() -> None:
    with pytest.raises(ValueError, match="password"):
        key_untrusted(pem_of(authority().key, "secret"))
    strange = dsa.generate_private_key(1024)
    with pytest.raises(ValueError, match="expected a key of"):
        key_untrusted(pem_of(strange))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# Fuzzing ----------------------------------------------------------------------------------------

PEM, KEY = authority().issue(uri(0))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_malformed_files_raise_the_one_error(data: st.DataObject) -> None:
    import base64  # noqa: PLC0415

    for whole, parse in ((PEM, certificates_untrusted), (KEY, key_untrusted)):
        lines = whole.decode().splitlines()
        raw = bytearray(base64.b64decode("".join(lines[1:-1])))
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(raw) - 1))
            raw[at] = data.draw(st.integers(0, 255))
        cut = data.draw(st.sampled_from([len(raw), data.draw(st.integers(0, len(raw)))]))
        text = base64.encodebytes(bytes(raw[:cut]))
        mutated = b"\n".join((lines[0].encode(), text.strip(), lines[-1].encode()))
        raised = ""
        try:
            parse(mutated)
        except ValueError as error:
            raised = str(error)
        assert not raised or "expected" in raised


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_raise_the_one_error(data: bytes) -> None:
    for parse in (certificates_untrusted, key_untrusted):
        with pytest.raises(ValueError, match="expected"):
            parse(data)

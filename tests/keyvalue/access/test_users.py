"""The replicated users: commands of the log, what reads them, notes, and snapshots."""

from collections.abc import Generator
from pathlib import Path

import pytest

from quorate.errors import StorageError
from quorate.keyvalue.access.directory import Directory
from quorate.keyvalue.access.rules import DEFAULT, NOBODY
from quorate.keyvalue.access.users import MAX_USERS, Users, is_user_note
from quorate.keyvalue.access.users_in_log import UsersInLog
from quorate.keyvalue.protocol import resp
from quorate.keyvalue.protocol.resp import CommandError
from quorate.keyvalue.state.ownership_note import SLOTS_NOTE, OwnershipNote, encode_note
from quorate.keyvalue.state.sessions import Sessions
from tests.support.service_world import Fed, open_service, running

SHA = "#" + "a" * 64


@pytest.fixture
def kv(tmp_path: Path) -> Generator[Fed]:
    service = open_service(tmp_path / "tables")
    yield Fed(service)
    service.close()


class Memory:
    """Notes in memory, as far as users need them."""

    def __init__(self, rows: dict[bytes, bytes] | None = None) -> None:
        self.rows = {} if rows is None else rows

    @property
    def notes(self) -> "Memory":
        return self

    def put_note(self, key: bytes, row: bytes) -> None:
        self.rows[key] = row

    def delete_note(self, key: bytes) -> None:
        del self.rows[key]


def test_at_first_there_is_the_default_user_alone() -> None:
    for users in (Users(), Users(Memory())):
        assert [*users] == [b"default"]
        assert users.version == 0
        directory = Directory(users)
        access = directory.access(b"default")
        assert access is not None
        assert access.open
        assert not directory.restricted
        assert directory.access(b"bob") is None


def test_users_are_kept_in_notes_and_read_from_them() -> None:
    memory = Memory()
    users = Users(memory)
    users.set(b"bob", [b"on", b"nopass", b"~a*", b"+get"], 7)
    users.set(b"bob", [b"+set"], 9)
    users.set(b"\x81session?", [], 12)
    again = Users(memory)
    assert [*again] == [b"bob", b"default", b"\x81session?"]
    assert again.get(b"bob") == users.get(b"bob")
    assert again.version == users.version == 12
    assert all(is_user_note(key) for key in memory.rows)
    assert users.delete([b"bob", b"nobody", b"bob"], 20) == 1
    assert Users(memory).get(b"bob") is None
    assert users.delete([b"nobody"], 30) == 0
    assert Users(memory).version == users.version == 20


def test_a_failed_change_changes_nothing() -> None:
    users = Users(Memory())
    users.set(b"bob", [b"on"], 7)
    before = users.get(b"bob"), users.version
    for name, given in ((b"bob", [b"~a", b"+nosuch"]), (b"a b", []), (b"", []), (b"x" * 61, [])):
        with pytest.raises(CommandError, match="ERR"):
            users.set(name, given, 9)
    with pytest.raises(CommandError, match="default"):
        users.delete([b"bob", b"default"], 9)
    assert (users.get(b"bob"), users.version) == before


def test_listeners_hear_of_every_change() -> None:
    users, heard = Users(Memory()), list[int]()
    users.listen(lambda: heard.append(users.version))
    users.set(b"bob", [], 7)
    users.delete([b"bob"], 8)
    users.delete([b"bob"], 9)
    users.reload()
    assert heard == [7, 8, 8]


def test_who_may_log_in() -> None:
    users = Users(Memory())
    directory = Directory(users)
    users.set(b"bob", [b"+get", b"~*"], 1)
    assert directory.access(b"bob") is None
    users.set(b"bob", [b"on"], 2)
    access = directory.access(b"bob")
    assert access is not None
    assert access is directory.access(b"bob")
    users.set(b"bob", [b"off"], 3)
    assert directory.access(b"bob") is None
    assert not directory.restricted
    users.set(b"default", [SHA.encode()], 4)
    assert directory.restricted
    users.set(b"default", [b"nopass", b"-flushall"], 4)
    assert directory.restricted


def test_borrowed_users_hide_those_of_the_state_and_never_change_them() -> None:
    users = Users(Memory())
    users.set(b"old", [b"on"], 1)
    directory = Directory(users, settled=False)
    assert not directory.known
    assert [*directory] == []
    assert directory.get(b"default") is None
    directory.borrow({b"default": DEFAULT, b"new": NOBODY}, 9)
    assert (directory.known, directory.version) == (True, 9)
    assert [*directory] == [b"default", b"new"]
    users.set(b"bob", [], 2)
    assert [*directory] == [b"default", b"new"]
    assert [*users] == [b"bob", b"default", b"old"]
    directory.forget()
    assert (directory.known, directory.version) == (False, 0)
    directory.settle()
    assert (directory.settled, directory.own_version) == (True, 2)
    assert [*directory] == [b"bob", b"default", b"old"]


def test_users_are_bounded() -> None:
    users = Users(Memory())
    for number in range(MAX_USERS - 1):
        users.set(b"user%d" % number, [], 1)
    with pytest.raises(CommandError, match="already"):
        users.set(b"more", [], 1)
    users.set(b"user0", [b"on"], 1)


@pytest.mark.parametrize("row", [b"", b"on +nosuch", b"on >secret"])
def test_a_malformed_note_is_refused(row: bytes) -> None:
    with pytest.raises(StorageError, match="bob"):
        Users(Memory({b"\xffubob": row}))


def test_sessions_and_users_do_not_meet() -> None:
    memory = Memory()
    users = Users(memory)
    for length in range(1, 20):  # of which keys of notes have 8 and 16 bytes, as sessions' do
        users.set(b"x" * length, [], length)
    assert len(Sessions(memory)) == 0  # type: ignore[arg-type]


def test_commands_of_the_log(kv: Fed) -> None:
    send = kv.apply
    assert send(f"ACL SETUSER bob on {SHA} ~a* %R~b &ch +get -set") == resp.OK
    assert send("acl list") == resp.bulk_array(
        [
            f"user bob on {SHA} ~a* %R~b resetchannels &ch -@all +get -set".encode(),
            b"user default on nopass ~* &* +@all",
        ]
    )
    assert kv.query("ACL USERS") == resp.bulk_array([b"bob", b"default"])
    assert kv.query("ACL GETUSER nobody") == resp.NULL[0]
    assert b"$17\r\n" not in kv.query("ACL GETUSER bob")
    (described,) = resp.parse_replies_untrusted(kv.query("ACL GETUSER bob"))
    assert described == [
        *(b"flags", [b"on"], b"passwords", [SHA[1:].encode()], b"commands", b"-@all +get -set"),
        *(b"keys", b"~a* %R~b", b"channels", b"&ch", b"selectors", []),
    ]
    assert send("ACL DELUSER bob nobody") == resp.ONE
    assert kv.query("ACL USERS") == resp.bulk_array([b"default"])


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("ACL SETUSER bob >hunter2", b"-ERR Error in ACL SETUSER modifier '>...': A secret"),
        ("ACL SETUSER bob +nosuch", b"-ERR Error in ACL SETUSER modifier '+nosuch': Unknown comm"),
        ("ACL SETUSER", b"-ERR wrong number of arguments for 'acl|setuser' command"),
        ("ACL NOSUCH", b"-ERR unknown subcommand 'NOSUCH'. Try ACL HELP."),
        ("ACL WHOAMI", b"-ERR 'acl|whoami' can't be used here"),
        ("ACL DELUSER default", b"-ERR The 'default' user cannot be removed"),
    ],
)
def test_errors_of_the_log(kv: Fed, line: str, error: bytes) -> None:
    assert kv.apply(line).startswith(error)
    assert kv.apply("ACL USERS") == resp.bulk_array([b"default"])


def test_a_query_changes_no_user(kv: Fed) -> None:
    assert kv.query("ACL SETUSER bob on").startswith(b"-ERR 'acl|setuser' can't be used here")
    assert kv.query("ACL DELUSER bob").startswith(b"-ERR 'acl|deluser' can't be used here")
    assert kv.query("ACL USERS") == resp.bulk_array([b"default"])


def test_the_version_is_the_revision_of_the_last_change(kv: Fed) -> None:
    kv.apply("ACL SETUSER bob on")
    version = kv.service.users.version
    assert version > 0
    kv.apply("SET a 1")
    assert kv.service.users.version == version
    kv.apply("ACL SETUSER bob off")
    assert kv.service.users.version > version


def test_keys_and_users_are_apart(kv: Fed) -> None:
    kv.apply("ACL SETUSER bob on")
    kv.apply("FLUSHALL")
    assert kv.query("ACL USERS") == resp.bulk_array([b"bob", b"default"])
    assert kv.query("DBSIZE") == resp.ZERO


@pytest.mark.parametrize("way", ["restart", "snapshot"])
async def test_a_restart_and_a_snapshot_have_the_users(tmp_path: Path, way: str) -> None:
    async with running(open_service(tmp_path / "one")) as kv:
        kv.apply(f"ACL SETUSER bob on {SHA} ~a +get")
        kv.apply("SET a 1")
        lines, version = kv.query("ACL LIST"), kv.service.users.version
        pieces = [*await kv.service.save()]
    if way == "restart":
        again = open_service(tmp_path / "one")
        assert again.users.version == version
        async with running(again) as kv:
            assert kv.query("ACL LIST") == lines
        return
    async with running(open_service(tmp_path / "two")) as other:
        heard: list[bytes] = []
        other.service.users.listen(lambda: heard.append(other.query("ACL USERS")))
        other.apply("ACL SETUSER somebody on")
        await other.service.load(iter(pieces), 10_000, 1)
        assert other.query("ACL LIST") == lines
        assert other.service.users.version == version
        assert heard[-1] == resp.bulk_array([b"bob", b"default"])


def test_a_reader_of_the_log_takes_users_with_the_first_slots_and_only_then() -> None:
    line = b"user default on nopass ~* &* +@all"
    found = (b"QUORATE.SLOTS", b"FOUND", b"0-99", line)
    memory = Memory()
    reader = UsersInLog.of(memory)
    reader.apply((b"ACL", b"SETUSER", b"guest", b"on"), 1)
    with pytest.raises(CommandError):
        reader.apply((*found, b"user app on +nothing"), 2)
    assert [*reader.users] == [b"default", b"guest"]
    reader.apply((*found, b"user app on"), 3)
    assert [*reader.users] == [b"app", b"default"]
    assert dict(reader.users.names) == {1: b"guest", 2: b"app"}
    reader.apply((*found, b"user late on"), 4)
    reader.apply((b"acl", b"deluser", b"app"), 5)
    assert [*reader.users] == [b"default"]
    memory.put_note(SLOTS_NOTE, encode_note(OwnershipNote(founded=True)))
    after = UsersInLog.of(memory)
    after.apply((*found, b"user late on"), 6)
    assert [*after.users] == [b"default"]

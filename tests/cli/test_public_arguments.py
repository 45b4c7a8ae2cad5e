"""Public functions accept what is plainly meant, or raise the documented error."""

from pathlib import Path
from typing import Any, cast

import pytest

import quorate
from quorate.errors import ConfigurationError
from quorate.local.cluster import free_client_port
from quorate.node import Limits, SnapshotPolicy, Timeouts
from quorate.node.config.partition import PartitionSettings
from quorate.simulation.ledger import Ledger

MEMBER = quorate.MemberConfig(0, "127.0.0.1", 17000, 7000)


def config(**changes: object) -> quorate.NodeConfig:
    settings: dict[str, Any] = {"cluster": "c", "member_id": 0, "directory": "d"}
    settings |= {"members": (MEMBER,)} | changes
    return quorate.NodeConfig(**settings)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("profile", "fast", 'one of "lan", "aeron", "test"'),
        ("profile", ["lan"], 'one of "lan", "aeron", "test"'),
        ("profile", None, 'one of "lan", "aeron", "test"'),
        ("directory", None, "a path"),
        ("directory", 5, "a path"),
        ("members", None, "a MemberConfig for each member"),
        ("members", 5, "a MemberConfig for each member"),
        ("members", "a", "a MemberConfig for each member"),
        ("members", [("127.0.0.1", 7000)], "a MemberConfig for each member"),
        ("timeouts", None, "a Timeouts"),
        ("limits", {"max_clients": 5}, "a Limits"),
        ("snapshot", 5, "a SnapshotPolicy"),
        ("cluster", None, "a name of"),
        ("member_id", "0", "one of members"),
        ("client_listen_host", 5, "a host name"),
        ("join", "yes", "true or false"),
    ],
)
def test_a_setting_of_a_wrong_kind_is_named(field: str, value: object, expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        config(**{field: value})
    assert str(caught.value).startswith(f"{field} = ")
    assert f": expected {expected}" in str(caught.value)


@pytest.mark.parametrize("members", [(), [], iter(())])
def test_no_members_at_all(members: object) -> None:
    with pytest.raises(ConfigurationError, match=r"^members: 0 of them: expected 1 to 9$"):
        config(members=members)


def test_what_is_plainly_meant_is_taken() -> None:
    listed = config(members=[MEMBER], directory=Path("d"), timeouts=Timeouts.of("aeron"))
    assert (listed.members, listed.directory) == ((MEMBER,), Path("d"))
    assert config(limits=Limits(max_clients=5), snapshot=SnapshotPolicy()).limits.max_clients == 5


def test_a_profile_of_no_name() -> None:
    with pytest.raises(ConfigurationError, match=r'^profile = "fast": expected one of "lan"'):
        Timeouts.of(cast("Any", "fast"))


def test_a_configuration_is_read_from_a_path_or_a_text(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(config().to_toml())
    assert quorate.load_config(str(file)) == quorate.load_config(file)
    assert quorate.load_config(str(file)).directory == tmp_path / "d"
    with pytest.raises(ConfigurationError, match=r"nosuch\.toml: cannot be read"):
        quorate.load_config("nosuch.toml")


@pytest.mark.parametrize("path", [None, 5, b"node.toml"])
def test_what_is_no_path(path: object) -> None:
    with pytest.raises(ConfigurationError, match=r"^path = .*: expected a path$"):
        quorate.load_config(cast("Any", path))


class NotAService:
    """Has a part of what a service has."""

    position = 0

    def apply(self, command: quorate.Command) -> bytes:
        return command.payload


@pytest.mark.parametrize(
    ("service", "reason"),
    [
        (NotAService(), "it has no advance, query, next_deadline_ms, run$"),
        (5, "it has no position, apply, "),
        (Ledger, "this is the class$"),
    ],
)
async def test_what_is_no_service(tmp_path: Path, service: object, reason: str) -> None:
    opened = quorate.open_node(config(directory=tmp_path / "a"), cast("Any", service))
    with pytest.raises(ConfigurationError, match=rf"^service = .*: expected a Service, .*{reason}"):
        await opened.__aenter__()
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("wrong", [None, "node.toml", Path("node.toml"), MEMBER])
async def test_what_is_no_configuration(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match=r"^config = .*: expected a NodeConfig"):
        await quorate.open_node(cast("Any", wrong)).__aenter__()


async def test_a_payload_is_bytes_and_flags_are_one_byte(tmp_path: Path) -> None:
    port = free_client_port(2)
    alone = config(
        directory=tmp_path,
        members=(quorate.MemberConfig(0, "127.0.0.1", port, port + 1),),
        profile="test",
    )
    async with quorate.open_node(alone, Ledger()) as node:
        for asked in (node.command, node.query):
            for wrong in ("5", 5, None, [1, 2], True):
                with pytest.raises(TypeError, match=r"^payload = .*: expected bytes, found "):
                    await asked(cast("Any", wrong))
            for flags in (-1, 256, "1", None):
                with pytest.raises(TypeError, match=r"^flags = .*: expected one byte, 0 to 255$"):
                    await asked(b"a", cast("Any", flags))
        assert await node.command(cast("Any", bytearray(b"a"))) == await node.query(b"")
        assert await node.command(b"a", 255)
        with pytest.raises(ConfigurationError, match="runs a service of its own"):
            node.session()


async def test_a_program_gets_no_store_of_a_partition(tmp_path: Path) -> None:
    """Its keys leave while the program runs: only a client of the whole cluster can follow."""
    port = free_client_port(2)
    member = config(
        directory=tmp_path / "partition-0",
        members=(quorate.MemberConfig(0, "127.0.0.1", port, port + 1),),
        profile="test",
        partition=PartitionSettings(0, str(tmp_path)),
    )
    async with quorate.open_node(member) as node:
        with pytest.raises(ConfigurationError, match=r"some of the keys.*use quorate\.connect"):
            _ = node.kv
        with pytest.raises(ConfigurationError, match="member of a partition"):
            node.session()

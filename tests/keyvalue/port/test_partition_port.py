"""The client port of a member of a partition: what it serves, and where it sends clients."""

from __future__ import annotations

import json
import socket
import struct
from typing import TYPE_CHECKING

import attrs
import msgspec
import pytest
import trio

from quorate.errors import OversizedRequestError
from quorate.keyvalue.conversation import parking
from quorate.keyvalue.conversation.parking import PARK_SECONDS, TRY_AGAIN, Parking
from quorate.keyvalue.conversation.shards import node_id
from quorate.keyvalue.protocol import resp
from quorate.keyvalue.slots.cluster_map import META, ClusterMap, Machine, Partition, encode_map
from quorate.keyvalue.slots.folder import MAP_FILE, replace_file
from quorate.keyvalue.slots.hashing import SLOTS, key_slot
from quorate.keyvalue.slots.signposts import FRESH_SECONDS, Signposts
from tests.support.client_port_world import RawClient, World, command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from quorate.node.requests.request import Request

OK, NULL, QUEUED = b"+OK\r\n", b"$-1\r\n", b"+QUEUED\r\n"
HERE, ALSO, ELSEWHERE = "b", "c", "a"
"""Keys of three slots; the first two are of this partition."""

SLOT = key_slot(HERE.encode())
MOVED = b"-MOVED %d 10.1.0.1:7102\r\n" % key_slot(ELSEWHERE.encode())
CROSSED = b"-CROSSSLOT Keys in request don't hash to the same slot\r\n"

MACHINES = tuple(Machine(n, f"10.1.0.{n}", 7100, 8100, tls_port=9100) for n in range(3))
MAP = ClusterMap(
    "orders",
    epoch=3,
    machines=MACHINES,
    partitions=(
        Partition(0, (0, 1, 2), preferred=0, founders=(0, 1, 2), slots="0-8191"),
        Partition(1, (1, 2), preferred=1, founders=(1, 2), slots="8192-16000,16002-16383"),
    ),
    metadata=(0, 1, 2),
)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """The leader of partition 0, which has the first half of the slots."""
    replace_file(tmp_path / MAP_FILE, encode_map(MAP))
    async with World.opened(tmp_path / "t", redirect="always", machine=tmp_path) as opened:
        await slots(opened, "FOUND", "0-8191")
        yield opened


@pytest.fixture
async def client(world: World) -> RawClient:
    """A client of it."""
    return await world.connect()


async def slots(world: World, *words: str) -> resp.Reply:
    """Execute QUORATE.SLOTS through a connection of its own."""
    client = await world.connect()
    await client.send(command("QUORATE.SLOTS", *words) + command("ECHO", "the end"))
    reply = resp.parse_replies_untrusted(await client.receive_until(b"the end\r\n"))[0]
    assert not isinstance(reply, Exception), reply
    return reply


def freeze_behind_its_back(world: World) -> None:
    """Let the port go on with what its member had applied before a slot was frozen."""
    signposts = world.port.state.signposts
    assert signposts is not None
    signposts.ownership = Stale(bytearray(signposts.ownership.states))


@attrs.define
class Stale:
    """An ownership that is not kept up to date."""

    states: bytearray
    version: int = 0
    went: dict[int, int] = attrs.field(factory=dict[int, int])

    def went_to(self, slot: int) -> int | None:
        return self.went.get(slot)

    def listen(self, listener: Callable[[], None]) -> None:
        raise NotImplementedError

    def facts(self) -> dict[str, object]:
        return {}


# What is here, and what is not ---------------------------------------------------------------


async def test_keys_of_other_partitions_are_moved(world: World, client: RawClient) -> None:
    await client.ask(command("SET", HERE, "1") + command("GET", HERE), OK + b"$1\r\n1\r\n")
    for words in (["SET", ELSEWHERE, "1"], ["GET", ELSEWHERE], ["INCR", ELSEWHERE]):
        await client.ask(command(*words), MOVED)
    await client.ask(command("OBJECT", "ENCODING", ELSEWHERE), MOVED)
    await client.ask(command("WATCH", ELSEWHERE), MOVED)
    assert world.port.state.counters.redirections == 5
    await client.ask(command("GET", "{nobody's}9"), b"$-1\r\n")
    assert len(world.member.commands) == 2  # FOUND is the other one


async def test_a_slot_of_nobody_is_not_served(client: RawClient) -> None:
    keys = (key for n in range(200_000) if key_slot(key := b"%d" % n) == 16001)
    await client.ask(command("GET", next(keys)), b"-CLUSTERDOWN Hash slot not served\r\n")


async def test_a_pipeline_is_cut_where_keys_are_elsewhere(world: World, client: RawClient) -> None:
    here, there = command("SET", HERE, "1"), command("SET", ELSEWHERE, "1")
    also, read = command("INCR", ALSO), command("GET", HERE)
    await client.ask(
        here + there + read + also + there + there + command("PING") + command("DBSIZE") + read,
        OK + MOVED + b"$1\r\n1\r\n:1\r\n" + MOVED * 2 + b"+PONG\r\n:2\r\n$1\r\n1\r\n",
    )
    assert world.member.commands[1:] == [here, read + also]
    await client.ask(here * 3 + there + read, OK * 3 + MOVED + b"$1\r\n1\r\n")
    assert world.member.commands[3:] == [here * 3]


async def test_keys_of_two_slots_do_not_go_together(client: RawClient) -> None:
    for words in (["MSET", HERE, "1", ALSO, "2"], ["DEL", HERE, ELSEWHERE], ["WATCH", HERE, ALSO]):
        await client.ask(command(*words), CROSSED)
    await client.ask(command("MSET", HERE, "1", "{b}2", "2"), OK)
    await client.ask(
        command("RENAME", "{b}2", "{b}3") + command("EXISTS", HERE, "{b}3"), OK + b":2\r\n"
    )


async def test_a_transaction_has_one_slot_that_is_here(world: World, client: RawClient) -> None:
    multi, run = command("MULTI"), command("EXEC")
    one, two = command("SET", HERE, "1"), command("SET", "{b}2", "2")
    await client.ask(multi + one + two + run, OK + QUEUED * 2 + b"*2\r\n" + OK * 2)
    await client.ask(multi + one + command("GET", ALSO) + run, OK + QUEUED * 2 + CROSSED)
    spoilt = b"-EXECABORT Transaction discarded because of previous errors.\r\n"
    await client.ask(multi + one + command("GET", ELSEWHERE) + run, OK + QUEUED + MOVED + spoilt)
    await client.ask(multi + command("MGET", HERE, ALSO) + run, OK + CROSSED + spoilt)
    await client.ask(command("WATCH", HERE) + multi + one + run, OK * 2 + QUEUED + b"*1\r\n" + OK)
    await client.ask(multi + one, OK + QUEUED)
    await slots(world, "FREEZE", "5", str(SLOT), "1")
    await slots(world, "RELEASE", "5", "1", "2")
    await client.ask(run, b"-MOVED %d 10.1.0.1:7102\r\n" % SLOT)
    await client.ask(command("PING"), b"+PONG\r\n")


async def test_sessions_are_answered_by_the_state_machine(client: RawClient) -> None:
    await client.ask(command("QUORATE.SESSION", "OPEN"), b":")
    session = (await client.receive_until(b"\r\n")).strip().decode()
    there = key_slot(ELSEWHERE.encode())
    gone = b"-NOTHERE slot %d is not in this partition; nothing was done\r\n" % there
    await client.ask(command("QUORATE.ONCE", session, "1", "SET", ELSEWHERE, "1") * 2, gone * 2)
    await client.ask(command("QUORATE.ONCE", session, "2", "SET", HERE, "1"), OK)
    payload = command("GET", HERE) + command("GET", ELSEWHERE)
    replies = b"$1\r\n1\r\n" + MOVED
    await client.ask(command("QUORATE.REQUEST", "0", "0", "0", payload), resp.bulk(replies))
    await client.ask(command("QUORATE.REQUEST", session, "3", "0", payload), resp.bulk(gone))


async def test_clients_with_tls_are_sent_to_ports_with_tls(world: World, client: RawClient) -> None:
    await client.ask(command("PING"), b"+PONG\r\n")
    for each in world.port.state.clients.values():
        each.client.tls = True
    await client.ask(command("GET", ELSEWHERE), MOVED.replace(b"7102", b"9102"))
    await client.send(command("CLUSTER", "SLOTS") + command("ECHO", "the end"))
    assert b":9102\r\n" in await client.receive_until(b"the end\r\n")


# Followers -----------------------------------------------------------------------------------


async def test_a_follower_sends_clients_to_the_leader_of_the_right_partition(
    world: World, client: RawClient
) -> None:
    await client.ask(command("SET", HERE, "1"), OK)
    world.member.follow(1)
    own = b"-MOVED %d 10.0.0.2:7001\r\n" % SLOT
    await client.ask(command("GET", HERE) + command("GET", ELSEWHERE), own + MOVED)
    await slots(world, "FREEZE", "5", str(SLOT), "1")
    await client.ask(command("GET", HERE), own)
    await slots(world, "RELEASE", "5", "1", "1")
    await client.ask(command("GET", HERE), b"-MOVED %d 10.1.0.1:7102\r\n" % SLOT)


async def test_a_follower_that_is_behind_sends_nobody_away(world: World, client: RawClient) -> None:
    signposts = world.port.state.signposts
    assert signposts is not None
    signposts.ownership = Stale(bytearray(SLOTS))
    world.member.follow(1)
    await client.ask(command("GET", HERE), b"-MOVED %d 10.0.0.2:7001\r\n" % SLOT)


async def test_a_reader_of_a_follower_waits_for_frozen_slots(
    world: World, client: RawClient
) -> None:
    await client.ask(command("SET", HERE, "1") + command("READONLY"), OK * 2)
    world.member.follow(1)
    read = command("GET", HERE)
    await client.ask(
        read + command("GET", ELSEWHERE) + read, b"$1\r\n1\r\n" + MOVED + b"$1\r\n1\r\n"
    )
    await slots(world, "FREEZE", "5", str(SLOT), "1")
    await client.send(read)
    await slots(world, "THAW", "5")
    assert await client.receive(7) == b"$1\r\n1\r\n"


# Frozen slots --------------------------------------------------------------------------------

GET, SET = command("GET", HERE), command("SET", HERE, "2")
WAITS: dict[str, tuple[bytes, bytes, bytes]] = {
    # What is sent; the replies if the slot thaws, and if it goes to partition 1 (% of MOVED).
    "GET": (GET, b"$1\r\n1\r\n", b"%b"),
    "SET": (SET, OK, b"%b"),
    "pipeline": (SET + GET + command("INCR", ALSO), OK + b"$1\r\n2\r\n:1\r\n", b"%b%b:1\r\n"),
    "behind": (command("INCR", ALSO) + SET + GET, b":1\r\n" + OK + b"$1\r\n2\r\n", b":1\r\n%b%b"),
    "INCR": (command("INCR", HERE), b":2\r\n", b"%b"),
    "MULTI": (
        command("MULTI") + SET + GET + command("EXEC"),
        OK + QUEUED * 2 + b"*2\r\n" + OK + b"$1\r\n2\r\n",
        OK + QUEUED * 2 + b"%b",
    ),
    "MULTI of reads": (
        command("MULTI") + GET + command("EXEC"),
        OK + QUEUED + b"*1\r\n$1\r\n1\r\n",
        OK + QUEUED + b"%b",
    ),
    "WATCH": (command("WATCH", HERE), OK, b"%b"),
    "SKIP": (command("CLIENT", "REPLY", "SKIP") + SET + GET, b"$1\r\n2\r\n", b"%b"),
    "REQUEST": (
        command("QUORATE.REQUEST", "0", "0", "0", command("INCR", ALSO) + SET + GET),
        resp.bulk(b":1\r\n" + OK + b"$1\r\n2\r\n"),
        b"",
    ),
    "REQUEST of a transaction": (
        command("QUORATE.REQUEST", "0", "0", "2", SET + GET),
        resp.bulk(b"*2\r\n" + OK + b"$1\r\n2\r\n"),
        b"%b",
    ),
}


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown to the port"])
@pytest.mark.parametrize("name", WAITS)
async def test_commands_wait_until_a_slot_thaws(
    world: World, client: RawClient, name: str, *, known: bool
) -> None:
    asked, thawed, _ = WAITS[name]
    await client.ask(command("SET", HERE, "1"), OK)
    if not known:
        freeze_behind_its_back(world)
    await slots(world, "FREEZE", "5", str(SLOT), "1")
    read = world.port.state.counters.input_bytes
    await client.send(asked)
    await world.has_read(read + len(asked))
    await slots(world, "THAW", "5")
    await client.ask(command("PING"), thawed + b"+PONG\r\n")


@pytest.mark.parametrize("name", [name for name, each in WAITS.items() if each[2]])
async def test_commands_wait_until_a_slot_is_elsewhere(
    world: World, client: RawClient, name: str
) -> None:
    asked, _, moved = WAITS[name]
    await client.ask(command("SET", HERE, "1"), OK)
    await slots(world, "FREEZE", "5", str(SLOT), "1")
    await client.send(asked)
    await slots(world, "RELEASE", "5", "1", "1")
    to = b"-MOVED %d 10.1.0.1:7102\r\n" % SLOT
    await client.ask(command("PING"), moved.replace(b"%b", to) + b"+PONG\r\n")


@pytest.mark.parametrize("name", WAITS)
async def test_commands_that_wait_go_on_at_once_when_slots_change(
    world: World, client: RawClient, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(parking, "FIRST_PAUSE_S", 60.0)
    monkeypatch.setattr(parking, "LONGEST_PAUSE_S", 60.0)
    asked, thawed, _ = WAITS[name]
    await client.ask(command("SET", HERE, "1"), OK)
    await slots(world, "FREEZE", "5", str(SLOT), "1")
    await client.send(asked)
    await world.until(lambda: bool(world.port.state.parked))
    await slots(world, "THAW", "5")
    await client.ask(command("PING"), thawed + b"+PONG\r\n")
    assert not world.port.state.parked


async def test_a_command_of_a_session_waits_with_its_stamp(world: World, client: RawClient) -> None:
    await client.ask(command("QUORATE.SESSION", "OPEN"), b":")
    session = (await client.receive_until(b"\r\n")).strip().decode()
    await slots(world, "FREEZE", "5", str(SLOT), "1")
    await client.send(command("QUORATE.ONCE", session, "1", "INCR", HERE))
    await slots(world, "THAW", "5")
    assert await client.receive(4) == b":1\r\n"
    await client.ask(command("QUORATE.ONCE", session, "1", "INCR", HERE), b":1\r\n")


async def test_of_what_is_joined_only_clients_of_frozen_slots_wait(world: World) -> None:
    everybody = [await world.connect() for _ in range(8)]
    here, others = everybody[::2], everybody[1::2]
    member = world.member
    parked: list[Request] = []
    member.parked = parked
    for waiting, other in zip(here, others, strict=True):
        waiting.send_at_once(SET)
        other.send_at_once(command("SET", ALSO, "1"))
    await world.until(lambda: parked)
    joined = (SET + command("SET", ALSO, "1")) * 4
    assert [request.payload for request in parked] == [joined]
    member.parked = None
    await slots(world, "FREEZE", "5", str(SLOT), "1")
    before = len(member.commands)
    for left in (here[3], others[3]):  # killed: nothing is sent once more for them
        left.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await left.aclose()
    await world.until(lambda: len(world.port.state.clients) == 8)
    (request,) = parked
    request.cancelled = False  # they left once it was sent
    member.answer(request)
    assert member.commands[before:] == [joined, command("SET", ALSO, "1") * 3]
    for other in others[:3]:
        assert await other.receive(len(OK)) == OK
    await slots(world, "THAW", "5")
    for waiting in here[:3]:
        assert await waiting.receive(len(OK)) == OK


async def test_a_client_that_is_refused_gets_the_replies_to_what_waits_for_a_slot(
    world: World, client: RawClient
) -> None:
    member = world.member
    parked: list[Request] = []
    member.parked = parked
    await client.send(SET * 2 + command("PING"))
    await world.until(lambda: parked)
    member.parked = None
    connection = max(world.port.state.clients.values(), key=lambda each: each.client.client_id)
    connection.refuse(OversizedRequestError("too much"))
    await slots(world, "FREEZE", "5", str(SLOT), "1")
    member.answer(*parked)
    before = len(member.commands)
    await slots(world, "THAW", "5")
    assert await client.rest() == OK * 2 + b"-ERR too much\r\n"
    assert SET * 2 in member.commands[before:]


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown to the port"])
async def test_after_a_while_a_client_may_try_again(
    world: World, client: RawClient, monkeypatch: pytest.MonkeyPatch, *, known: bool
) -> None:
    monkeypatch.setattr(parking, "PARK_SECONDS", 0.01)
    if not known:
        freeze_behind_its_back(world)
    await slots(world, "FREEZE", "5", str(SLOT), "1")
    await client.ask(SET, TRY_AGAIN)
    await client.ask(SET + GET + command("INCR", ALSO), TRY_AGAIN * 2 + b":1\r\n")
    await client.ask(command("WATCH", HERE), TRY_AGAIN)
    multi = command("MULTI") + SET + command("EXEC")
    await client.ask(multi + command("PING"), OK + QUEUED + TRY_AGAIN + b"+PONG\r\n")
    payload = command("INCR", ALSO) + SET + GET
    answer = resp.bulk(b":2\r\n" + TRY_AGAIN * 2)
    await client.ask(command("QUORATE.REQUEST", "0", "0", "0", payload), answer)
    await client.ask(command("QUORATE.REQUEST", "0", "0", "0", SET), TRY_AGAIN)
    assert not world.port.state.gathered


def test_pauses_double_and_end_after_seconds() -> None:
    waits, now, pauses = Parking(100.0), 100.0, list[float]()
    while (pause := waits.pause(now)) is not None:
        pauses.append(pause)
        now += pause
    assert pauses[:6] == [0.002, 0.004, 0.008, 0.016, 0.032, 0.032]
    assert now == pytest.approx(100.0 + PARK_SECONDS)


async def test_a_client_that_leaves_waits_no_more(world: World, client: RawClient) -> None:
    await slots(world, "FREEZE", "5", str(SLOT), "1")
    await client.send(SET)
    await client.aclose()
    await slots(world, "THAW", "5")
    other = await world.connect()
    await other.ask(command("PING"), b"+PONG\r\n")
    await world.until(lambda: len(world.port.state.clients) == 4)


# What clients are shown ----------------------------------------------------------------------


async def ask(client: RawClient, *words: str) -> resp.Reply:
    await client.send(command(*words) + command("ECHO", "the end"))
    return resp.parse_replies_untrusted(await client.receive_until(b"the end\r\n"))[0]


def as_list(reply: resp.Reply) -> list[resp.Reply]:
    assert isinstance(reply, list)
    return reply


async def test_each_partition_is_a_shard(client: RawClient) -> None:
    own: list[resp.Reply] = [
        [b"10.0.0.%d" % (n + 1), 7000 + n, node_id("orders.p0", n).encode(), []] for n in range(3)
    ]
    other: list[resp.Reply] = [
        [b"10.1.0.%d" % n, 7102, node_id("orders.p1", n).encode(), []] for n in (1, 2)
    ]
    assert await ask(client, "CLUSTER", "SLOTS") == [
        [0, 8191, *own],
        [8192, 16000, *other],
        [16002, 16383, *other],
    ]
    shards = await ask(client, "CLUSTER", "SHARDS")
    assert isinstance(shards, list)
    assert [as_list(shard)[1] for shard in shards] == [[0, 8191], [8192, 16000, 16002, 16383]]
    nodes = await ask(client, "CLUSTER", "NODES")
    assert isinstance(nodes, bytes)
    lines = nodes.decode().splitlines()
    assert [line.split()[1:3] for line in lines] == [
        ["10.0.0.1:7000@0", "myself,master"],
        ["10.0.0.2:7001@0", "slave"],
        ["10.0.0.3:7002@0", "slave"],
        ["10.1.0.1:7102@0", "master"],
        ["10.1.0.2:7102@0", "slave"],
    ]
    assert lines[3].endswith(" connected 8192-16000 16002-16383")
    assert lines[4].endswith(" disconnected")  # as machine 2 is in our own group
    ids = [line.split()[0] for line in lines]
    assert len(set(ids)) == 5
    replicas = await ask(client, "CLUSTER", "REPLICAS", ids[3])
    assert replicas == [lines[4].encode()]
    assert "not a master" in str(await ask(client, "CLUSTER", "REPLICAS", ids[4]))
    assert await ask(client, "CLUSTER", "MYID") == ids[0].encode()
    info = await ask(client, "CLUSTER", "INFO")
    assert isinstance(info, bytes)
    facts = dict(line.split(":", 1) for line in info.decode().splitlines())
    shown = ("state", "slots_assigned", "known_nodes", "size", "current_epoch")
    assert [facts[f"cluster_{name}"] for name in shown] == ["ok", "16383", "5", "2", "3"]


async def test_a_partition_without_ports_for_tls_is_not_shown_to_clients_with_tls(
    world: World, client: RawClient, tmp_path: Path
) -> None:
    plain = tuple(msgspec.structs.replace(machine, tls_port=0) for machine in MACHINES)
    replace_file(tmp_path / MAP_FILE, encode_map(msgspec.structs.replace(MAP, machines=plain)))
    await client.ask(command("PING"), b"+PONG\r\n")
    for each in world.port.state.clients.values():
        each.client.tls = True
    found = await ask(client, "CLUSTER", "SLOTS")
    assert isinstance(found, list)
    assert [as_list(each)[:2] for each in found] == [[0, 8191]]


async def test_the_own_log_is_shown_before_the_map(world: World, client: RawClient) -> None:
    await slots(world, "FREEZE", "5", "0-99", "1")
    await slots(world, "RELEASE", "5", "1", "0")
    found = await ask(client, "CLUSTER", "SLOTS")
    assert isinstance(found, list)
    assert [as_list(each)[:2] for each in found] == [
        [100, 8191],
        [0, 99],
        [8192, 16000],
        [16002, 16383],
    ]


async def test_the_map_is_there_for_our_own_clients(world: World, client: RawClient) -> None:
    found = await ask(client, "QUORATE.MAP")
    assert isinstance(found, bytes)
    assert json.loads(found)["map"] == json.loads(encode_map(MAP))
    assert json.loads(found)["leaders"] == {"0": 0}
    assert json.loads(found)["partition"] == 0
    text = await ask(client, "INFO", "partition")
    assert isinstance(text, bytes)
    assert b"partition_map_epoch:3\r\npartition_owned_slots:8192\r\n" in text
    world.port.state.signposts = None
    assert await ask(client, "QUORATE.MAP") is None
    assert await ask(client, "INFO", "partition") == b""


async def test_a_member_without_a_map_says_so_and_one_of_the_metadata_group_has_it_too(
    world: World, client: RawClient, tmp_path: Path
) -> None:
    # A client that took a null for "no partitions" would write into the wrong group.
    world.port.state.signposts = Signposts(tmp_path / "young", META)
    assert json.loads(await text_of(client, "QUORATE.MAP")) == {
        "map": None,
        "leaders": {"-1": 0},
        "partition": META,
    }
    replace_file(tmp_path / "young" / MAP_FILE, encode_map(MAP))
    await trio.sleep(2 * FRESH_SECONDS)
    assert json.loads(await text_of(client, "QUORATE.MAP"))["map"]["epoch"] == MAP.epoch


async def test_a_member_of_the_metadata_group_sends_clients_to_the_partitions(
    world: World, client: RawClient, tmp_path: Path
) -> None:
    # The world's map is for partition 0; its state machine is not asked for other keys.
    world.port.state.signposts = Signposts(tmp_path, META)
    for words in ("SET a 1", "GET a", "WATCH a", "APPEND a 1"):
        assert str(await ask(client, *words.split())).startswith("MOVED "), words
    assert (await ask(client, "CLUSTER", "SLOTS")) != []
    assert await ask(client, "INFO", "partition") == b""
    moved = str(await ask(client, "SET", "quorate/map", "1"))
    assert "partition" in moved or moved.startswith(("MOVED ", "OK", "b'OK'", "CLUSTERDOWN"))


async def text_of(client: RawClient, *words: str) -> bytes:
    reply = await ask(client, *words)
    assert isinstance(reply, bytes)
    return reply

"""Cluster clients: the topology they are shown, and where they are sent."""

import binascii
import json

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot as redis_key_slot

from quorate.keyvalue.conversation.shards import node_id
from quorate.keyvalue.protocol import resp
from quorate.keyvalue.slots.hashing import key_slot
from quorate.node.requests.status import PeerStatus
from tests.support.client_port_world import MEMBERS, RawClient, World, command

OK = b"+OK\r\n"


async def reply_to(client: RawClient, *arguments: str) -> resp.Reply:
    """One decoded reply; PING marks its end."""
    await client.send(command(*arguments) + command("ECHO", "the end"))
    data = await client.receive_until(b"the end\r\n")
    return resp.parse_replies_untrusted(data)[0]


# Slots ---------------------------------------------------------------------------------------


@given(st.binary(max_size=20) | st.text("{}ab", max_size=8).map(str.encode))
def test_slots_are_those_of_redis(key: bytes) -> None:
    assert key_slot(key) == redis_key_slot(key)


def test_only_the_first_braces_with_something_inside_count() -> None:
    assert key_slot(b"{user}.a") == key_slot(b"b{user}{x}") == key_slot(b"user")
    assert key_slot(b"{}user") == binascii.crc_hqx(b"{}user", 0) % 16384


def test_node_ids_are_40_hexadecimal_digits_and_differ() -> None:
    ids = {node_id(cluster, member) for cluster in ("a", "b") for member in range(9)}
    assert len(ids) == 18
    assert all(len(name) == 40 and int(name, 16) >= 0 for name in ids)


# The topology --------------------------------------------------------------------------------


def slots_entry(member_id: int) -> list[object]:
    member = MEMBERS[member_id]
    name = node_id("orders", member_id).encode()
    return [member.host.encode(), member.client_port, name, []]


@pytest.mark.parametrize(("leader", "order"), [(0, [0, 1, 2]), (1, [1, 0, 2])])
async def test_slots_list_all_members_leader_first(
    world: World, client: RawClient, leader: int, order: list[int]
) -> None:
    world.member.follow(leader)
    expected = [[0, 16383, *map(slots_entry, order)]]
    assert await reply_to(client, "CLUSTER", "SLOTS") == expected
    world.member.state = "CANVASS"
    assert await reply_to(client, "CLUSTER", "SLOTS") == expected


@pytest.mark.parametrize(("leader", "order"), [(None, [1, 0, 2]), (2, [1, 2, 0])])
async def test_without_a_live_leader_the_member_that_is_asked_comes_first(
    world: World, client: RawClient, leader: int | None, order: list[int]
) -> None:
    world.member.follow(leader, "CANVASS")
    world.member.topology = attrs.evolve(world.member.topology, own_id=1)
    assert await reply_to(client, "CLUSTER", "SLOTS") == [[0, 16383, *map(slots_entry, order)]]


async def test_nodes_are_one_line_each(world: World, client: RawClient) -> None:
    world.member.follow(1)
    ids = [node_id("orders", member) for member in range(3)]
    text = await reply_to(client, "CLUSTER", "NODES")
    assert (
        text
        == (
            f"{ids[1]} 10.0.0.2:7001@0 master - 0 0 4 connected 0-16383\n"
            f"{ids[0]} 10.0.0.1:7000@0 myself,slave {ids[1]} 0 0 4 connected\n"
            f"{ids[2]} 10.0.0.3:7002@0 slave {ids[1]} 0 0 4 disconnected\n"
        ).encode()
    )
    replicas = await reply_to(client, "CLUSTER", "REPLICAS", ids[1])
    assert isinstance(text, bytes)
    assert replicas == text.splitlines()[1:]
    assert "not a master" in str(await reply_to(client, "CLUSTER", "REPLICAS", ids[0]))
    assert "Unknown node" in str(await reply_to(client, "CLUSTER", "REPLICAS", "x"))


@pytest.mark.parametrize("protocol", ["2", "3"])
async def test_shards_are_one(client: RawClient, protocol: str) -> None:
    await reply_to(client, "HELLO", protocol)
    (shard,) = as_list(await reply_to(client, "CLUSTER", "SHARDS"))
    found = as_map(shard)
    assert found[b"slots"] == [0, 16383]
    nodes = [as_map(node) for node in as_list(found[b"nodes"])]
    assert [node[b"role"] for node in nodes] == [b"master", b"replica", b"replica"]
    assert [node[b"health"] for node in nodes] == [b"online", b"online", b"fail"]
    assert [node[b"port"] for node in nodes] == [7000, 7001, 7002]
    assert [node[b"endpoint"] for node in nodes] == [b"10.0.0.1", b"10.0.0.2", b"10.0.0.3"]
    links = [as_map(one) for one in as_list(await reply_to(client, "CLUSTER", "LINKS"))]
    assert [link[b"direction"] for link in links] == [b"to", b"from"]
    assert [link[b"node"] for link in links] == [node_id("orders", 1).encode()] * 2


def as_list(reply: resp.Reply) -> list[resp.Reply]:
    assert isinstance(reply, list)
    return reply


def as_map(reply: resp.Reply) -> dict[resp.Reply, resp.Reply]:
    if isinstance(reply, dict):
        return reply
    flat = as_list(reply)
    return dict(zip(flat[::2], flat[1::2], strict=True))


async def test_info_has_the_raft_fields(world: World, client: RawClient) -> None:
    await client.ask(command("SET", "a", "1"), OK)
    text = await reply_to(client, "CLUSTER", "INFO")
    assert isinstance(text, bytes)
    facts = dict(line.split(":", 1) for line in text.decode().splitlines())
    position = str(world.member.position)
    assert facts["cluster_state"] == "ok"
    assert facts["cluster_known_nodes"] == "3"
    assert facts["cluster_raft_role"] == "leader"
    assert facts["cluster_raft_current_term"] == "4"
    assert facts["cluster_raft_commit_index"] == position
    assert facts["cluster_raft_last_applied"] == position
    assert facts["cluster_raft_log_entries"] == position
    assert facts["cluster_raft_leader"] == node_id("orders", 0)


async def test_small_answers(world: World, client: RawClient) -> None:
    assert await reply_to(client, "CLUSTER", "MYID") == node_id("orders", 0).encode()
    shard = await reply_to(client, "CLUSTER", "MYSHARDID")
    assert isinstance(shard, bytes)
    assert len(shard) == 40
    assert await reply_to(client, "CLUSTER", "KEYSLOT", "{a}b") == key_slot(b"a")
    await client.ask(command("MSET", "a", "1", "{a}b", "2", "c", "3"), OK)
    assert await reply_to(client, "CLUSTER", "COUNTKEYSINSLOT", str(key_slot(b"a"))) == 2
    assert "Invalid slot" in str(await reply_to(client, "CLUSTER", "COUNTKEYSINSLOT", "16384"))
    assert "Invalid slot" in str(await reply_to(client, "CLUSTER", "COUNTKEYSINSLOT", "-1"))
    assert isinstance(await reply_to(client, "CLUSTER", "HELP"), list)
    assert not world.port.state.clients[1].client.cluster_aware


async def test_many_keys_are_not_counted_by_slot(world: World, client: RawClient) -> None:
    for first in range(0, 10_001, 5000):
        pairs = [word for n in range(first, first + 5000) for word in (f"key:{n}", "1")]
        await client.ask(command("MSET", *pairs), OK)
    assert "not counted" in str(await reply_to(client, "CLUSTER", "COUNTKEYSINSLOT", "1"))
    assert world.member.stale == [command("DBSIZE")]


# Redirection ---------------------------------------------------------------------------------


async def test_a_plain_client_is_served_by_every_member(world: World, client: RawClient) -> None:
    world.member.follow(1)
    await client.ask(command("SET", "a", "1") + command("GET", "a"), OK + b"$1\r\n1\r\n")


@pytest.mark.parametrize(
    "opening", [["CLUSTER", "SLOTS"], ["CLUSTER", "SHARDS"], ["CLUSTER", "NODES"], ["READONLY"]]
)
async def test_a_cluster_client_is_sent_to_the_leader(
    world: World, client: RawClient, opening: list[str]
) -> None:
    await reply_to(client, *opening)
    await client.ask(command("SET", "a", "1"), OK)
    world.member.follow(1)
    moved = b"-MOVED %d 10.0.0.2:7001\r\n"
    await client.ask(command("SET", "a", "1"), moved % key_slot(b"a"))
    await client.ask(
        command("INCR", "x{b}") + command("PING") + command("SET", "c", "1"),
        moved % key_slot(b"b") + b"+PONG\r\n" + moved % key_slot(b"c"),
    )
    await client.ask(command("WATCH", "a"), moved % key_slot(b"a"))
    assert world.port.state.counters.redirections == 4
    assert len(world.member.commands) == 1


async def test_a_command_without_keys_is_not_redirected(world: World, client: RawClient) -> None:
    await reply_to(client, "CLUSTER", "SLOTS")
    world.member.follow(1)
    await client.ask(command("DBSIZE") + command("FLUSHALL"), b":0\r\n" + OK)


async def test_a_redirected_command_spoils_its_transaction(world: World, client: RawClient) -> None:
    await reply_to(client, "CLUSTER", "SLOTS")
    world.member.follow(1)
    moved = b"-MOVED %d 10.0.0.2:7001\r\n" % key_slot(b"a")
    await client.ask(command("MULTI") + command("SET", "a", "1"), OK + moved)
    await client.send(command("EXEC"))
    assert (await client.receive_until(b"\r\n")).startswith(b"-EXECABORT")


@pytest.mark.parametrize(("leader", "state"), [(None, "CLOSED"), (0, "CLOSED"), (1, "CANVASS")])
async def test_nobody_is_redirected_while_it_is_unclear_who_leads(
    world: World, client: RawClient, leader: int | None, state: str
) -> None:
    await reply_to(client, "CLUSTER", "SLOTS")
    world.member.follow(leader, state)
    world.member.parked = []
    await client.send(command("SET", "a", "1"))
    await world.until(lambda: world.member.parked)
    world.member.release()
    assert await client.receive(5) == OK


async def test_a_readonly_client_reads_what_the_follower_has(
    world: World, client: RawClient
) -> None:
    await client.ask(command("SET", "a", "1") + command("READONLY"), OK + OK)
    await client.ask(command("GET", "a"), b"$1\r\n1\r\n")
    assert len(world.member.queries) == 1
    world.member.follow(1)
    world.member.parked = []
    await client.ask(command("GET", "a") + command("DBSIZE"), b"$1\r\n1\r\n:1\r\n")
    assert world.member.stale == [command("GET", "a") + command("DBSIZE")]
    moved = b"-MOVED %d 10.0.0.2:7001\r\n" % key_slot(b"a")
    await client.ask(
        command("GET", "a") + command("SET", "a", "2") + command("GET", "a"),
        b"$1\r\n1\r\n" + moved + b"$1\r\n1\r\n",
    )
    await client.ask(command("READWRITE"), OK)
    await client.ask(command("GET", "a"), moved)


async def test_stale_reads_go_on_during_an_election(world: World, client: RawClient) -> None:
    await client.ask(command("SET", "a", "1") + command("READONLY"), OK + OK)
    world.member.follow(None, "CANVASS")
    world.member.parked = []
    await client.ask(command("GET", "a"), b"$1\r\n1\r\n")


async def test_reset_makes_a_plain_client_again(world: World, client: RawClient) -> None:
    await client.ask(command("READONLY") + command("RESET"), OK + b"+RESET\r\n")
    world.member.follow(1)
    await client.ask(command("SET", "a", "1"), OK)


# Roles ---------------------------------------------------------------------------------------


async def test_role_of_a_leader_and_of_a_follower(world: World, client: RawClient) -> None:
    await client.ask(command("SET", "a", "1"), OK)
    position = world.member.position
    replica = [b"10.0.0.2", b"7001", b"%d" % position]
    assert await reply_to(client, "ROLE") == [b"master", position, [replica]]
    world.member.follow(1)
    expected = [b"slave", b"10.0.0.2", 7001, b"connected", position]
    assert await reply_to(client, "ROLE") == expected
    world.member.follow(2)
    assert as_list(await reply_to(client, "ROLE"))[3] == b"connect"


async def test_wait_counts_the_members_that_hold_everything(
    world: World, client: RawClient
) -> None:
    assert await reply_to(client, "WAIT", "2", "100") == 1
    status = world.member.status()
    peers = tuple(PeerStatus(n, True, status.append_position, 0.0) for n in (1, 2))
    world.member.status = lambda: attrs.evolve(status, peers=peers)  # type: ignore[method-assign]
    assert await reply_to(client, "WAIT", "0", "0") == 2


async def test_status_is_one_json_object(world: World, client: RawClient) -> None:
    reply = await reply_to(client, "QUORATE.STATUS")
    assert isinstance(reply, bytes)
    found = json.loads(reply)
    assert found["commit_position"] == world.member.position
    assert found["peers"][0]["connected"] is True
    assert found["topology"]["leader_id"] == 0
    assert found["topology"]["members"][2] == attrs.asdict(MEMBERS[2])
    assert "recent" not in found
    reply = await reply_to(client, "QUORATE.STATUS", "17")
    assert isinstance(reply, bytes)
    assert json.loads(reply)["recent"] == {"steps": [], "step_count": 17}
    for wrong in (["x"], ["0", "1"]):
        assert isinstance(await reply_to(client, "QUORATE.STATUS", *wrong), Exception)


# A witness -----------------------------------------------------------------------------------


async def test_a_witness_redirects_reads_and_is_in_no_list(world: World, client: RawClient) -> None:
    shown = (attrs.evolve(MEMBERS[0], witness=True), *MEMBERS[1:])
    topology = attrs.evolve(world.member.topology, members=shown, witness=True)
    world.member.topology = topology
    world.member.follow(1)
    with_data = [[0, 16383, slots_entry(1), slots_entry(2)]]
    assert await reply_to(client, "CLUSTER", "SLOTS") == with_data
    nodes = await reply_to(client, "CLUSTER", "NODES")
    assert isinstance(nodes, bytes)
    assert node_id("orders", 0).encode() not in nodes
    moved = b"-MOVED %d 10.0.0.2:7001\r\n" % key_slot(b"a")
    await client.ask(command("READONLY") + command("GET", "a"), OK + moved)
    assert not world.member.stale
    counted = await reply_to(client, "CLUSTER", "COUNTKEYSINSLOT", "1")
    assert "this member is a witness and has no data" in str(counted)
    info = await reply_to(client, "INFO")
    assert isinstance(info, bytes)
    assert b"quorate_sessions:0\r\n" in info
    assert b"db0" not in info
    assert not world.member.stale


async def test_a_plain_client_of_a_witness_is_served_by_the_leader(
    world: World, client: RawClient
) -> None:
    world.member.topology = attrs.evolve(world.member.topology, witness=True)
    world.member.follow(1)
    await client.ask(command("SET", "a", "1"), OK)
    await client.ask(command("GET", "a"), b"$1\r\n1\r\n")
    assert world.member.queries
    assert not world.member.stale


async def test_a_leader_names_no_witness_as_its_replica(world: World, client: RawClient) -> None:
    shown = (*MEMBERS[:2], attrs.evolve(MEMBERS[2], witness=True))
    world.member.topology = attrs.evolve(world.member.topology, members=shown)
    role = await reply_to(client, "ROLE")
    assert isinstance(role, list)
    assert b"10.0.0.3" not in str(role).encode()
    info = await reply_to(client, "INFO", "replication")
    assert isinstance(info, bytes)
    assert b"10.0.0.3" not in info

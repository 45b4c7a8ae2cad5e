"""The cluster in the form of Redis Cluster: CLUSTER, and the error -MOVED.

The picture that clients get
    All members hold all keys, and one of them leads. For a cluster client that is one shard with
    every slot: a master with replicas.

The order of members
    All members are always listed, the leader first. redis-py keeps *one list* for the whole range
    of slots; when it is redirected to a replica, it swaps that one into the first place. So it
    follows a change of leader with one redirection. While no leader is reachable, the member that
    is asked comes first, and it parks the client's requests. Without any list, a client gives up
    within a quarter of a second.

    Witnesses are left out, because clients send reads to all replicas that they are shown, and a
    witness has no data. One that is asked itself puts a member first to which it has a link.

Which clients are redirected
    A plain client that gets -MOVED fails, so only cluster clients may get it. But most of these ask
    for the topology on one connection and send their commands on others. The latter look exactly
    like connections of a plain client of the same library. redis-py, coredis, node-redis and GLIDE
    send the same HELLO and library name; ``redis-cli -c`` sends nothing at all. Addresses do not
    help either, because both kinds may run on one machine.

    So the *port* decides. A member may have a second port, `redirect_port`, and names it in the
    topology. Only cluster clients come through it, so there every client is redirected. On the
    usual port a client is redirected only if it asked for the topology on that very connection, or
    sent READONLY. ``CLIENT SETINFO`` decides nothing.

Clients with TLS
    A client that came by TLS is shown the TLS ports, any other one the plain ports. Members without
    such a port are left out, and nobody is redirected there: the command is forwarded.

Partitions
    With partitions each is a shard of its own (:mod:`.shards`). Then every client is redirected, as
    no member has all keys; to other partitions by :mod:`.slot_check`.

Slots and ids
    Slots are computed as in Redis (CRC16 of the key, or of the part in braces), because clients
    check. A member's node id has 40 hexadecimal digits, as clients expect. It is made from the
    cluster's name and the member's id, and never changes.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from ..clients.client_state import ClientState
from ..clients.port_state import PortState
from ..commands.arguments import integer
from ..commands.introspection import help_reply
from ..commands.table import CommandSpec, keys_of
from ..protocol import resp
from ..slots.hashing import SLOTS, key_slot
from .shards import Shard, Shown, node_id, shards_of

__all__ = ["cluster_reply", "map_reply", "redirection"]

_STEADY: Final = "CLOSED"
_MAX_COUNTED_KEYS: Final = 2000  # counting this many takes some milliseconds


def redirection(
    port: PortState, client: ClientState, spec: CommandSpec, arguments: Sequence[bytes]
) -> bytes | None:
    """Return -MOVED for a command with keys; None if the command is to be submitted here.

    It is submitted here if the client is not cluster-aware, if this member leads, and during an
    election, when the gateway parks it.
    """
    if not client.cluster_aware or port.redirect == "never":
        return None
    topology = port.gateway.topology
    leader = topology.leader_id
    if topology.is_leader or leader is None or leader == topology.own_id:
        return None
    keys, address = keys_of(spec, arguments), topology.address_of(leader)
    if not keys or address is None or port.gateway.status().state != _STEADY:
        return None
    if not (there := address.cluster_port(tls=client.tls)):
        return None  # it has no port for clients of this kind, so we forward
    port.counters.redirections += 1
    return resp.error(f"MOVED {key_slot(keys[0])} {address.host}:{there}")


def cluster_reply(arguments: Sequence[bytes], client: ClientState, port: PortState) -> bytes:
    """Answer CLUSTER; `table.fault` found nothing wrong."""
    view, resp3 = _View(port, tls=client.tls), client.resp3
    word = arguments[1].lower()
    match word:
        case b"slots" | b"shards" | b"nodes":
            client.cluster_aware = True
            reply = view.listing(word, resp3=resp3)
        case b"info":
            reply = resp.verbatim(view.info(), resp3=resp3)
        case b"myid":
            reply = resp.bulk(view.id_of(view.topology.own_id).encode())
        case b"myshardid":
            reply = resp.bulk(node_id(view.status.cluster, -1).encode())
        case b"keyslot":
            reply = resp.integer(key_slot(arguments[2]))
        case b"countkeysinslot":
            reply = _count_keys(arguments[2], port)
        case b"replicas":
            reply = view.replicas(arguments[2])
        case b"links":
            reply = view.links(resp3=resp3)
        case _:
            reply = help_reply(arguments[0])
    return reply


def map_reply(port: PortState, *, resp3: bool) -> bytes:
    """Answer QUORATE.MAP."""
    around = port.signposts
    if around is None:
        return resp.NULL[resp3]
    leaders: dict[int, int | None] = {}
    if (found := around.map) is not None:
        leaders = {each.partition: around.noticed(each.partition) for each in found.partitions}
    leaders[around.partition] = port.gateway.topology.leader_id
    known = {str(at): leader for at, leader in leaders.items() if leader is not None}
    facts = {"map": found, "leaders": known, "partition": around.partition}
    return resp.bulk(msgspec.json.encode(facts))


class _View:
    """The cluster as this member sees it now, and as a client with or without TLS may use it."""

    def __init__(self, port: PortState, *, tls: bool) -> None:
        self.topology = port.gateway.topology
        self.status = port.gateway.status()
        self.shards = shards_of(port, self.status, tls=tls)
        found = port.signposts.map if port.signposts is not None else None
        self._epoch = self.status.term if found is None else found.epoch

    def id_of(self, member_id: int) -> str:
        """Return the node id of a member of this member's group."""
        return node_id(self.status.cluster, member_id)

    def listing(self, word: bytes, *, resp3: bool) -> bytes:
        """Return all members, in one of the three forms."""
        match word:
            case b"slots":
                return self.slots()
            case b"shards":
                return resp.array([_shard(each, resp3=resp3) for each in self.shards])
            case _:
                lines = [line for shard in self.shards for line in _lines(shard)]
                return resp.verbatim("".join(lines).encode(), resp3=resp3)

    def slots(self) -> bytes:
        """CLUSTER SLOTS: each range, with all members of its shard."""
        return resp.array(
            [
                resp.array([resp.integer(first), resp.integer(last), *map(_place, shard.members)])
                for shard in self.shards
                for first, last in shard.ranges
            ]
        )

    def replicas(self, name: bytes) -> bytes:
        """CLUSTER REPLICAS: the lines of the followers."""
        for shard in self.shards:
            ids = [member.node.encode() for member in shard.members]
            if name in ids[:1]:
                return resp.bulk_array([line.rstrip("\n").encode() for line in _lines(shard)[1:]])
            if name in ids:
                return resp.error("ERR The specified node is not a master")
        return resp.error(b"ERR Unknown node %b" % name[:80])

    def links(self, *, resp3: bool) -> bytes:
        """CLUSTER LINKS: to and from the members of this group that are connected."""
        return resp.array(
            [
                _fields(
                    resp3,
                    direction=resp.bulk(direction),
                    node=resp.bulk(self.id_of(peer.member_id).encode()),
                    create_time=resp.ZERO,
                    events=resp.bulk(b"rw"),
                    send_buffer_allocated=resp.ZERO,
                    send_buffer_used=resp.ZERO,
                )
                for peer in self.status.peers
                if peer.connected
                for direction in (b"to", b"from")
            ]
        )

    def info(self) -> bytes:
        """CLUSTER INFO, with the fields that Valkey defines for its Raft."""
        status = self.status
        leader = self.topology.leader_id
        slots = sum(last - first + 1 for shard in self.shards for first, last in shard.ranges)
        facts: dict[str, str | int] = {
            "cluster_enabled": 1,
            "cluster_state": "ok" if status.state == _STEADY else "fail",
            "cluster_slots_assigned": slots,
            "cluster_slots_ok": slots,
            "cluster_slots_pfail": 0,
            "cluster_slots_fail": 0,
            "cluster_known_nodes": sum(len(shard.members) for shard in self.shards),
            "cluster_size": sum(bool(shard.ranges) for shard in self.shards),
            "cluster_current_epoch": self._epoch,
            "cluster_my_epoch": status.log_term,
            "cluster_raft_role": status.role,
            "cluster_raft_current_term": status.term,
            "cluster_raft_commit_index": status.commit_position,
            "cluster_raft_last_applied": status.applied_position,
            "cluster_raft_log_entries": status.append_position - status.start_position,
            "cluster_raft_leader": self.id_of(leader) if leader is not None else "",
        }
        return "".join(f"{name}:{value}\r\n" for name, value in facts.items()).encode()


def _place(member: Shown) -> bytes:
    """Return a member in the form of CLUSTER SLOTS."""
    host, port = resp.bulk(member.host.encode()), resp.integer(member.port)
    return resp.array([host, port, resp.bulk(member.node.encode()), resp.EMPTY_ARRAY])


def _shard(shard: Shard, *, resp3: bool) -> bytes:
    """Return a shard in the form of CLUSTER SHARDS."""
    ranges = [resp.integer(slot) for each in shard.ranges for slot in each]
    nodes: list[bytes] = []
    for index, member in enumerate(shard.members):
        host = resp.bulk(member.host.encode())
        fields = _fields(
            resp3,
            id=resp.bulk(member.node.encode()),
            port=resp.integer(member.port),
            ip=host,
            endpoint=host,
            role=resp.bulk(b"replica" if index else b"master"),
            replication_offset=resp.integer(member.offset),
            health=resp.bulk(b"online" if member.connected else b"fail"),
        )
        nodes.append(fields)
    return _fields(resp3, slots=resp.array(ranges), nodes=resp.array(nodes))


def _lines(shard: Shard) -> list[str]:
    """Return a shard in the form of CLUSTER NODES: one line for each member."""
    lines: list[str] = []
    for index, member in enumerate(shard.members):
        own = "myself," if member.myself else ""
        # After the @ Redis has the port of its cluster bus, which does not exist here.
        place = f"{member.node} {member.host}:{member.port}@0"
        role = "slave,nofailover" if member.standby else "slave"
        kind = f"{own}{role} {shard.members[0].node}" if index else f"{own}master -"
        link = "connected" if member.connected else "disconnected"
        end = "" if index else "".join(f" {_range(*each)}" for each in shard.ranges)
        lines.append(f"{place} {kind} 0 0 {shard.term} {link}{end}\n")
    return lines


def _range(first: int, last: int) -> str:
    return f"{first}-{last}" if last > first else f"{first}"


def _fields(resp3: bool, **values: bytes) -> bytes:  # noqa: FBT001 - all keywords are fields
    pairs = [(resp.bulk(name.replace("_", "-").encode()), value) for name, value in values.items()]
    return resp.mapping(pairs, resp3=resp3)


def _count_keys(word: bytes, port: PortState) -> bytes:
    """CLUSTER COUNTKEYSINSLOT: keys are not stored by slot, so only few keys are counted."""
    if not 0 <= integer(word) < SLOTS:
        return resp.error("ERR Invalid slot")
    if port.gateway.topology.witness:
        return resp.error("ERR not counted here: this member is a witness and has no data")
    size = port.gateway.stale_query(resp.bulk_array([b"DBSIZE"]), 0)
    if int(size[1:-2]) > _MAX_COUNTED_KEYS:
        return resp.error(f"ERR not counted by slot with more than {_MAX_COUNTED_KEYS} keys")
    reply = port.gateway.stale_query(resp.bulk_array([b"KEYS", b"*"]), 0)
    keys = resp.parse_replies_untrusted(reply)[0]
    assert isinstance(keys, list)
    slots = [key_slot(key) for key in keys if isinstance(key, bytes)]
    return resp.integer(slots.count(int(word)))

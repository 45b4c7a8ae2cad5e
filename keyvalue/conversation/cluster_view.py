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

Slots and ids
    Slots are computed as in Redis (CRC16 of the key, or of the part in braces), because clients
    check. A member's node id has 40 hexadecimal digits, as clients expect. It is made from the
    cluster's name and the member's id, and never changes.
"""

import functools
import hashlib
from collections.abc import Sequence
from typing import Final

from ...node.requests.status import MemberAddress, NodeStatus, Topology
from ..clients.client_state import ClientState
from ..clients.port_state import PortState
from ..commands.arguments import integer
from ..commands.introspection import help_reply
from ..commands.table import CommandSpec, keys_of
from ..protocol import resp
from ..slots.hashing import SLOTS, key_slot

__all__ = ["cluster_reply", "node_id", "redirection"]

_STEADY: Final = "CLOSED"
_MAX_COUNTED_KEYS: Final = 2000  # counting this many takes some milliseconds


@functools.cache
def node_id(cluster: str, member_id: int) -> str:
    """Return the id of a member in Redis Cluster: 40 hexadecimal digits."""
    return hashlib.sha256(f"{cluster}/{member_id}".encode()).hexdigest()[:40]


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


def leader_first(topology: Topology) -> list[MemberAddress]:
    """Return the members that have data, the last known leader first."""
    with_data = (member for member in topology.members if not member.witness)
    return sorted(with_data, key=lambda member: member.member_id != topology.leader_id)


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


class _View:
    """The cluster as this member sees it now, and as a client with or without TLS may use it."""

    def __init__(self, port: PortState, *, tls: bool) -> None:
        self.topology: Topology = port.gateway.topology
        self.status: NodeStatus = port.gateway.status()
        self._tls, self._own_port = tls, port.tls_port if tls else port.port
        # A client can't reach a member that has no port of its kind.
        everyone = leader_first(self.topology)
        self.members = [each for each in everyone if self._port_of(each)] or everyone
        known = {peer.member_id: peer for peer in self.status.peers}
        self._connected = {member_id: peer.connected for member_id, peer in known.items()}
        self._connected[self.topology.own_id] = True
        leader = self.topology.leader_id
        if leader is None or not self._connected.get(leader, False):
            # Clients try the first member first. This member parks or forwards their requests; a
            # dead leader refuses connections, and redis-py would give up during the election.
            own = self.topology.own_id
            # A witness does not list itself: a member that answers comes first in its place.
            near = {own} if not self.topology.witness else {*filter(self._connected.get, known)}
            self.members = sorted(self.members, key=lambda member: member.member_id not in near)
        self._offsets = {member_id: peer.append_position for member_id, peer in known.items()}
        self._offsets[self.topology.own_id] = self.status.append_position

    def _port_of(self, member: MemberAddress) -> int:
        port = member.cluster_port(tls=self._tls)
        # The configuration may not know yet of a port that our file has.
        return port or (self._own_port if member.member_id == self.topology.own_id else 0)

    def id_of(self, member_id: int) -> str:
        """Return the node id of a member."""
        return node_id(self.status.cluster, member_id)

    def listing(self, word: bytes, *, resp3: bool) -> bytes:
        """Return all members, in one of the three forms."""
        match word:
            case b"slots":
                return self.slots()
            case b"shards":
                return self.shards(resp3=resp3)
            case _:
                return resp.verbatim("".join(self.nodes()).encode(), resp3=resp3)

    def slots(self) -> bytes:
        """CLUSTER SLOTS: one range, all members."""
        nodes = [
            resp.array(
                [
                    resp.bulk(member.host.encode()),
                    resp.integer(self._port_of(member)),
                    resp.bulk(self.id_of(member.member_id).encode()),
                    resp.EMPTY_ARRAY,
                ]
            )
            for member in self.members
        ]
        return resp.array([resp.array([resp.ZERO, resp.integer(SLOTS - 1), *nodes])])

    def shards(self, *, resp3: bool) -> bytes:
        """CLUSTER SHARDS: one shard, all members."""
        ranges = resp.array([resp.ZERO, resp.integer(SLOTS - 1)])
        nodes = resp.array([self._node(member, resp3=resp3) for member in self.members])
        return resp.array([_fields(resp3, slots=ranges, nodes=nodes)])

    def _node(self, member: MemberAddress, *, resp3: bool) -> bytes:
        host = resp.bulk(member.host.encode())
        role = b"master" if member.member_id == self.members[0].member_id else b"replica"
        online = self._connected.get(member.member_id, False)
        return _fields(
            resp3,
            id=resp.bulk(self.id_of(member.member_id).encode()),
            port=resp.integer(self._port_of(member)),
            ip=host,
            endpoint=host,
            role=resp.bulk(role),
            replication_offset=resp.integer(max(self._offsets.get(member.member_id, 0), 0)),
            health=resp.bulk(b"online" if online else b"fail"),
        )

    def nodes(self) -> list[str]:
        """CLUSTER NODES: one line for each member."""
        master = self.id_of(self.members[0].member_id)
        lines: list[str] = []
        for index, member in enumerate(self.members):
            own = "myself," if member.member_id == self.topology.own_id else ""
            # After the @ Redis has the port of its cluster bus, which does not exist here.
            place = f"{self.id_of(member.member_id)} {member.host}:{self._port_of(member)}@0"
            role = "slave,nofailover" if member.standby else "slave"
            kind = f"{own}{role} {master}" if index else f"{own}master -"
            link = "connected" if self._connected.get(member.member_id) else "disconnected"
            end = "" if index else f" 0-{SLOTS - 1}"
            lines.append(f"{place} {kind} 0 0 {self.topology.term} {link}{end}\n")
        return lines

    def replicas(self, name: bytes) -> bytes:
        """CLUSTER REPLICAS: the lines of the followers."""
        ids = [self.id_of(member.member_id).encode() for member in self.members]
        if name not in ids:
            return resp.error(b"ERR Unknown node %b" % name[:80])
        if name != ids[0]:
            return resp.error("ERR The specified node is not a master")
        return resp.bulk_array([line.rstrip("\n").encode() for line in self.nodes()[1:]])

    def links(self, *, resp3: bool) -> bytes:
        """CLUSTER LINKS: to and from the members that are connected."""
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
        facts: dict[str, str | int] = {
            "cluster_enabled": 1,
            "cluster_state": "ok" if status.state == _STEADY else "fail",
            "cluster_slots_assigned": SLOTS,
            "cluster_slots_ok": SLOTS,
            "cluster_slots_pfail": 0,
            "cluster_slots_fail": 0,
            "cluster_known_nodes": len(self.members),
            "cluster_size": 1,
            "cluster_current_epoch": status.term,
            "cluster_my_epoch": status.log_term,
            "cluster_raft_role": status.role,
            "cluster_raft_current_term": status.term,
            "cluster_raft_commit_index": status.commit_position,
            "cluster_raft_last_applied": status.applied_position,
            "cluster_raft_log_entries": status.append_position - status.start_position,
            "cluster_raft_leader": self.id_of(leader) if leader is not None else "",
        }
        return "".join(f"{name}:{value}\r\n" for name, value in facts.items()).encode()


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

"""The shards that cluster clients are shown, each with its slots and its members.

A cluster without partitions is one shard with every slot. With partitions there is one shard for
each: what its slots are, and where its members run, is in the map (:mod:`..slots.signposts`). Of
its own partition a member knows more than the map does, from its log and its links.
"""

import functools
import hashlib

import attrs

from ...node.requests.status import MemberAddress, NodeStatus, Topology
from ..clients.port_state import PortState
from ..slots.cluster_map import Machine, group_name
from ..slots.hashing import SLOTS
from ..slots.signposts import Signposts

__all__ = ["Shard", "Shown", "leader_first", "node_id", "shards_of"]


@functools.cache
def node_id(cluster: str, member_id: int) -> str:
    """Return the id of a member in Redis Cluster: 40 hexadecimal digits."""
    return hashlib.sha256(f"{cluster}/{member_id}".encode()).hexdigest()[:40]


@attrs.frozen
class Shown:
    """A member, as cluster clients are shown it.

    Args:
        node: its node id.
        host: where clients reach it.
        port: for clients of the kind of this one.
        connected: a link to it is up.
        offset: where its log ends; 0 if that is not known.
        myself: it is the member that was asked.
        standby: it follows, and never leads.
    """

    node: str
    host: str
    port: int
    connected: bool = True
    offset: int = 0
    myself: bool = False
    standby: bool = False


@attrs.frozen
class Shard:
    """A shard.

    Args:
        ranges: the first and last slots of the ranges that it has.
        members: the leader first.
        term: the last known one of its leader; 0 if that is not known.
    """

    ranges: list[tuple[int, int]]
    members: list[Shown]
    term: int = 0


def leader_first(topology: Topology) -> list[MemberAddress]:
    """Return the members that have data, the last known leader first."""
    with_data = (member for member in topology.members if not member.witness)
    return sorted(with_data, key=lambda member: member.member_id != topology.leader_id)


def shards_of(port: PortState, status: NodeStatus, *, tls: bool) -> list[Shard]:
    """Return the shards, as this member sees them now.

    Args:
        port: of the member that was asked.
        status: of that member.
        tls: for clients with TLS.
    """
    topology, signposts = port.gateway.topology, port.signposts
    linked = {peer.member_id: peer.connected for peer in status.peers}
    linked[topology.own_id] = True
    own = _own_members(port, status, linked, tls=tls)
    if signposts is None:
        return [Shard([(0, SLOTS - 1)], own, topology.term)]
    ranges = signposts.ranges()
    if (found := signposts.map) is None:
        here = ranges.get(signposts.partition)
        return [Shard(here, own, topology.term)] if here else []
    shards = [
        Shard(ranges[each.partition], own, topology.term)
        if each.partition == signposts.partition
        else Shard(ranges[each.partition], _members(signposts, each.partition, linked, tls=tls))
        for each in found.partitions
    ]
    # Without a port for clients of this kind there is nobody to show.
    return [shard for shard in shards if shard.members]


def _own_members(
    port: PortState, status: NodeStatus, linked: dict[int, bool], *, tls: bool
) -> list[Shown]:
    """Return the members of the group of this member."""
    topology, own_port = port.gateway.topology, port.tls_port if tls else port.port

    def port_of(member: MemberAddress) -> int:
        # The configuration may not know yet of a port that our file has.
        own = own_port if member.member_id == topology.own_id else 0
        return member.cluster_port(tls=tls) or own

    # A client can't reach a member that has no port of its kind.
    everyone = leader_first(topology)
    members = [each for each in everyone if port_of(each)] or everyone
    if topology.leader_id is None or not linked.get(topology.leader_id, False):
        # Clients try the first member first. This member parks or forwards their requests; a dead
        # leader refuses connections, and redis-py would give up during the election.
        peers = {peer.member_id for peer in status.peers}
        # A witness does not list itself: a member that answers comes first in its place.
        near = {topology.own_id} if not topology.witness else {*filter(linked.get, peers)}
        members = sorted(members, key=lambda member: member.member_id not in near)
    offsets = {peer.member_id: peer.append_position for peer in status.peers}
    offsets[topology.own_id] = status.append_position
    return [
        Shown(
            node_id(status.cluster, each.member_id),
            each.host,
            port_of(each),
            linked.get(each.member_id, False),
            max(offsets.get(each.member_id, 0), 0),
            myself=each.member_id == topology.own_id,
            standby=each.standby,
        )
        for each in members
    ]


def _members(
    signposts: Signposts, partition: int, linked: dict[int, bool], *, tls: bool
) -> list[Shown]:
    """Return the members of another partition."""
    found = signposts.map
    assert found is not None, "the caller has looked"
    leader = signposts.leader(partition)
    machines = [found.machine(machine_id) for machine_id in found.present_in(partition)]
    there = [each for each in machines if each is not None]
    there.sort(key=lambda machine: machine != leader)
    if leader is not None and leader not in there:  # the map has not heard of it yet
        there.insert(0, leader)
    name = group_name(found.cluster, partition)

    def port_of(machine: Machine) -> int:
        return machine.client_tls_port(partition) if tls else machine.client_port(partition)

    return [
        # A machine to which our own group has no link is down, or cut off.
        Shown(
            node_id(name, each.machine_id),
            each.host,
            port_of(each),
            linked.get(each.machine_id, True),
        )
        for each in there
        if port_of(each)
    ]

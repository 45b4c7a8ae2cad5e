"""INFO, CONFIG GET and ROLE: the status of this member in the form of Redis.

Monitoring programs for Redis read these. A field that has a meaning here keeps its usual name.
Everything else is in the section ``raft``, one field for each attribute of `NodeStatus`, and as
JSON in QUORATE.STATUS. Values are numbers or text: booleans are 0 or 1, lists are joined by commas,
and an unknown value is empty.

Caveats: figures are those of this member, not of the cluster. ``redis_version`` is the version of
Redis whose replies are followed, because clients choose by it which commands they use.
"""

import json
import os
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias, cast

import attrs

from quorate._version import __version__  # not of a room, so it has no other path

from ...node.requests.journey import KEPT, SLOW_SECONDS
from ...node.requests.status import MemberAddress, NodeStatus
from ...storage.writing import journal_writer
from ..clients.port_state import KEEPALIVE_SECONDS, PortState
from ..commands.glob import matcher
from ..native import resp_reader
from ..protocol import resp
from ..slots.cluster_map import META
from ..state.ownership import FOREIGN, FROZEN_SLOT
from .shards import leader_first, node_id

__all__ = ["COMPILED", "REDIS_VERSION", "config_get", "info_text", "role_reply", "status_json"]

REDIS_VERSION: Final = "7.4.0"

COMPILED: Final = resp_reader.NATIVE and journal_writer.NATIVE
"""Whether both compiled parts are used."""

_Facts: TypeAlias = dict[str, str | int | float]
_PAGE_BYTES: Final = resource.getpagesize()
_KIB: Final = 1024
_STATM: Final = Path("/proc/self/statm")


def _server(port: PortState, status: NodeStatus) -> _Facts:
    uptime_s = int(status.uptime_s)
    return {
        "redis_version": REDIS_VERSION,
        "redis_mode": "cluster",
        "quorate_version": __version__,
        "quorate_native": int(COMPILED),
        "os": f"{os.uname().sysname} {os.uname().release} {os.uname().machine}",
        "arch_bits": 64,
        "multiplexing_api": "epoll",
        "process_id": os.getpid(),
        "run_id": f"{status.incarnation:040x}"[-40:],
        "tcp_port": port.port,
        "server_time_usec": port.gateway.now_ms() * 1000,
        "uptime_in_seconds": uptime_s,
        "uptime_in_days": uptime_s // 86400,
    }


def _count(port: PortState, command: bytes) -> int:
    if port.gateway.topology.witness:
        return 0
    return int(port.gateway.stale_query(resp.bulk_array([command]), 0)[1:-2])


def _clients(port: PortState, status: NodeStatus) -> _Facts:
    return {
        "connected_clients": len(port.clients),
        "cluster_connections": sum(peer.connected for peer in status.peers),
        "maxclients": port.limits.max_clients,
        "blocked_clients": 0,
        "parked_requests": status.parked,
        "forwarded_requests": status.forwarded,
        "quorate_sessions": _count(port, b"QUORATE.SESSIONS"),
    }


def _memory(_port: PortState, _status: NodeStatus) -> _Facts:
    used = int(_STATM.read_text("ascii").split()[1]) * _PAGE_BYTES
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB
    return {
        "used_memory": used,
        "used_memory_human": _human(used),
        "used_memory_rss": used,
        "used_memory_peak": max(used, peak),
        "used_memory_peak_human": _human(max(used, peak)),
        "maxmemory": 0,
        "maxmemory_human": "0B",
        "maxmemory_policy": "noeviction",
        "mem_allocator": "libc",
    }


def _persistence(_port: PortState, status: NodeStatus) -> _Facts:
    return {
        "loading": 0,
        "async_loading": 0,
        "rdb_changes_since_last_save": 0,
        "rdb_bgsave_in_progress": 0,
        "rdb_last_save_time": status.snapshot_timestamp_ms // 1000,
        "rdb_last_bgsave_status": "err" if status.snapshot_failure else "ok",
        "aof_enabled": 1,
        "aof_rewrite_in_progress": 0,
        "aof_last_write_status": "ok",
        "aof_current_size": status.append_position - status.start_position,
    }


def _stats(port: PortState, _status: NodeStatus) -> _Facts:
    counters = port.counters
    return {
        "total_connections_received": counters.connections,
        "rejected_connections": counters.refused_connections,
        "total_commands_processed": counters.commands,
        "total_net_input_bytes": counters.input_bytes,
        "total_net_output_bytes": counters.output_bytes,
        "client_output_buffer_limit_disconnections": counters.slow_clients,
        "evicted_clients": counters.refused_clients,
        "protocol_errors": counters.protocol_errors,
        "unauthenticated_clients_closed": counters.closed_strangers,
        "redirections": counters.redirections,
        "failed_tls_handshakes": counters.failed_handshakes,
        "acl_members_without_change": port.access.missing_at,
    }


def _replication(port: PortState, status: NodeStatus) -> _Facts:
    topology = port.gateway.topology
    facts: _Facts = {"role": "master" if topology.is_leader else "slave"}
    addresses = {member.member_id: member for member in topology.members}
    leader = addresses.get(topology.leader_id) if topology.leader_id is not None else None
    if not topology.is_leader:
        linked = {peer.member_id: peer.connected for peer in status.peers}
        up = leader is not None and linked.get(leader.member_id, False)
        facts |= {
            "master_host": leader.host if leader else "",
            "master_port": _port_of(leader) if leader else 0,
            "master_link_status": "up" if up else "down",
            "master_sync_in_progress": 0,
            "slave_repl_offset": status.append_position,
            "slave_read_only": 1,
        }
    # Clients read from the replicas that they find here, so a witness is left out.
    shown = {member.member_id for member in topology.members if not member.witness}
    known = [peer for peer in status.peers if peer.connected and peer.member_id in shown]
    peers = known if topology.is_leader else []
    facts["connected_slaves"] = len(peers)
    for index, peer in enumerate(peers):
        place, lag = addresses[peer.member_id], round(peer.last_heard_s or 0)
        facts[f"slave{index}"] = (
            f"ip={place.host},port={_port_of(place)},state=online,"
            f"offset={max(peer.append_position, 0)},lag={lag}"
            f"{',standby=1' if place.standby else ''}"
        )
    return facts | {
        "master_replid": node_id(status.cluster, -1),
        "master_repl_offset": status.commit_position,
        "repl_backlog_active": 1,
        "repl_backlog_first_byte_offset": status.start_position,
    }


def _port_of(member: MemberAddress) -> int:
    return member.client_port or member.tls_port


def _raft(_port: PortState, status: NodeStatus) -> _Facts:
    """Show every field of `NodeStatus`: a new field needs no line here."""
    facts: _Facts = {}
    for name, value in attrs.asdict(status, recurse=False).items():
        if name != "peers":
            facts[f"raft_{name}"] = _info_value(value)
    for peer in status.peers:
        heard = "" if peer.last_heard_s is None else f"{peer.last_heard_s:.3f}"
        facts[f"raft_peer{peer.member_id}"] = (
            f"connected={int(peer.connected)},append_position={peer.append_position},"
            f"last_heard_s={heard}"
        )
    return facts


def _info_value(value: object) -> str | int | float:
    """Return a value in the form that programs which read INFO expect."""
    match value:
        case None:
            return ""
        case bool():
            return int(value)
        case tuple():
            return ",".join(str(one) for one in cast("tuple[object, ...]", value))
        case int() | float():
            return value
        case _:
            return str(value)


def _cpu(_port: PortState, _status: NodeStatus) -> _Facts:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return {"used_cpu_sys": round(own.ru_stime, 6), "used_cpu_user": round(own.ru_utime, 6)}


def _keyspace(port: PortState, _status: NodeStatus) -> _Facts:
    count, expiring = _count(port, b"DBSIZE"), _count(port, b"QUORATE.EXPIRING")
    return {"db0": f"keys={count},expires={expiring},avg_ttl=0"} if count else {}


def _cluster(_port: PortState, _status: NodeStatus) -> _Facts:
    return {"cluster_enabled": 1}


def _partition(port: PortState, _status: NodeStatus) -> _Facts:
    """Show what this member's partition owns, and how new its map is."""
    if (signposts := port.signposts) is None or signposts.partition == META:
        return {}
    states, found = signposts.ownership.states, signposts.map
    facts = signposts.ownership.facts()
    return {
        "partition": signposts.partition,
        "partition_map_epoch": found.epoch if found is not None else 0,
        "partition_owned_slots": len(states) - states.count(FOREIGN),
        "partition_frozen_slots": states.count(FROZEN_SLOT),
        "partition_importing": len(cast("list[object]", facts["importing"])),
        "partition_stale_slots": str(facts["stale"]),
    }


_SECTIONS: Final[dict[str, Callable[[PortState, NodeStatus], _Facts]]] = {
    "server": _server,
    "clients": _clients,
    "memory": _memory,
    "persistence": _persistence,
    "stats": _stats,
    "replication": _replication,
    "raft": _raft,
    "cpu": _cpu,
    "cluster": _cluster,
    "partition": _partition,
    "keyspace": _keyspace,
}
_ALL: Final = frozenset((b"all", b"default", b"everything"))


def info_text(names: Sequence[bytes], port: PortState) -> bytes:
    """Return the text of INFO; without names all sections. Unknown names are ignored."""
    wanted = {name.lower() for name in names}
    status = port.gateway.status()
    texts: list[str] = []
    for name, section in _SECTIONS.items():
        if not wanted or wanted & _ALL or name.encode() in wanted:
            lines = [f"{key}:{value}\r\n" for key, value in section(port, status).items()]
            if name == "partition" and not lines:
                continue
            texts.append(f"# {name.capitalize()}\r\n" + "".join(lines))
    return "\r\n".join(texts).encode()


def _human(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "K", "M"):
        if size < _KIB:
            return f"{size:.2f}{unit}"
        size /= _KIB
    return f"{size:.2f}G"


def settings(port: PortState) -> dict[str, str]:
    """Return what CONFIG GET knows: the settings that client libraries ask for."""
    return {
        "appendfsync": "always",
        "appendonly": "yes",
        "bind": port.host,
        "cluster-enabled": "yes",
        # As in Redis. With anything else coredis asks every member, and gives up at a dead one.
        "cluster-require-full-coverage": "yes",
        "databases": "1",
        "maxclients": str(port.limits.max_clients),
        "maxmemory": "0",
        "maxmemory-policy": "noeviction",
        "notify-keyspace-events": "",
        "port": str(port.port),
        "proto-max-bulk-len": str(port.limits.request_bytes),
        "requirepass": "",
        "save": "",
        "slowlog-log-slower-than": str(round(SLOW_SECONDS * 1_000_000)),
        "slowlog-max-len": str(KEPT),
        "tcp-keepalive": str(KEEPALIVE_SECONDS),
        "timeout": "0",
        "tls-port": str(port.tls_port),
    }


def config_get(patterns: Sequence[bytes], port: PortState, *, resp3: bool) -> bytes:
    """Answer CONFIG GET; as in Redis, a plain name comes back as the client spelt it."""
    known = {name.encode(): value.encode() for name, value in settings(port).items()}
    spelt = {pattern.lower(): pattern for pattern in reversed(patterns)}
    matches = [matcher(pattern) for pattern in spelt]
    pairs = [
        (resp.bulk(spelt.get(name, name)), resp.bulk(value))
        for name, value in known.items()
        if any(fits(name) for fits in matches)
    ]
    return resp.mapping(pairs, resp3=resp3)


def role_reply(port: PortState) -> bytes:
    """Answer ROLE: as a master with its replicas, or as a replica of the leader."""
    topology, status = port.gateway.topology, port.gateway.status()
    leader, *others = leader_first(topology)
    if topology.is_leader:
        offsets = {peer.member_id: peer.append_position for peer in status.peers if peer.connected}
        replicas = [
            resp.bulk_array(
                [
                    member.host.encode(),
                    b"%d" % _port_of(member),
                    b"%d" % max(offsets[member.member_id], 0),
                ]
            )
            for member in others
            if member.member_id in offsets
        ]
        master = resp.integer(status.commit_position)
        return resp.array([resp.bulk(b"master"), master, resp.array(replicas)])
    linked = {peer.member_id for peer in status.peers if peer.connected}
    connected = topology.leader_id is not None and leader.member_id in linked
    return resp.array(
        [
            resp.bulk(b"slave"),
            resp.bulk(leader.host.encode()),
            resp.integer(_port_of(leader)),
            resp.bulk(b"connected" if connected else b"connect"),
            resp.integer(status.append_position),
        ]
    )


def status_json(port: PortState, since: int | None = None) -> bytes:
    """Return the status of the member, with its topology, as one JSON object.

    Args:
        port: of the member.
        since: add rates, quantiles and the steps of elections from this one on; None for neither.
    """
    status = attrs.asdict(port.gateway.status())
    status["topology"] = attrs.asdict(port.gateway.topology)
    if since is not None:
        status["recent"] = port.gateway.recent(since)
    return json.dumps(status).encode()

"""A picture of a cluster as one JSON object, for programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import attrs

if TYPE_CHECKING:
    from .model import Cluster, Seen, Step

MOST_STEPS: Final = 50
"""Steps in one object. Smaller: those of an election do not fit."""


def as_json(cluster: Cluster, since: int) -> str:
    """Return the picture.

    Args:
        cluster: all that is known.
        since: how many steps were in earlier objects; the later ones are in this one.
    """
    leader = cluster.leader
    new = min(cluster.step_count - since, MOST_STEPS, len(cluster.steps))
    steps = list(cluster.steps)[len(cluster.steps) - new :]
    rate = cluster.rates[-1] if cluster.rates and cluster.counts_entries else None
    return json.dumps(
        {
            "at": round(cluster.now, 3),
            "started_ms": cluster.started_ms,
            "cluster": cluster.name,
            "leader": leader.member_id if leader else None,
            "leaders": [each.member_id for each in cluster.leaders],
            "term": leader.term if leader else None,
            "may_fail": cluster.spare,
            "entries_per_second": None if rate is None else round(rate, 1),
            "commands_per_second": _rounded(cluster.commands),
            "bytes_per_second": round(cluster.bytes_rate, 1),
            "members": [_member(cluster, each) for _, each in sorted(cluster.members.items())],
            "transitions": [_step(each) for each in steps],
        },
        separators=(",", ":"),
    )


def _member(cluster: Cluster, seen: Seen) -> dict[str, Any]:
    since = seen.state_since
    return {
        "member": seen.member_id,
        "as_of": _rounded(cluster.age(seen)),
        "stale": cluster.is_stale(seen),
        "trouble": seen.trouble or None,
        "role": seen.role or None,
        "state": seen.state or None,
        "dwell": None if since is None else _rounded(max(cluster.now - since, 0.0)),
        "term": _known(seen.term),
        "leader": seen.leader,
        "append": _known(seen.append),
        "commit": _known(seen.commit),
        "applied": _known(seen.applied),
        "snapshot": _known(seen.snapshot),
        "lag": cluster.lag(seen),
        "commands_per_second": _rounded(seen.commands),
        "p50": seen.half,
        "p99": seen.most,
        "loop_delay": seen.delay,
        "etcd": attrs.asdict(seen.etcd) if seen.etcd else None,
        "last_heard": _rounded(cluster.last_heard(seen.member_id)),
    }


def _step(step: Step) -> dict[str, Any]:
    return attrs.asdict(step) | {"at": round(step.at, 3)}


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _known(number: int) -> int | None:
    return None if number < 0 else number

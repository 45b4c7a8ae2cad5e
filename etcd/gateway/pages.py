"""What is asked for with GET: version, health and figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...metrics.exposition import CONTENT_TYPE
from ..codes import NO_LEADER, Code, EtcdError
from ..messages import rpc_pb2 as rpc
from ..messages.requests import Op
from ..services.alarms import alarms_of
from ..services.version import CLUSTER_VERSION, VERSION
from .answers import Answer, error_answer, text
from .json_replies import to_json

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import TypeAlias

    from ..services.context import PortContext

__all__ = ["PAGES"]

_STATUS: Final = "/etcdserverpb.Maintenance/Status"
_TEXT: Final = (("content-type", "text/plain; charset=utf-8"),)

if TYPE_CHECKING:
    _Page: TypeAlias = Callable[[PortContext, Mapping[str, str], str], Awaitable[Answer]]


async def _version(_context: PortContext, _query: Mapping[str, str], _token: str) -> Answer:
    # Patroni takes each part for a number.
    versions = {"etcdserver": VERSION, "etcdcluster": CLUSTER_VERSION}
    return Answer(200, to_json(versions), (("content-type", "application/json"),))


async def _health(context: PortContext, query: Mapping[str, str], _token: str) -> Answer:
    # `exclude` names one that a caller does not mind. `etcdctl` needs none of this: it asks itself.
    for alarm in _alarms(context):
        if alarm != query.get("exclude"):
            return Answer(503, to_json({"health": "false", "reason": f"ALARM {alarm}"}), _TEXT)
    error = await _read(context, serializable=query.get("serializable") == "true")
    if error is None:
        return Answer(200, to_json({"health": "true", "reason": ""}), _TEXT)
    no_leader = error.text == NO_LEADER[1]
    reason = "RAFT NO LEADER" if no_leader else f"RANGE ERROR:{error.text}"
    return Answer(503, to_json({"health": "false", "reason": reason}), _TEXT)


async def _livez(context: PortContext, query: Mapping[str, str], _token: str) -> Answer:
    checks = {"serializable_read": await _read(context, serializable=True)}
    return _checked(query, checks)


async def _readyz(context: PortContext, query: Mapping[str, str], _token: str) -> Answer:
    damaged = "CORRUPT" in _alarms(context)
    checks = {
        "data_corruption": EtcdError(Code.DATA_LOSS, "alarm CORRUPT") if damaged else None,
        "serializable_read": await _read(context, serializable=True),
        "linearizable_read": await _read(context, serializable=False),
    }
    return _checked(query, checks)


def _checked(query: Mapping[str, str], checks: Mapping[str, EtcdError | None]) -> Answer:
    lines = [
        f"[+]{name} ok" if error is None else f"[-]{name} failed: {error.text}"
        for name, error in checks.items()
    ]
    if any(checks.values()):
        return text(503, "\n".join(lines))
    return text(200, "\n".join([*lines, "ok"] if "verbose" in query else ["ok"]))


def _alarms(context: PortContext) -> list[str]:
    return [rpc.AlarmType.Name(each.alarm) for each in alarms_of(context.backend)]


async def _read(context: PortContext, *, serializable: bool) -> EtcdError | None:
    """Read a key; return the error if it can't be read."""
    request = rpc.RangeRequest(key=b"health", serializable=serializable)
    try:
        await context.backend.call(Op.RANGE, request.SerializeToString())
    except EtcdError as error:
        return error
    return None


async def _metrics(context: PortContext, _query: Mapping[str, str], token: str) -> Answer:
    # They have names of members and of users' commands, as a status has.
    try:
        await context.admit_when_known(token, _STATUS, b"")
    except EtcdError as error:
        return error_answer(error)
    return Answer(200, context.figures().encode(), (("content-type", CONTENT_TYPE),))


PAGES: Final[dict[str, _Page]] = {
    "/version": _version,
    "/health": _health,
    "/livez": _livez,
    "/readyz": _readyz,
    "/metrics": _metrics,
}
"""What answers a GET, by its path."""

"""What is asked for with GET: version, health and figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...metrics.exposition import CONTENT_TYPE
from ..codes import NO_LEADER, EtcdError
from ..messages import rpc_pb2 as rpc
from ..messages.requests import Op
from .answers import Answer, error_answer, text
from .json_replies import to_json

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import TypeAlias

    from ..services.context import PortContext

__all__ = ["PAGES", "VERSION"]

VERSION: Final = "3.5.21"
"""The version that clients are to take us for. Older than 3.5.13: Kubernetes' clients refuse us.
Newer than 3.5: they expect methods that are not here, and errors of another form."""

_STATUS: Final = "/etcdserverpb.Maintenance/Status"
_TEXT: Final = (("content-type", "text/plain; charset=utf-8"),)

if TYPE_CHECKING:
    _Page: TypeAlias = Callable[[PortContext, Mapping[str, str], str], Awaitable[Answer]]


async def _version(_context: PortContext, _query: Mapping[str, str], _token: str) -> Answer:
    # Patroni takes each part for a number.
    versions = {"etcdserver": VERSION, "etcdcluster": "3.5.0"}
    return Answer(200, to_json(versions), (("content-type", "application/json"),))


async def _health(context: PortContext, query: Mapping[str, str], _token: str) -> Answer:
    error = await _read(context, serializable=query.get("serializable") == "true")
    if error is None:
        return Answer(200, to_json({"health": "true", "reason": ""}), _TEXT)
    no_leader = error.text == NO_LEADER[1]
    reason = "RAFT NO LEADER" if no_leader else f"RANGE ERROR:{error.text}"
    return Answer(503, to_json({"health": "false", "reason": reason}), _TEXT)


async def _livez(context: PortContext, query: Mapping[str, str], _token: str) -> Answer:
    return await _probe(context, query, {"serializable_read": True})


async def _readyz(context: PortContext, query: Mapping[str, str], _token: str) -> Answer:
    return await _probe(context, query, {"serializable_read": True, "linearizable_read": False})


async def _probe(
    context: PortContext, query: Mapping[str, str], checks: Mapping[str, bool]
) -> Answer:
    lines: list[str] = []
    failed = False
    for name, serializable in checks.items():
        error = await _read(context, serializable=serializable)
        failed = failed or error is not None
        lines.append(f"[+]{name} ok" if error is None else f"[-]{name} failed: {error.text}")
    if failed:
        return text(503, "\n".join(lines))
    return text(200, "\n".join([*lines, "ok"] if "verbose" in query else ["ok"]))


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

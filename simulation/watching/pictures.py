"""Pictures of a simulated cluster, for its recording: how far each member is, and all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...node import Member, Service
    from ...recordings import Fields
    from ..machines.host import Host
    from .trace import Trace

POSITIONS_SECONDS: Final = 0.1
"""Between two notes of one member's positions. Less: larger files. More: a coarser picture."""


class Pictures:
    """Looks at members for a recording, and changes nothing.

    Args:
        trace: is given what is seen.
        hosts: of the members, by id.
    """

    def __init__(self, trace: Trace, hosts: Mapping[int, Host[Service]]) -> None:
        self._trace = trace
        self._hosts = hosts
        self._seen: dict[int, tuple[float, dict[str, int]]] = {}

    def look(self, i: int) -> None:
        """Note the positions of a member if they have changed, and were not noted just now."""
        member, now = self._hosts[i].member, trio.current_time()
        at, before = self._seen.get(i, (-POSITIONS_SECONDS, {}))
        if member is None or now - at < POSITIONS_SECONDS:
            return
        positions = positions_of(member)
        if positions != before:
            self._seen[i] = now, positions
            self._trace.show("positions", i, **positions)

    def now(self) -> Fields:
        """Return the fields of a keyframe."""
        return {"members": {str(i): self._member(i) for i in self._hosts}}

    def _member(self, i: int) -> dict[str, Any]:
        member = self._hosts[i].member
        status = None if member is None else attrs.asdict(member.status())
        return {"status": status, "by": i, "heard_ms": 0}


def positions_of(member: Member) -> dict[str, int]:
    """Return how far a member is, in bytes of the log; the snapshot is -1 without one."""
    newest = member.snapshots.newest
    return {
        "append": member.store.append_position,
        "commit": member.applier.commit_position,
        "applied": member.applier.applied_position,
        "snapshot": newest.position if newest else -1,
    }

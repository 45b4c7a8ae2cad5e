"""The alarms of this member: they begin and end by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..messages import rpc_pb2 as rpc

if TYPE_CHECKING:
    from ..backend.backend import Backend

__all__ = ["alarms_of"]


def alarms_of(backend: Backend) -> list[rpc.AlarmMember]:
    """Return the alarms of this member: its disk is full, or something there is damaged."""
    found = backend.gateway.status()
    member = backend.member_id_of(found.member_id)
    kinds = [*[rpc.NOSPACE] * found.disk_full, *[rpc.CORRUPT] * bool(found.damage)]
    return [rpc.AlarmMember(memberID=member, alarm=kind) for kind in kinds]

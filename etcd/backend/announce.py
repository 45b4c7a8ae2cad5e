"""A member says in the log where it listens, so that every member can tell clients.

Clients ask one member for all of them, and from then on know no other addresses. So what is in the
log must be right before anybody asks: it is compared at each start, with the leader's state, since
that of this member may be old.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from ..codes import EtcdError
from ..messages import rpc_pb2 as rpc
from ..messages.requests import Op

if TYPE_CHECKING:
    from .backend import Backend

__all__ = ["announce"]

_PAUSE_S: Final = 1.0
"""Between two attempts. Shorter: a cluster without a leader is asked for nothing. Longer: clients
learn later of a member that has just started."""


async def announce(backend: Backend, name: str, urls: tuple[str, ...]) -> None:
    """Return once the log says where this member listens.

    Args:
        backend: of this member.
        name: of the member, for clients.
        urls: where it listens.
    """
    own = backend.gateway.topology.own_id
    wanted = rpc.Announcement(member_id=own, name=name, client_urls=urls)
    while True:
        try:
            _, body = await backend.ask(Op.ANNOUNCEMENTS, b"")
            if wanted in rpc.Announcements.FromString(body).members:
                return
            await backend.ask(Op.ANNOUNCE, wanted.SerializeToString())
        except EtcdError:
            await trio.sleep(_PAUSE_S)

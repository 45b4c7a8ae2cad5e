"""The service Auth: tokens for the users of the cluster. Users are changed by Redis's commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import trio

from ..codes import Code, EtcdError
from ..messages import rpc_pb2 as rpc
from .context import Everybody

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from .call import Call, UnaryMethod, Users

__all__ = [
    "REFUSED",
    "auth_disable",
    "auth_enable",
    "auth_status",
    "authenticate",
    "refuse",
    "role_list",
    "user_list",
]

_RULES: Final = "'~prefix*' +@read +@write"
_GRANT: Final = f"there are no roles; users get keys and commands by ACL SETUSER name {_RULES}"
_SET: Final = f"users are made and changed by ACL SETUSER name on '>password' {_RULES}"

REFUSED: Final = {
    "UserAdd": _SET,
    "UserChangePassword": _SET,
    "UserDelete": "users are removed by ACL DELUSER name",
    "UserGet": "users are shown by ACL GETUSER name",
    "UserGrantRole": _GRANT,
    "UserRevokeRole": _GRANT,
    "RoleAdd": _GRANT,
    "RoleDelete": _GRANT,
    "RoleGet": _GRANT,
    "RoleGrantPermission": _GRANT,
    "RoleRevokePermission": _GRANT,
}
"""Methods that change users or roles, or show one, and how that is done here."""
_NO_USERS: Final = (
    Code.FAILED_PRECONDITION,
    "etcdserver: it is on once ACL SETUSER, at the port of Redis's clients, restricts default",
)
_NO_DISABLE: Final = (
    Code.FAILED_PRECONDITION,
    "etcdserver: it is off once ACL SETUSER, at the port of Redis's clients, lets default do all",
)


async def authenticate(call: Call, request: Message) -> bytes:
    """Serve ``Authenticate``.

    Raises:
        EtcdError: name or password is wrong, or there is no authentication.
    """
    asked = cast("rpc.AuthenticateRequest", request)
    token = await _users(call).authenticate(asked.name, asked.password, call.peer)
    return _header(call) + rpc.AuthenticateResponse(token=token).SerializeToString()


async def auth_status(call: Call, _request: Message) -> bytes:
    """Serve ``AuthStatus``."""
    await trio.lowlevel.checkpoint()
    users = _users(call)
    version = max(users.version, 0)  # they may just have become unknown
    reply = rpc.AuthStatusResponse(enabled=users.enabled, authRevision=version)
    return _header(call) + reply.SerializeToString()


async def auth_enable(call: Call, _request: Message) -> bytes:
    """Serve ``AuthEnable``, which only says whether it is so already."""
    await trio.lowlevel.checkpoint()
    if not _users(call).enabled:
        raise EtcdError(*_NO_USERS)
    return _header(call)


async def auth_disable(call: Call, _request: Message) -> bytes:
    """Serve ``AuthDisable``, which only says whether it is so already."""
    await trio.lowlevel.checkpoint()
    if _users(call).enabled:
        raise EtcdError(*_NO_DISABLE)
    return _header(call)


async def user_list(call: Call, _request: Message) -> bytes:
    """Serve ``UserList``."""
    await trio.lowlevel.checkpoint()
    return _header(call) + rpc.AuthUserListResponse(users=_users(call).names).SerializeToString()


async def role_list(call: Call, _request: Message) -> bytes:
    """Serve ``RoleList``: there are none."""
    await trio.lowlevel.checkpoint()
    return _header(call)


def refuse(words: str) -> UnaryMethod:
    """Return a method that names how this is done here.

    Args:
        words: of `REFUSED`.
    """

    async def refused(_call: Call, _request: Message) -> bytes:
        await trio.lowlevel.checkpoint()
        text = f"etcdserver: {words}, at the port of Redis's clients"
        raise EtcdError(Code.UNIMPLEMENTED, text)

    return refused


def _users(call: Call) -> Users:
    return call.users or Everybody()


def _header(call: Call) -> bytes:
    return call.backend.header(call.backend.state.revision)

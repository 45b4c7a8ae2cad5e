"""The users at a witness, which has no tables: it asks the leader for them.

A witness takes no reads of its own, but it forwards what clients send. So it has to know the users
like any other member. While this member is a witness, it asks for ACL LIST over and over, and takes
over the answer. A change of users reaches its sessions one period later.

Before the first answer, and while there is none for some periods, a client may only ask about the
member: no keys, and nothing that changes the cluster.
"""

import logging
from typing import Final, Never

import trio

from ...errors import RequestError
from ...node.requests.request import Request, RequestKind
from ..access.rules import NOBODY, RuleError, User, apply
from ..access.users import DEFAULT_NAME
from ..protocol import resp
from ..protocol.resp import parse_replies_untrusted
from .port_state import PortState

__all__ = ["UNKNOWN", "follow_users"]

_LIST: Final = resp.bulk_array([b"ACL", b"LIST"])
_PATIENCE: Final = 3
"""Periods without an answer after which the users count as unknown. Fewer, and one election ends
all sessions; more, and a removed user may go on for longer."""
_HEAD: Final = 2  # "user" and the name

_HARMLESS: Final = b"+@connection +info +cluster +command +role +time +quorate.status +config|get"
UNKNOWN: Final = apply(NOBODY, [b"on", b"nopass", *_HARMLESS.split()])
"""The user `default` while nothing is known of the users."""

_log = logging.getLogger("quorate.keyvalue")


async def follow_users(state: PortState) -> Never:
    """Keep the users of a witness up to date, for ever; do nothing while it is none."""
    period, failures, known = state.access.spread_s / 2, 0, False
    while True:
        if not state.gateway.topology.witness:
            # What it was before had tables, and what it will be has them as well.
            failures, known = 0, False
        elif (users := await _asked(state)) is not None:
            state.access.users.replace(users)
            failures, known = 0, True
        else:
            failures += 1
            if not known or failures >= _PATIENCE:
                state.access.users.replace({DEFAULT_NAME: UNKNOWN})
        # A period of 0 would leave no time to the other tasks.
        await trio.sleep(max(period, 0.1))


async def _asked(state: PortState) -> dict[bytes, User] | None:
    """Ask the leader for the users; None if it does not answer."""
    answered = trio.Event()
    results: list[bytes | RequestError] = []

    def done(result: bytes | RequestError) -> None:
        results.append(result)
        answered.set()

    request = Request(RequestKind.QUERY, _LIST, 0, done)
    state.gateway.submit(request)
    try:
        await answered.wait()
    finally:
        request.cancel()
    (result,) = results
    return _parse_untrusted(result) if isinstance(result, bytes) else None


def _parse_untrusted(reply: bytes) -> dict[bytes, User] | None:
    """Parse the reply to ACL LIST; None if it is none, or of another version."""
    (lines,) = parse_replies_untrusted(reply)
    if not isinstance(lines, list):
        return None
    users: dict[bytes, User] = {}
    for line in lines:
        words = line.split(b" ") if isinstance(line, bytes) else []
        try:
            users[words[1]] = apply(NOBODY, words[_HEAD:])
        except (IndexError, RuleError) as error:
            _log.warning("users_not_understood error=%r", error)
            return None
    return users

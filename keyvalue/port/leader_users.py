"""Asks the leader for the users while the member's own state may be too old.

Three kinds of members ask: one that has just started, a new one, and a witness, which has no tables
at all. Why, and what holds until there is an answer: :mod:`..access.directory`.

A member that has lost its leader asks as well, once the cluster has users: one may have been
removed in the meantime. Until it is answered, its clients' commands wait, as for a leader.

The question is a linearizable read, and waits for a leader like any other. Its answer has the
version of the users. Once the member's own state has that version or a newer one, it asks no more.
A witness asks over and over, so a change reaches its sessions one period later.
"""

from typing import Final, Never

import attrs
import trio

from ...errors import KeyValueError, RequestError
from ...node.requests.request import Request, RequestKind
from ...storage.log.batch import MAX_PRINCIPAL
from ..access.rules import DEFAULT, NOBODY, RuleError, User, apply
from ..access.users import DEFAULT_NAME
from ..protocol import resp
from ..protocol.resp import parse_replies_untrusted
from .port_state import PortState

__all__ = ["follow_users"]

_QUESTION: Final = resp.bulk_array([b"QUORATE.USERS"])
_PATIENCE: Final = 3
"""Questions without an answer after which borrowed users count as unknown. Fewer, and one election
ends all sessions at a witness; more, and a removed user may go on for longer."""
_LEAST_PERIOD_S: Final = 0.1
_HEAD: Final = 2  # "user" and the name


@attrs.frozen
class _Answer:
    version: int
    users: dict[bytes, User]


async def follow_users(state: PortState) -> Never:
    """Keep the users of the port new enough, for ever."""
    access, failures = state.access, 0
    # A quarter of the time that a change waits for members: so a member that was cut off has
    # noticed that before a change that it does not know of is answered.
    period = max(access.spread_s / 4, _LEAST_PERIOD_S)
    while True:
        witness = state.gateway.topology.witness
        if access.users.own_version and not (witness or access.hears_leader(state.gateway)):
            access.users.forget()
        if witness or not access.users.settled:
            answer = await _ask(state)
            failures = 0 if answer is not None else failures + 1
            if answer is None:
                if failures >= _PATIENCE:
                    access.users.forget()
                access.end_waits(known=False)
            else:
                # A witness' own version stays what it was when it last had tables.
                if not witness and access.users.own_version >= answer.version:
                    access.users.settle()
                else:
                    access.users.borrow(answer.users)
                access.end_waits(known=True)
        # Commands may wait for the first answer, so that is asked for at once.
        await trio.sleep(period if access.users.known else _LEAST_PERIOD_S)


async def _ask(state: PortState) -> _Answer | None:
    """Ask the leader for the users; None if it does not answer."""
    answered = trio.Event()
    results: list[bytes | RequestError] = []

    def done(result: bytes | RequestError) -> None:
        results.append(result)
        answered.set()

    request = Request(RequestKind.QUERY, _QUESTION, 0, done)
    state.gateway.submit(request)
    try:
        await answered.wait()
    finally:
        request.cancel()
    (result,) = results
    return _parse_untrusted(result) if isinstance(result, bytes) else None


def _parse_untrusted(reply: bytes) -> _Answer | None:
    """Parse the reply to QUORATE.USERS; None if it is an error, or of another version."""
    (answer,) = parse_replies_untrusted(reply)
    match answer:
        case [int(version), list(lines), list(numbers)] if len(lines) == len(numbers):
            pass
        case KeyValueError() if str(answer).startswith("ERR unknown command"):
            # A leader of an earlier version: there are no users in such a cluster.
            return _Answer(0, {DEFAULT_NAME: DEFAULT})
        case _:
            return None
    users: dict[bytes, User] = {}
    for line, number in zip(lines, numbers, strict=True):
        words = line.split(b" ") if isinstance(line, bytes) else []
        try:
            user = apply(NOBODY, words[_HEAD:])
            users[words[1]] = attrs.evolve(user, number=_number_untrusted(number))
        except (IndexError, ValueError, RuleError):
            # A rule that this version does not know may be one that denies.
            return None
    return _Answer(version, users)


def _number_untrusted(number: resp.Reply) -> int:
    if not isinstance(number, int) or not 0 <= number <= MAX_PRINCIPAL:
        raise ValueError(f"a user's number can't be {number!r:.60}")
    return number

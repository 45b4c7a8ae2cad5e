"""Asks the leader for the users, over and over, so that a member's rules are never old.

Why
    A member applies changes of users from the log like any other command. But it may have started
    just now, be cut off, or be far behind, and then it does not know of a user that was removed. A
    leader is heard although the log is behind, so hearing it proves nothing. A linearizable read
    does: its answer has every change that was acknowledged before the question.

What
    The question names the version that the member has. If the leader has the same, it confirms it,
    and no more. If the leader's is newer, the answer has the users, and the port borrows them until
    the member's own state has come as far (:mod:`..access.directory`). A witness, which has no
    tables, borrows them for ever.

When the users are unknown
    At the start, and when the last confirmed question is older than `PortAccess.stale_after_s`.
    Then only harmless commands are executed. All others wait, as for a leader.

A cluster whose state has no users is asked once, at the start. Everybody may do everything there,
with a leader or without.
"""

import math
from typing import Final, Never

import attrs
import trio

from ...errors import KeyValueError, RequestError
from ...node.requests.request import Request, RequestKind
from ...storage.log.batch import MAX_PRINCIPAL
from ..access.rules import DEFAULT, NOBODY, RuleError, User, apply
from ..access.users import DEFAULT_NAME
from ..clients.port_state import PortState
from ..protocol import resp
from ..protocol.resp import parse_replies_untrusted

__all__ = ["follow_users"]

_LEAST_PERIOD_S: Final = 0.1
_TRIES: Final = 3
"""Questions in a row whose answers come too late. Fewer, and one that has waited for a leader makes
commands fail; more, and they wait for longer where the leader is too slow."""
_HEAD: Final = 2  # "user" and the name


@attrs.frozen
class _Answer:
    """What the leader knows; users are None if their version is the one that was asked for."""

    version: int
    users: dict[bytes, User] | None


async def follow_users(state: PortState) -> Never:
    """Keep the users of the port new enough, for ever."""
    access = state.access
    # A quarter of the time that users stay good: one lost question makes nobody wait.
    period = max((access.stale_after_s or access.spread_s) / 4, _LEAST_PERIOD_S)
    while True:
        if _must_ask(state):
            await _confirm(state)
        else:
            access.confirmed_at = math.inf
        # Commands may wait for the first answer, so that is asked for at once.
        await trio.sleep(period if access.users.known else _LEAST_PERIOD_S)


def _must_ask(state: PortState) -> bool:
    users = state.access.users
    return state.gateway.topology.witness or not users.settled or users.own_version > 0


async def _confirm(state: PortState) -> None:
    """Ask, and take over the answer; forget the users if there is none in time."""
    access = state.access
    # When the first user was made, the users were good until now.
    access.confirmed_at = min(access.confirmed_at, trio.current_time())
    for _ in range(_TRIES):
        answer, asked_at = None, trio.current_time()
        # While the users are unknown the question waits for a leader as long as the commands do
        # that wait for its answer.
        with trio.move_on_at(access.good_until if access.users.known else math.inf):
            answer = await _ask(state, access.users.version)
        if answer is None:
            break
        access.confirmed_at = asked_at
        # An answer is only as new as its question, which may have waited for a leader.
        if trio.current_time() < access.good_until:
            _take_over(state, answer)
            break
    access.forget_if_old(trio.current_time())
    access.end_waits(known=access.users.known)


def _take_over(state: PortState, answer: _Answer) -> None:
    users = state.access.users
    # A witness' own version stays what it was when it last had tables.
    if not state.gateway.topology.witness and users.own_version >= answer.version:
        users.settle()
    elif answer.users is not None:
        users.borrow(answer.users, answer.version)


async def _ask(state: PortState, version: int) -> _Answer | None:
    """Ask the leader for the users; None if it does not answer."""
    answered = trio.Event()
    results: list[bytes | RequestError] = []

    def done(result: bytes | RequestError) -> None:
        results.append(result)
        answered.set()

    question = resp.bulk_array([b"QUORATE.USERS", *([b"%d" % version] if version else [])])
    request = Request(RequestKind.QUERY, question, 0, done)
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
        case [int(version)]:
            return _Answer(version, None)
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

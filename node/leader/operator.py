"""An operator's requests to the leader: one at a time, each answered when it is done.

A control request travels like a client's: through any member, forwarded to the leader, parked while
there is none. Its payload is words: a verb and its arguments. They are parsed once, when the
request arrives (`parse_untrusted`); from there on it is an `Order`. So an operator can only ask for
what the grammar has, and nothing inside the member is controlled by text.

WAIT is an exception to "one at a time": it waits for followers, and holds up nothing.
"""

from __future__ import annotations

import re
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Final, Never, TypeAlias, assert_never

import attrs
import trio

from ...errors import NoLeaderError, RefusedError, UnknownOutcomeError
from ..protocol.signal import Signal
from ..state_machine.actions import RESUME, SNAPSHOT, SUSPEND
from .members.orders import (
    Add,
    Demote,
    ListMembers,
    MemberOrder,
    Move,
    Promote,
    Remove,
    parse_member_order_untrusted,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from ...errors import RequestError
    from ..protocol.role import Role
    from ..requests.request import Request
    from ..state import MemberState
    from ..state_machine.actions import Actions
    from ..state_machine.snapshots import Snapshots
    from .handover import Handover
    from .members.reconfiguration import Reconfiguration
    from .replication import Replication
    from .termination import Termination
    from .wait_replicas import ReplicaWaits

MAX_WAITING: Final = 64
"""Requests that wait for the one under way. If smaller, scripts of operators are refused. If
larger, a client that sends nothing else takes more memory."""

_EVEN_IF_BEHIND: Final = "even-if-behind"
_NUMBER: Final = re.compile("[0-9]{1,18}")
_POSITION: Final = re.compile(r"\b(?:at|position) (\d+)")


class Verb(Enum):
    """The requests without arguments."""

    FOUND = "found"
    SNAPSHOT = "snapshot"
    SUSPEND = "suspend"
    RESUME = "resume"
    SHUTDOWN = "shutdown"
    ABORT = "abort"


@attrs.frozen
class Transfer:
    """Hand the leadership to a member.

    Args:
        member_id: the member.
        even_if_behind: although its log may be shorter than the leader's.
    """

    member_id: int
    even_if_behind: bool = False


@attrs.frozen
class Wait:
    """Wait until followers have everything that is committed now.

    Args:
        count: how many followers; None for all, and the answer names those that do not have it.
        seconds: how long at most; infinity for no limit.
    """

    count: int | None
    seconds: float


Order: TypeAlias = Verb | Transfer | Wait | ListMembers | MemberOrder
"""A request of an operator, parsed."""

_VERBS: Final = ("transfer", "wait", "member", *(verb.value for verb in Verb))


def parse_untrusted(payload: bytes, members: Collection[int]) -> Order:
    """Parse a control request.

    Args:
        payload: its words.
        members: the ids of all members.

    Raises:
        RefusedError: it is no request that a leader knows.
    """
    try:
        words = payload.decode("ascii").split()
    except UnicodeDecodeError:
        words = []
    if not words:
        raise RefusedError("a control request is a verb and its arguments, in ASCII")
    verb, arguments = words[0], words[1:]
    given = " ".join(arguments)
    if verb == "transfer":
        return _transfer_untrusted(arguments, members)
    if verb == "wait":
        match arguments:
            case ["all", timeout_ms] if _NUMBER.fullmatch(timeout_ms):
                return Wait(None, int(timeout_ms) / 1000 or float("inf"))
            case [count, timeout_ms] if all(map(_NUMBER.fullmatch, arguments)):
                return Wait(int(count), int(timeout_ms) / 1000 or float("inf"))
            case _:
                expected = "wait takes a number of followers, or all, and one of milliseconds"
                raise RefusedError(f"{expected}, found {given!r}")
    if verb == "member":
        return parse_member_order_untrusted(arguments)
    if verb not in _VERBS:
        known = ", ".join(_VERBS)
        raise RefusedError(f"{verb!r} is none of the things a leader can do: {known}")
    # "found" may name members to begin without. A cluster with a leader is founded already, so they
    # are not looked at: `_do` refuses.
    if arguments and verb != Verb.FOUND.value:
        raise RefusedError(f"{verb} takes no arguments, found {given!r}")
    return Verb(verb)


def _transfer_untrusted(arguments: list[str], members: Collection[int]) -> Transfer:
    match arguments:
        case [member, *rest] if rest in ([], [_EVEN_IF_BEHIND]):
            # Digits only, and not too many: `int` also takes signs, underscores and spaces.
            if _NUMBER.fullmatch(member) and int(member) in members:
                return Transfer(int(member), even_if_behind=bool(rest))
        case _:
            pass
    known = ", ".join(map(str, sorted(members)))
    given = " ".join(arguments)
    raise RefusedError(f"transfer to {given!r}: expected the id of a member, one of {known}")


def positions_of(answer: str) -> list[int]:
    """Return the log positions that a leader's answer names, in its order."""
    return [int(position) for position in _POSITION.findall(answer)]


def _note_begun(request: Request) -> None:
    """Let no error say from now on that nothing was done."""
    done = request.done

    # Our log may have it already, and the next leader may not know that yet.
    def answer(result: bytes | RequestError) -> None:
        if isinstance(result, NoLeaderError | RefusedError):
            result = UnknownOutcomeError(
                f"a former leader has begun it, and it may still be done; since then: {result}"
            )
        done(result)

    request.done = answer


def _may_be_repeated(order: Order, *, begun: bool) -> bool:
    """Say whether the next leader may be asked for what this one has perhaps begun."""
    # An order about members says what is to be. One that names a version would find another one, if
    # it was begun.
    match order:
        case Add() | Promote() | Demote() | Remove() | Move():
            return order.if_version is None or not begun
        case _:
            return False


class Operator:
    """The operator's requests to one leadership.

    Args:
        role: the leader's role; its end may be an answer.
        state: of the member.
        snapshots: of the service.
        actions: executes what the log asks of all members.
        replication: appends such actions.
        handover: hands the leadership over.
        termination: stops the whole cluster.
        waits: answers WAIT.
        reconfiguration: changes the members.
    """

    def __init__(
        self,
        role: Role,
        *,
        state: MemberState,
        snapshots: Snapshots,
        actions: Actions,
        replication: Replication,
        handover: Handover,
        termination: Termination,
        waits: ReplicaWaits,
        reconfiguration: Reconfiguration,
    ) -> None:
        self._role = role
        self._state = state
        self._snapshots = snapshots
        self._actions = actions
        self._replication = replication
        self._handover = handover
        self._termination = termination
        self._waits = waits
        self._reconfiguration = reconfiguration
        self._waiting: deque[tuple[Request, Order]] = deque()
        self._running: tuple[Request, Order] | None = None
        self._asked = Signal()

    @property
    def busy(self) -> bool:
        """Whether a request waits or is under way."""
        return bool(self._running or self._waiting)

    def submit(self, request: Request) -> None:
        """Take a request; those before it are done first, except WAIT, which holds up nothing."""
        try:
            # With our own id: a transfer to the leader itself is done already, and no error.
            members = self._state.membership.ids
            order = parse_untrusted(request.payload, members)
        except RefusedError as error:
            request.done(error)
            return
        # It may wait for minutes, and requests behind it would wait as long.
        if isinstance(order, Wait):
            self._waits.submit(request, order.count, order.seconds)
        elif isinstance(order, ListMembers):
            # At once: it is how an operator sees how far the order under way is.
            request.done(self._reconfiguration.listed().encode())
        elif len(self._waiting) >= MAX_WAITING:
            request.done(RefusedError(f"{MAX_WAITING} control requests wait already"))
        else:
            self._waiting.append((request, order))
            self._asked.notify()

    def surrender(self) -> list[Request]:
        """Answer the request under way; return those that were not begun."""
        # Taken over from `run`, which sees that and does not answer a second time.
        running, self._running = self._running, None
        ended = self._role.ended
        waiting = [request for request, _ in self._waiting]
        if running is not None and ended is not None:
            request, order = running
            begun = self._reconfiguration.begun
            if _may_be_repeated(order, begun=begun):
                if begun:
                    _note_begun(request)
                waiting.insert(0, request)
            # Only a handover ends a leadership in order. For any other request it came between.
            elif ended.in_order and isinstance(order, Transfer):
                request.done(ended.reason.encode())
            else:
                request.done(UnknownOutcomeError(f"the leadership has ended: {ended.reason}"))
        self._waiting.clear()
        return [*waiting, *self._waits.surrender()]

    async def run(self) -> Never:
        """Do what is asked for, one request after the other; until cancelled."""
        while True:
            while not self._waiting:
                await self._asked.wait()
            # Nothing may be appended while another member is asked to take over.
            await self._handover.idle()
            running = self._running = self._waiting.popleft()
            request, order = running
            try:
                # Any other exception is a bug and must end the member.
                answer: bytes | RequestError = (await self._do(order, request.principal)).encode()
            except (RefusedError, UnknownOutcomeError) as error:
                answer = error
            if self._running is running:  # else the leadership has ended, which answered it
                self._running = None
                request.done(answer)

    async def _do(self, order: Order, principal: int) -> str:
        """Do what an operator asks for; return what was done, in words.

        Args:
            order: what is asked for.
            principal: the operator's number, for the entries that this appends.

        Raises:
            RefusedError: it cannot be done; nothing has changed.
        """
        match order:
            case Transfer():
                return await self._transfer(order)
            case Verb.FOUND:
                # Only a member that waits for a new cluster can do that (`membership.founding`).
                # Nothing else yields here: many such requests must not hold up the event loop.
                await trio.lowlevel.checkpoint()
                raise RefusedError(
                    "the cluster is founded already. A member that was left out joins when it is "
                    "started; one that has lost its disk joins with quorate recover"
                )
            case Verb.SNAPSHOT:
                return await self._snapshot(principal)
            case Verb.SUSPEND:
                return await self._set_suspended(principal, suspended=True)
            case Verb.RESUME:
                return await self._set_suspended(principal, suspended=False)
            case Verb.SHUTDOWN:
                snapshot = await self._snapshot(principal)
                await self._handover.idle()  # one may have begun during the snapshot
                return f"{snapshot}; {await self._termination.run()}"
            case Verb.ABORT:
                return await self._termination.run()
            case Add() | Promote() | Demote() | Remove() | Move():
                return await self._reconfiguration.do(order, principal)
            case Wait() | ListMembers():  # pragma: no cover - `submit` has handled them
                raise AssertionError(f"{order} is not done in turn")
            case _:
                assert_never(order)

    async def _transfer(self, order: Transfer) -> str:
        """Hand the leadership over, unless the member leads already."""
        target = order.member_id
        if target != self._state.member_id:
            # The end of the role is the answer: see `surrender`.
            behind = order.even_if_behind
            await self._handover.to(target, even_if_behind=behind, by_operator=True)
        return f"member {target} leads already"

    async def _snapshot(self, principal: int) -> str:
        """Have all members take a snapshot at one position; wait for our own."""
        snapshots = self._snapshots
        if snapshots.service is None:
            raise RefusedError("this service has no snapshots")
        # A member that still writes one skips the next (`Snapshots.cut`), so we would ask in vain.
        if snapshots.writing is not None:
            raise RefusedError("a snapshot is being taken already")
        began = trio.current_time()
        position = self._replication.append_action(SNAPSHOT, principal)
        if await snapshots.taken(position) is None:
            raise RefusedError(f"no snapshot at {position}: {snapshots.failure or 'see the log'}")
        return f"snapshot at {position}, after {trio.current_time() - began:.1f} s"

    async def _set_suspended(self, principal: int, *, suspended: bool) -> str:
        """Have the cluster take no commands under any leader, or take them again; reads go on."""
        if self._state.suspended is suspended:
            now = "suspended already" if suspended else "not suspended"
            raise RefusedError(f"the cluster is {now}")
        action = SUSPEND if suspended else RESUME
        position = self._replication.append_action(action, principal)
        # The answer waits until it is applied here: only then the next command is refused.
        while self._state.suspended is not suspended:
            await self._actions.changed.wait()
        return f"{'suspended' if suspended else 'resumed'} at {position}"

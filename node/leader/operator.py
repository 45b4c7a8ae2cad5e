"""What an operator may ask the leader to do: one thing at a time, answered when it is done.

A control request travels like a client's: through any member, forwarded to the leader, parked
while there is none. Its payload is words: a verb and its arguments.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, Final, Never

import trio

from ...errors import RefusedError, UnknownOutcomeError
from ...transport import AdmissionRequest, TimeoutNow
from ..protocol.role import Signal, look_again
from ..state_machine import actions
from .grant_admission import on_admission_request
from .termination import Termination
from .wait_replicas import Replicas

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ...transport import TerminationAck
    from ..requests.request import Request
    from .follower_progress import Follower
    from .leadership import Leadership

MAX_WAITING: Final = 64
EVEN_IF_BEHIND: Final = "even-if-behind"
BY_PRIORITY: Final = "by-priority"
WAIT: Final = b"wait "
DISK_STALLED: Final = "disk-stalled"
_POSITION: Final = re.compile(r"\b(?:at|position) (\d+)")


def positions_of(answer: str) -> list[int]:
    """Return the positions of the log that a leader's answer names, in its order."""
    return [int(found) for found in _POSITION.findall(answer)]


class Controls:
    """The control requests of one leadership.

    Attributes:
        termination: of the whole cluster.
        replicas: those that wait until followers have what is committed.
        successor: the member that we have asked to take over, as long as we wait for it.
    """

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._waiting: deque[Request] = deque()
        self._running: Request | None = None
        self.successor: int | None = None
        self.termination = Termination(leadership)
        self.replicas = Replicas(leadership)
        self._asked = Signal()
        self._ruled = 0
        self._verbs: dict[str, Callable[[list[str]], Awaitable[str]]] = {
            "found": self._found,
            "transfer": self._transfer,
            "snapshot": self._snapshot,
            "suspend": self._suspend,
            "resume": self._resume,
            "shutdown": self._shutdown,
            "abort": self._abort,
        }

    def submit(self, request: Request) -> None:
        """Take a request; those before it are done first, but for those that wait for followers."""
        if request.payload.startswith(WAIT):
            try:
                words = _words_untrusted(request.payload)
            except RefusedError as error:
                request.done(error)
            else:
                self.replicas.submit(request, words[1:])
            return
        if len(self._waiting) >= MAX_WAITING:
            request.done(RefusedError(f"{MAX_WAITING} control requests wait already"))
            return
        self._waiting.append(request)
        self._asked.notify()

    def on_follower(self, follower: Follower, message: AdmissionRequest | TerminationAck) -> None:
        """Hear what a follower asks for, or has done."""
        if isinstance(message, AdmissionRequest):
            on_admission_request(self._leadership, follower, message)
        else:
            self.termination.on_ack(follower.member_id, message)

    def surrender(self) -> list[Request]:
        """End the one that runs; return those that were not begun."""
        running, self._running = self._running, None
        ended = self._leadership.ended
        if running is not None and ended is not None:
            if ended.in_order:
                running.done(ended.reason.encode())
            else:
                running.done(UnknownOutcomeError(f"the leadership has ended: {ended.reason}"))
        waiting = [*self._waiting, *self.replicas.surrender()]
        self._waiting.clear()
        return waiting

    async def run(self) -> Never:
        """Do what is asked for; until cancelled."""
        while True:
            while not self._waiting:
                await self._asked.wait()
            request = self._running = self._waiting.popleft()
            try:
                answer: bytes | RefusedError = (await self._do(request.payload)).encode()
            except RefusedError as error:
                answer = error
            if self._running is request:  # else the leadership has ended, and so it was answered
                self._running = None
                request.done(answer)

    async def _do(self, payload: bytes) -> str:
        verb, *arguments = _words_untrusted(payload)
        if verb not in self._verbs:
            known = ", ".join(self._verbs)
            raise RefusedError(f"{verb!r} is none of the things a leader can do: {known}")
        return await self._verbs[verb](arguments)

    async def _found(self, _arguments: list[str]) -> str:
        """Refuse: only a member that waits for a new cluster can do that (:mod:`.admission`)."""
        await trio.lowlevel.checkpoint()
        raise RefusedError(
            "the cluster is founded already. A member that was left out joins when it is started; "
            "one that has lost its disk joins with quorate recover"
        )

    # --- transfer ---------------------------------------------------------------------------------

    async def _transfer(self, arguments: list[str]) -> str:
        """Hand the leadership over, in order: first the target gets all of the log.

        New writes wait meanwhile, and go to the new leader; none is lost (Raft dissertation,
        section 3.10; BlazingMQ: the designated leader). "even-if-behind": or the target gets what
        it lacks once it has won (:mod:`.levelling`).
        """
        leadership = self._leadership
        options = {EVEN_IF_BEHIND, BY_PRIORITY, DISK_STALLED} & {*arguments[1:]}
        even_if_behind = EVEN_IF_BEHIND in options
        target = self._member_untrusted([word for word in arguments if word not in options])
        if target == leadership.state.member_id:
            return f"member {target} leads already"
        follower = leadership.followers[target]
        if follower.standby:
            raise RefusedError(f"member {target} is a standby: it has no vote and never leads")
        if not follower.votes:
            raise RefusedError(f"member {target} is not admitted yet: its store is new")
        follows = follower.may_take_over
        if not leadership.links.connected(target) or not (follows or even_if_behind):
            raise RefusedError(
                f"member {target} does not follow: its log is known up to {follower.match} of "
                f"{leadership.publication_position}"
            )
        leadership.accepting = False
        try:
            with trio.move_on_after(leadership.state.timeouts.leader_heartbeat_timeout):
                if DISK_STALLED not in options:  # what is in flight is committed by the next one
                    await leadership.drain()
                if not even_if_behind:
                    await leadership.level(follower)
                own, by_operator = leadership.state.member_id, options <= {EVEN_IF_BEHIND}
                takeover = TimeoutNow(leadership.term, own, target, even_if_behind, by_operator)
                self.successor = target
                leadership.reads.lease.void(leadership.followers.values())
                leadership.links.send(target, takeover)
                await trio.sleep_forever()  # the end of the leadership is the answer
        finally:
            self.successor = None
            if leadership.ended is None:
                leadership.open()
        raise RefusedError(f"member {target} did not take over in time")

    # --- snapshot ---------------------------------------------------------------------------------

    async def _snapshot(self, arguments: list[str]) -> str:
        """Have all members take a snapshot at one position; wait for our own."""
        leadership = self._leadership
        snapshots = leadership.snapshots
        if arguments:
            raise RefusedError(f"snapshot takes no arguments, found {' '.join(arguments)!r}")
        if snapshots.service is None:
            raise RefusedError("this service has no snapshots")
        if snapshots.writing is not None:
            raise RefusedError("a snapshot is being taken already")
        began = trio.current_time()
        position = leadership.append_action(actions.SNAPSHOT)
        if await snapshots.taken(position) is None:
            raise RefusedError(f"no snapshot at {position}: {snapshots.failure or 'see the log'}")
        return f"snapshot at {position}, after {trio.current_time() - began:.1f} s"

    async def _suspend(self, arguments: list[str]) -> str:
        """Take no commands from now on, whoever leads; reads go on."""
        return await self._set_suspended(arguments, suspended=True)

    async def _resume(self, arguments: list[str]) -> str:
        """Take commands again."""
        return await self._set_suspended(arguments, suspended=False)

    async def _set_suspended(self, arguments: list[str], *, suspended: bool) -> str:
        leadership, verb = self._leadership, "suspend" if suspended else "resume"
        if arguments:
            raise RefusedError(f"{verb} takes no arguments, found {' '.join(arguments)!r}")
        if leadership.state.suspended is suspended:
            state = "suspended already" if suspended else "not suspended"
            raise RefusedError(f"the cluster is {state}")
        action = actions.SUSPEND if suspended else actions.RESUME
        position = self._leadership.append_action(action)
        while leadership.state.suspended is not suspended:
            await leadership.actions.changed.wait()
        return f"{'suspended' if suspended else 'resumed'} at {position}"

    async def _shutdown(self, arguments: list[str]) -> str:
        """Have all members take a snapshot, and stop, at one position."""
        snapshot = await self._snapshot(arguments)
        return f"{snapshot}; {await self.termination.run()}"

    async def _abort(self, arguments: list[str]) -> str:
        """Have all members stop at one position, without a snapshot."""
        if arguments:
            raise RefusedError(f"abort takes no arguments, found {' '.join(arguments)!r}")
        return await self.termination.run()

    async def by_rule(self) -> Never:
        """Have a snapshot taken whenever the rule asks for one."""
        leadership = self._leadership
        while True:
            await look_again(leadership.state.timeouts.leader_heartbeat_timeout)
            asked = self._ruled > leadership.applier.applied_position
            if leadership.accepting and leadership.snapshots.due and not asked:
                self._ruled = leadership.append_action(actions.SNAPSHOT)

    def _member_untrusted(self, arguments: list[str]) -> int:
        members = (self._leadership.state.member_id, *self._leadership.state.peers)
        if len(arguments) != 1 or not arguments[0].isdecimal() or int(arguments[0]) not in members:
            given = " ".join(arguments)
            known = ", ".join(map(str, sorted(members)))
            raise RefusedError(
                f"transfer to {given!r}: expected the id of a member, one of {known}"
            )
        return int(arguments[0])


def _words_untrusted(payload: bytes) -> list[str]:
    """Split a control request into its words.

    Raises:
        RefusedError: it is not text, or has no words.
    """
    try:
        words = payload.decode("ascii").split()
    except UnicodeDecodeError:
        words = []
    if not words:
        raise RefusedError("a control request is a verb and its arguments, in ASCII")
    return words

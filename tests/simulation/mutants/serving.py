"""Mutants with wrong rules of applying commands and answering clients."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import attrs
import trio

from quorate.errors import NoLeaderError, UnknownOutcomeError
from quorate.keyvalue.service import KeyValueService
from quorate.keyvalue.state.sessions import Sessions
from quorate.node import Member
from quorate.node.clocks import Clocks
from quorate.node.election import leader_states
from quorate.node.follower.following import Following
from quorate.node.leader import lease
from quorate.node.leader.leadership import Leadership
from quorate.node.leader.reads import Reads
from quorate.node.leader.replication import Replication
from quorate.node.requests.forwarding import ForwardedRequest
from quorate.node.requests.request import Request, RequestKind
from quorate.node.requests.router import Requests
from quorate.node.state_machine.applier import Applier, PendingBatch
from quorate.node.state_machine.witness import WitnessService
from quorate.storage.tables.view import TablesView

if TYPE_CHECKING:
    import pytest

    from quorate.node.election.context import ElectionContext
    from quorate.node.leader.follower_progress import Follower
    from quorate.node.state_machine.service import Command


def read_without_a_quorum(patch: pytest.MonkeyPatch) -> None:
    """Answer reads at once, without confirming the leadership."""
    start = Reads.start_round

    def start_and_answer(self: Reads) -> bool:
        asked = start(self)
        if asked:
            for follower in self._followers.voters:  # pyright: ignore[reportPrivateUsage]
                follower.confirm_id = self.confirm_id
            self.answer()
        return asked

    patch.setattr(Reads, "start_round", start_and_answer)


def read_before_the_term_is_open(patch: pytest.MonkeyPatch) -> None:
    """Answer reads before an entry of our own term is committed."""

    def flush(self: Leadership) -> None:
        if self.accepting and self.ended is None:
            original(self)
            if self.reads.start_round():
                self.replication.announce_commit()

    original = Leadership.flush
    patch.setattr(Leadership, "flush", flush)


def serve_on_a_witness(patch: pytest.MonkeyPatch) -> None:
    """Let a witness that leads take requests."""

    async def begin(ctx: ElectionContext, role: Leadership) -> None:
        await original(ctx, role)
        ctx.requests.lead(role)

    def query(_self: WitnessService, _payload: bytes, _flags: int) -> bytes:
        return b"0"

    original = leader_states._begin_term  # pyright: ignore[reportPrivateUsage]
    patch.setattr(leader_states, "_begin_term", begin)
    patch.setattr(WitnessService, "query", query)


def hold_a_lease_too_long(patch: pytest.MonkeyPatch) -> None:
    """Hold a lease for longer than the followers have promised."""
    patch.setattr(lease, "HELD_SHARE", 2.0)


def count_a_promise_from_its_echo(patch: pytest.MonkeyPatch) -> None:
    """Count a follower's promise from the arrival of its echo."""

    def echoed(self: lease.Lease, follower: Follower, confirm_id: int) -> None:
        if confirm_id in self._made:  # pyright: ignore[reportPrivateUsage]
            follower.promised_at = trio.current_time()

    patch.setattr(lease.Lease, "echoed", echoed)


def promise_when_the_role_has_ended(patch: pytest.MonkeyPatch) -> None:
    """Promise and echo even after an event that ends the role and may release the promise."""

    def promise(self: Following, confirm_id: int) -> None:
        self._confirm_id = confirm_id  # pyright: ignore[reportPrivateUsage]
        self.voter.lease_promise.give(self.lease_ms / 1000)

    patch.setattr(Following, "_promise", promise)


def hold_the_lease_while_handing_over(patch: pytest.MonkeyPatch) -> None:
    """Continue to count the promise of the nominated successor."""
    patch.setattr(lease.Lease, "void", _ignore)


def read_anywhere(patch: pytest.MonkeyPatch) -> None:
    """Answer reads on a follower, from its applied state."""
    submit = Member.submit

    def submit_here(self: Member, request: Request) -> None:
        if request.kind is RequestKind.QUERY:
            request.answer(self.applier.service.query)
        else:
            submit(self, request)

    patch.setattr(Member, "submit", submit_here)


def acknowledge_at_append(patch: pytest.MonkeyPatch) -> None:
    """Answer a command once it is in the leader's log, with the service's probable reply."""
    append = Replication.append

    def append_and_answer(
        self: Replication, entries: list[object], waiting: list[Request] | None = None
    ) -> None:
        append(self, entries, waiting)  # type: ignore[arg-type]
        self._applier.commit(self.end)  # pyright: ignore[reportPrivateUsage]

    patch.setattr(Replication, "append", append_and_answer)


def tell_unknown_as_refused(patch: pytest.MonkeyPatch) -> None:
    """Answer that a command was refused, although it may still be applied."""
    init = Request.__init__

    def made(self: Request, *arguments: object, **more: object) -> None:
        init(self, *arguments, **more)  # type: ignore[arg-type]
        done = self.done

        def told(result: object) -> None:
            if isinstance(result, UnknownOutcomeError):
                result = NoLeaderError("nothing was done")
            done(result)  # type: ignore[arg-type]

        self.done = told

    patch.setattr(Request, "__init__", made)


def ask_anew(patch: pytest.MonkeyPatch) -> None:
    """Send a command with an unknown outcome again."""
    init = Request.__init__

    def made(self: Request, *arguments: object, **more: object) -> None:
        init(self, *arguments, **more)  # type: ignore[arg-type]
        done = self.done

        def told(result: object) -> None:
            owner = _OWNER[-1] if _OWNER else None
            if isinstance(result, UnknownOutcomeError) and owner is not None:
                self.done = done
                self.deadline = 0.0
                owner.submit(self)
            else:
                done(result)  # type: ignore[arg-type]

        self.done = told

    submit = Requests.submit

    def submit_and_remember(self: Requests, request: Request) -> None:
        _OWNER.append(self)
        del _OWNER[:-1]
        submit(self, request)

    patch.setattr(Request, "__init__", made)
    patch.setattr(Requests, "submit", submit_and_remember)


_OWNER: list[Requests] = []


def apply_twice(patch: pytest.MonkeyPatch) -> None:
    """Apply the first command of a batch twice, if the batch was read back."""
    apply = Applier._apply  # pyright: ignore[reportPrivateUsage]

    def apply_again(
        self: Applier, waiting: PendingBatch, began: float, until: float
    ) -> float | None:
        read_back = waiting.batch is not None
        ended = apply(self, waiting, began, until)
        if read_back and ended is not None:
            waiting.done = 0
            apply(self, waiting, began, until)
        return ended

    patch.setattr(Applier, "_apply", apply_again)


def apply_again_after_a_start(patch: pytest.MonkeyPatch) -> None:
    """Forget the position of a durable state, and apply everything again."""
    init = Applier.__init__

    def made(self: Applier, *arguments: object) -> None:
        init(self, *arguments)  # type: ignore[arg-type]
        self.applied_position = 0
        self.lagging = self.commit_position > 0

    patch.setattr(Applier, "__init__", made)


def skip_a_command(patch: pytest.MonkeyPatch) -> None:
    """Skip the last command of a larger batch that was read from the recording."""
    apply = Applier._apply  # pyright: ignore[reportPrivateUsage]

    def apply_most(
        self: Applier, waiting: PendingBatch, began: float, until: float
    ) -> float | None:
        if waiting.batch is not None:
            from quorate.storage import decode_entries_untrusted  # noqa: PLC0415

            entries = decode_entries_untrusted(waiting.batch)
            waiting.batch = None
            waiting.entries = entries[:-1] if len(entries) > 1 else entries
        return apply(self, waiting, began, until)

    patch.setattr(Applier, "_apply", apply_most)


def expire_by_ones_own_clock(patch: pytest.MonkeyPatch) -> None:
    """Let keys expire by the machine's clock, not by log time."""
    apply = KeyValueService.apply
    jitter = iter(range(10**9))

    def apply_now(self: KeyValueService, command: Command) -> bytes:
        store = self._store  # pyright: ignore[reportPrivateUsage]
        store.now = max(store.now, command.timestamp_ms + next(jitter) % 50)
        return apply(self, command)

    patch.setattr(KeyValueService, "apply", apply_now)


def stamp_by_ones_own_clock(patch: pytest.MonkeyPatch) -> None:
    """Let a leader trust its own clock, whatever it and other clocks have shown."""

    def now_ms(self: Clocks) -> int:
        return self._wall_ms()  # pyright: ignore[reportPrivateUsage]

    patch.setattr(Clocks, "now_ms", now_ms)


def reply_by_ones_own_clock(patch: pytest.MonkeyPatch) -> None:
    """Let the state machine sometimes read the wall clock."""
    apply = KeyValueService.apply

    def apply_now(self: KeyValueService, command: Command) -> bytes:
        reply = apply(self, command)
        return reply + b" " if time.perf_counter_ns() % 16 == 0 else reply

    patch.setattr(KeyValueService, "apply", apply_now)


def refuse_what_was_sent(patch: pytest.MonkeyPatch) -> None:
    """Refuse a command after its time limit, although it was already forwarded."""
    forward = Requests._forward  # pyright: ignore[reportPrivateUsage]

    def forward_and_park(self: Requests, *arguments: object) -> object:
        sent: object = forward(self, *arguments)  # type: ignore[arg-type]
        request: Request = arguments[0]  # type: ignore[assignment]
        if sent and request.kind is RequestKind.COMMAND:
            self._park(request)  # pyright: ignore[reportPrivateUsage]
        return sent

    patch.setattr(Requests, "_forward", forward_and_park)


def forget_who_sent_it(patch: pytest.MonkeyPatch) -> None:
    """Record what a member forwards as that of no user."""

    def submit(self: Requests, request: Request) -> None:
        if isinstance(request, ForwardedRequest):
            request.principal = 0
        original(self, request)

    original = Requests.submit
    patch.setattr(Requests, "submit", submit)


def answer_by_where_it_lies(patch: pytest.MonkeyPatch) -> None:
    """Let the state depend on the time of a flush, while replies do not."""
    apply = KeyValueService.apply

    def apply_here(self: KeyValueService, command: Command) -> bytes:
        flushed = self._tables.position  # pyright: ignore[reportPrivateUsage]
        moved = attrs.evolve(command, index=command.index + (1 if flushed else 0))
        return apply(self, moved)

    patch.setattr(KeyValueService, "apply", apply_here)


def apply_a_retry(patch: pytest.MonkeyPatch) -> None:
    """Apply a repeated command of a session again."""
    reply_to = Sessions.reply_to

    def look(self: Sessions, session: int, sequence: int, now: int, user: int) -> bytes | None:
        reply = reply_to(self, session, sequence, now, user)
        return reply if reply is None or reply.startswith(b"-") else None

    def keep_first(self: Sessions, session_id: int, sequence: int, reply: bytes) -> None:
        session = self._sessions[session_id]  # pyright: ignore[reportPrivateUsage]
        if sequence not in session.sequences:
            original(self, session_id, sequence, reply)

    original = Sessions.keep
    patch.setattr(Sessions, "reply_to", look)
    patch.setattr(Sessions, "keep", keep_first)


def forget_the_sessions_at_a_start(patch: pytest.MonkeyPatch) -> None:
    """Begin without sessions after a restart, and after a snapshot."""
    patch.setattr(Sessions, "_load_untrusted", _ignore)


def leave_the_sessions_out_of_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    """Write only the keys to a snapshot."""
    read = TablesView._read  # pyright: ignore[reportPrivateUsage]

    def read_keys(self: TablesView, database: object, after: bytes) -> list[tuple[bytes, bytes]]:
        notes = self._databases[-1]  # pyright: ignore[reportPrivateUsage]
        return [] if database is notes else read(self, database, after)  # type: ignore[arg-type]

    patch.setattr(TablesView, "_read", read_keys)


def _ignore(*_arguments: object) -> None:
    """Do nothing."""

"""Keyspaces of etcd with one rule removed; the model and its watches must find each.

They are hunted in storms over clients of etcd, so they have a table of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest
import trio

from quorate.etcd.access.logged_tokens import LoggedTokens
from quorate.etcd.backend import joining
from quorate.etcd.backend.keep_alives import KeepAlives
from quorate.etcd.keyspace.compaction import Compaction
from quorate.etcd.keyspace.keys import Keys
from quorate.etcd.keyspace.leases import Leases
from quorate.etcd.keyspace.tokens import Tokens
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.together import replies_in_untrusted
from quorate.etcd.state import leasing
from quorate.etcd.state.machine import EtcdState
from quorate.etcd.state.transactions import Transaction
from quorate.etcd.watching.hub import WatchHub
from quorate.etcd.watching.stream import WatchStream
from quorate.simulation import Plan, simulate
from quorate.simulation.machines.clock import EPOCH_MS
from tests.simulation.mutants.hunt import Found

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quorate.etcd.backend.keep_alives import Renewal
    from quorate.etcd.keyspace.change import Change
    from quorate.etcd.watching.watch import Watch

HOURS: Final = 0.01

# The private parts of what is mutated, as of something without types.
_Any = Any


@attrs.frozen
class EtcdMutant:
    """A keyspace with one rule removed.

    Args:
        change: removes the rule.
        seeds: it must be found within this many seeds, from 0 on.
        by: the checks that find it.
        first: the seed that is tried first: that which found it last.
    """

    change: Callable[[pytest.MonkeyPatch], None]
    seeds: int
    by: Sequence[str]
    first: int = 0

    @property
    def name(self) -> str:
        """Return its name."""
        return self.change.__name__


def end_leases_by_ones_own_clock(patch: pytest.MonkeyPatch) -> None:
    """End leases by the time of the member, and not by the time in the log."""

    def first_due(self: Leases, now_ms: int) -> int | None:
        return original(self, max(now_ms, EPOCH_MS + int(1000 * trio.current_time())))

    original = Leases.first_due
    patch.setattr(Leases, "first_due", first_due)


def let_elections_eat_leases(patch: pytest.MonkeyPatch) -> None:
    """Take no notice of a new term."""

    def begin_term(_self: Leases, _now_ms: int) -> None:
        pass

    patch.setattr(Leases, "begin_term", begin_term)


def start_leases_anew(patch: pytest.MonkeyPatch) -> None:
    """Give all leases their whole time when a term begins, as etcd does."""

    def begin_term(self: Leases, now_ms: int) -> None:
        original(self, now_ms)
        for lease in self.ids():
            self.renew(lease, now_ms)

    original = Leases.begin_term
    patch.setattr(Leases, "begin_term", begin_term)


def forget_the_gaps_at_a_start(patch: pytest.MonkeyPatch) -> None:
    """Load leases without the time between terms that is no lease time."""

    def load(self: _Any) -> None:
        original(self)
        self._skipped_ms = 0

    original = Leases.load
    patch.setattr(Leases, "load", load)


def end_leases_in_a_revision_for_each_key(patch: pytest.MonkeyPatch) -> None:
    """Delete the keys of a lease one after the other."""

    def end_lease(leases: Leases, keys: Keys, lease: int) -> int:
        leases.remove(lease)
        found = sorted(keys.leased.get(lease, ()))
        for key in found:
            keys.commit()
            keys.delete(key)
        return len(found)

    patch.setattr(leasing, "end_lease", end_lease)


def renew_only_for_the_client(patch: pytest.MonkeyPatch) -> None:
    """Tell a client that its lease was renewed, and renew it another time."""

    def begin(self: KeepAlives, lease: int) -> Renewal:
        renewal = original(self, lease)
        renewal.end(20)
        return renewal

    original = KeepAlives.begin
    patch.setattr(KeepAlives, "begin", begin)


def skip_a_revision_at_a_load(patch: pytest.MonkeyPatch) -> None:
    """Go on with the revision after the next one when the tables were loaded."""

    def load(self: Keys, compacted: int) -> None:
        original(self, compacted)
        self.revision += self.revision > 1

    original = Keys.load
    patch.setattr(Keys, "load", load)


def forget_the_keys_of_leases_at_a_load(patch: pytest.MonkeyPatch) -> None:
    """Load the keys without the leases that they have."""

    def load(self: Keys, compacted: int) -> None:
        original(self, compacted)
        self.leased = {}

    original = Keys.load
    patch.setattr(Keys, "load", load)


def compare_after_the_writes(patch: pytest.MonkeyPatch) -> None:
    """Write what a transaction has for success, and then compare."""

    def apply(self: _Any, request: rpc.TxnRequest) -> bytes:
        for op in request.success:
            self._reply_to(op)
        way = self._way(request)
        self.keys.rollback()
        self._check_puts(way)
        self._check_ranges(way)
        return bytes(self._run(way))

    patch.setattr(Transaction, "apply", apply)


def compact_by_ones_own_clock(patch: pytest.MonkeyPatch) -> None:
    """Remove compacted rows when there is time, and not at a time in the log."""

    def advance(self: Compaction, now_ms: int) -> None:
        if int(trio.current_time() * 100) % 3:
            original(self, now_ms)

    original = Compaction.advance
    patch.setattr(Compaction, "advance", advance)


def lose_a_revision_after_history(patch: pytest.MonkeyPatch) -> None:
    """Let a watch that has caught up begin one revision too late."""

    def read_history(self: _Any, watch: Watch) -> None:
        original(self, watch)
        if watch not in self._behind:
            watch.next_revision += 1

    original = WatchStream._read_history  # pyright: ignore[reportPrivateUsage]
    patch.setattr(WatchStream, "_read_history", read_history)


def show_history_twice(patch: pytest.MonkeyPatch) -> None:
    """Add a watch to those in step although it is behind."""

    def create(self: _Any, request: rpc.WatchCreateRequest) -> None:
        original(self, request)
        for watch in self._behind:
            self._hub.add(watch)

    original = WatchStream._create  # pyright: ignore[reportPrivateUsage]
    patch.setattr(WatchStream, "_create", create)


def leak_what_is_before_the_start(patch: pytest.MonkeyPatch) -> None:
    """Show a watch that begins in the future what comes before that."""

    def add(self: WatchHub, watch: Watch) -> None:
        watch.next_revision = 0
        original(self, watch)

    original = WatchHub.add
    patch.setattr(WatchHub, "add", add)


def tell_progress_of_watches_behind(patch: pytest.MonkeyPatch) -> None:
    """Say that all is seen up to the present, while history waits to be read."""

    def answer_progress(self: _Any) -> None:
        if self._progress_requested:
            self._progress_requested = False
            response = rpc.WatchResponse(watch_id=-1)
            self._push(self._state.revision, response.SerializeToString())

    patch.setattr(WatchStream, "_answer_progress", answer_progress)


def go_on_after_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    """Let watches go on as if nothing had been when a snapshot was loaded."""

    def applied(self: _Any, revision: int, changes: Sequence[Change]) -> None:
        if changes:
            original(self, revision, changes)

    original = WatchHub._applied  # pyright: ignore[reportPrivateUsage]
    patch.setattr(WatchHub, "_applied", applied)


def split_a_revision(patch: pytest.MonkeyPatch) -> None:
    """Send each event in a response of its own."""

    def push_events(self: _Any, watch: Watch, revision: int, events: list[bytes]) -> None:
        for event in events:
            original(self, watch, revision, [event])

    original = WatchStream._push_events  # pyright: ignore[reportPrivateUsage]
    patch.setattr(WatchStream, "_push_events", push_events)


def show_the_present_for_the_past(patch: pytest.MonkeyPatch) -> None:
    """Show what a key is now as what it was before."""

    def previous(self: _Any, change: Change) -> bytes | None:
        version = self._keys.live.get(change.key)
        return None if version is None else bytes(self._keys.row(version[0]))

    patch.setattr(EtcdState, "previous", previous)


def swap_the_replies_of_joined_puts(patch: pytest.MonkeyPatch) -> None:
    """Give puts that share an entry each other's replies."""

    def replies_in(reply: bytes, count: int) -> tuple[int, list[bytes]]:
        revision, replies = replies_in_untrusted(reply, count)
        return revision, replies[::-1]

    patch.setattr(joining, "replies_in_untrusted", replies_in)


def give_tokens_for_one_member(patch: pytest.MonkeyPatch) -> None:
    """Give a token that no other member learns of."""

    async def put(_self: LoggedTokens, _token: rpc.Token) -> None:
        await trio.lowlevel.checkpoint()

    patch.setattr(LoggedTokens, "put", put)


def forget_tokens_at_a_load(patch: pytest.MonkeyPatch) -> None:
    """Begin without tokens after a start or a snapshot."""

    def load(_self: Tokens) -> None:
        pass

    patch.setattr(Tokens, "load", load)


ETCD_MUTANTS: Final = (
    EtcdMutant(end_leases_by_ones_own_clock, 5, ("Etcd.Model", "StateMachineSafety")),
    EtcdMutant(let_elections_eat_leases, 5, ("Etcd.Model", "Etcd.Watch")),
    EtcdMutant(start_leases_anew, 20, ("Etcd.Model", "StateMachineSafety"), first=2),
    EtcdMutant(forget_the_gaps_at_a_start, 10, ("Etcd.Model", "StateMachineSafety")),
    EtcdMutant(end_leases_in_a_revision_for_each_key, 5, ("Etcd.Model", "Etcd.Watch"), first=2),
    EtcdMutant(renew_only_for_the_client, 10, ("Etcd.Lease",)),
    EtcdMutant(skip_a_revision_at_a_load, 5, ("Etcd.Read", "StateMachineSafety")),
    EtcdMutant(forget_the_keys_of_leases_at_a_load, 5, ("Etcd.Model", "Etcd.Read", "KeyError")),
    EtcdMutant(compare_after_the_writes, 3, ("Etcd.Model",)),
    EtcdMutant(compact_by_ones_own_clock, 5, ("StateMachineSafety",)),
    EtcdMutant(lose_a_revision_after_history, 5, ("Etcd.Watch",)),
    EtcdMutant(show_history_twice, 5, ("Etcd.Watch",), first=1),
    EtcdMutant(leak_what_is_before_the_start, 5, ("Etcd.Watch",), first=4),
    EtcdMutant(tell_progress_of_watches_behind, 5, ("Etcd.Watch",)),
    EtcdMutant(go_on_after_a_snapshot, 20, ("Etcd.Watch",), first=16),
    EtcdMutant(split_a_revision, 5, ("Etcd.Watch",)),
    EtcdMutant(show_the_present_for_the_past, 5, ("Etcd.Watch",)),
    EtcdMutant(swap_the_replies_of_joined_puts, 3, ("Etcd.Put",)),
    EtcdMutant(give_tokens_for_one_member, 3, ("Etcd.Token",)),
    EtcdMutant(forget_tokens_at_a_load, 20, ("Etcd.Token",), first=2),
)


def hunt_etcd(mutant: EtcdMutant) -> Found | None:
    """Hunt a mutant; None if it survives."""
    with pytest.MonkeyPatch.context() as patch:
        mutant.change(patch)
        for seed in sorted(range(mutant.seeds), key=lambda seed: seed != mutant.first):
            outcome = simulate(Plan(seed, 3, HOURS, "etcd"))
            if outcome.violation is not None:
                kind = outcome.violation.partition(":")[0]
                assert kind not in {"TypeError", "AttributeError"}, f"{mutant.name} is broken"
                return Found(seed, outcome.violation)
    return None

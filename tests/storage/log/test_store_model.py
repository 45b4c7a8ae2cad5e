"""The store against a model that is a list, whatever is done to both, reopened at every step."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quorate.errors import PrunedError, StorageError
from quorate.storage import (
    MembershipRow,
    NodeState,
    SnapshotRow,
    Store,
    TermRow,
    ThreadExecutor,
    verify,
)
from quorate.storage.testing import InlineExecutor
from tests.support.journal_world import cut_power
from tests.support.storage_world import batch_at, configuration_at, open_store, running

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


@attrs.define
class Span:
    """A term of the model."""

    term: int
    base: int
    end: int | None


class StoreMachine(RuleBasedStateMachine):
    """Does the same to a store and to its model."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="quorate-"))
        self.batches: dict[int, bytes] = {}  # by position, ascending
        self.start = 0
        self.end = 0
        self.spans: list[Span] = []
        self.vote = NodeState()
        self.clock = 0
        self.configurations: list[MembershipRow] = []  # of the log, pruned ones included
        self.turn = 0

    def teardown(self) -> None:
        assert verify(self.directory).ok or not (self.directory / "data.mdb").exists()
        shutil.rmtree(self.directory)

    def during(self, act: Callable[[Store], Awaitable[None]]) -> None:
        """Open the store, do something while it runs, check it against the model, close it."""

        async def main() -> None:
            kind = ThreadExecutor if self.turn % 2 else InlineExecutor
            async with running(open_store(self.directory, kind, map_bytes=1 << 16)) as store:
                heard = [store.memberships]
                store.on_membership = lambda: heard.append(store.submitted.memberships)
                self.check(store)
                await act(store)
                self.check(store)
                assert heard[-1] == store.memberships
                assert all(before != after for before, after in itertools.pairwise(heard))
                if self.turn % 4 == 0:  # else it ends in order, and nothing is left in the journal
                    cut_power(store)

        self.turn += 1
        trio.run(main)

    def check(self, store: Store) -> None:
        assert store.submitted_position == self.end
        self.check_recorded(store)

    def check_recorded(self, store: Store) -> None:
        last = self.batches.get(max(self.batches, default=-1))
        assert store.start_position == self.start
        assert store.append_position == self.end
        assert [Span(row.term, row.base, row.end) for row in store.terms] == self.spans
        assert store.node_state == self.vote
        older = [row for row in self.configurations if row.position <= self.start]
        newer = [row for row in self.configurations if row.position > self.start]
        assert list(store.memberships) == older[-1:] + newer
        if last is not None:
            assert list(store.scan(self.start)) == list(self.batches.values())

    def boundary(self, index: int) -> int:
        """Pick one of the positions at which batches begin or the log ends."""
        positions = [*self.batches, self.end]
        return positions[index % len(positions)]

    @rule(sizes=st.lists(st.integers(0, 9000), min_size=1, max_size=8), step=st.integers(0, 5))
    def append(self, sizes: list[int], step: int) -> None:
        if not self.spans or self.spans[-1].end is not None:
            self.begin_term(step)
        self.clock += step

        async def act(store: Store) -> None:
            for size in sizes[1:]:
                store.append(self.next_batch(size))
            await store.append_durably(self.next_batch(sizes[0]))

        self.during(act)

    def next_batch(self, size: int) -> bytes:
        """Add a batch to the model."""
        term = self.spans[-1].term
        batch = batch_at(self.end, term=term, size=size, timestamp_ms=self.clock)
        self.batches[self.end] = batch
        self.end += len(batch)
        return batch

    @rule(payloads=st.lists(st.binary(max_size=40), min_size=1, max_size=3))
    def configure(self, payloads: list[bytes]) -> None:
        if not self.spans or self.spans[-1].end is not None:
            self.begin_term(0)
        term = self.spans[-1].term

        async def act(store: Store) -> None:
            for payload in payloads:
                batch = configuration_at(self.end, payload, term=term, timestamp_ms=self.clock)
                store.append(batch)
                self.batches[self.end] = batch
                self.end += len(batch)
                self.configurations.append(MembershipRow(term, self.end, payload))
                assert store.submitted.memberships[-1] == self.configurations[-1]
            await store.settled()

        self.during(act)

    @rule(payload=st.binary(max_size=40))
    def lose_what_is_not_durable(self, payload: bytes) -> None:
        if not self.spans or self.spans[-1].end is not None:
            self.begin_term(0)
        term = self.spans[-1].term

        async def main() -> None:
            async with running(open_store(self.directory, InlineExecutor)) as store:
                self.check(store)
                store.append(batch_at(self.end, term=term, timestamp_ms=self.clock))
                end = store.submitted_position
                store.append(configuration_at(end, payload, term=term, timestamp_ms=self.clock))
                cut_power(store)
                self.check_recorded(store)

        trio.run(main)

    @rule(gap=st.integers(0, 9), payload=st.sampled_from([b"", b"from a snapshot"]))
    def install(self, gap: int, payload: bytes) -> None:
        if not self.spans:
            self.begin_term(0)
        position, term = self.end + 32 * gap, self.spans[-1].term

        async def act(store: Store) -> None:
            self.start = self.end = position
            self.batches = {}
            self.spans[-1].end = None
            self.configurations = [MembershipRow(term, position, payload)] if payload else []
            terms = tuple(TermRow(span.term, span.base, span.end, 0) for span in self.spans)
            row = SnapshotRow(position, term, self.clock, "snapshot")
            await store.install(row, terms, membership=payload)

        self.during(act)

    @rule(gap=st.sampled_from([0, 1, 2, 2**40]))
    def begin_term(self, gap: int) -> None:
        last = self.spans[-1].term if self.spans else -1
        term, base = last + 1 + gap, self.end

        async def act(store: Store) -> None:
            if self.spans and self.spans[-1].end is None:
                self.spans[-1].end = base
            self.spans.append(Span(term, base, None))
            batch = self.next_batch(0)
            await store.append_durably(batch)

        self.during(act)

    @rule(gap=st.sampled_from([0, 1, 2, 2**40]), closed=st.booleans())
    def ensure_coherent(self, gap: int, closed: bool) -> None:  # noqa: FBT001
        last = self.spans[-1].term if self.spans else -1
        term, base = last + 1 + gap, self.end

        async def act(store: Store) -> None:
            if self.spans and self.spans[-1].end is None:
                self.spans[-1].end = base
            self.spans.append(Span(term, base, base if closed else None))
            await store.ensure_coherent(
                term=term, base=base, end=base if closed else None, timestamp_ms=self.clock
            )

        self.during(act)

    @rule(index=st.integers(0, 100), fewer=st.integers(0, 3))
    def truncate(self, index: int, fewer: int) -> None:
        position = self.boundary(index)
        at_cut = [span.term for span in self.spans if span.base == position]
        last_term = at_cut[-fewer] - 1 if 0 < fewer <= len(at_cut) else None

        async def act(store: Store) -> None:
            self.end = position
            self.batches = {at: batch for at, batch in self.batches.items() if at < position}
            self.configurations = [row for row in self.configurations if row.position <= position]
            self.spans = [span for span in self.spans if span.base <= position]
            if last_term is not None:
                self.spans = [span for span in self.spans if span.term <= last_term]
            if self.spans:
                self.spans[-1].end = None
            await store.truncate(position, last_term=last_term)

        self.during(act)

    @rule(back=st.integers(-3, 40))
    def drop_prefix(self, back: int) -> None:
        position = self.end - back * 200

        async def act(store: Store) -> None:
            while self.batches and min(self.batches) + len(self.batches[self.start]) <= position:
                self.start += len(self.batches.pop(self.start))
            await store.drop_prefix(position)

        self.during(act)

    @rule(step=st.integers(0, 2), member=st.integers(-1, 2))
    def save_node_state(self, step: int, member: int) -> None:
        state = NodeState(self.vote.candidate_term + step, member)

        async def act(store: Store) -> None:
            if self.vote.may_become(state):
                await store.save_node_state(state)
                self.vote = state
            else:
                with pytest.raises(AssertionError):
                    await store.save_node_state(state)

        self.during(act)

    @rule(index=st.integers(0, 100), off=st.sampled_from([0, 0, 0, 32]))
    def read(self, index: int, off: int) -> None:
        position = self.boundary(index) + off

        async def act(store: Store) -> None:
            if position in self.batches:
                found = await store.read(position, limit_bytes=1 << 30)
                assert found == [batch for at, batch in self.batches.items() if at >= position]
            elif position >= self.end:
                assert await store.read(position) == []
            else:
                with pytest.raises(StorageError):
                    await store.read(position)
            if self.start:
                with pytest.raises(PrunedError):
                    await store.read(self.start - 32)

        self.during(act)

    @invariant()
    def the_log_has_no_hole(self) -> None:
        expected = self.start
        for position, batch in self.batches.items():
            assert position == expected
            expected += len(batch)
        assert expected == self.end


TestStoreModel = StoreMachine.TestCase
TestStoreModel.settings = settings(max_examples=20, stateful_step_count=15)

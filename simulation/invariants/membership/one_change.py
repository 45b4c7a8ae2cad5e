"""One change of the configuration at a time, each settled before the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...watching.facts import Recorded
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Batch, Fact


class OneChange(Invariant):
    """No log has two configurations that are not committed.

    The last entry of membership before a new one is committed, so only one can ever be undone.
    """

    source = "Raft dissertation §4.1, and the bug of 2015 in it; I3 of the design"
    hears: ClassVar[tuple[type[Fact], ...]] = (Recorded,)

    def hear(self, fact: Fact) -> None:
        """Look at a configuration that has become durable."""
        assert isinstance(fact, Recorded)
        if fact.batch.membership is None or fact.batch.end <= self.known.floor:
            return
        batches = self.known.disks[fact.member].batches
        open_ones = [
            batch.membership.version
            for batch in batches
            if batch.membership is not None and not self.known.is_committed(batch.end, batch.prefix)
        ]
        if len(open_ones) > 1:
            raise self.violated(
                f"member {fact.member} has configurations {open_ones} in its log, none of them "
                "committed"
            )


class OwnTermFirst(Invariant):
    """A leader appends a configuration only after an entry of its own term is committed.

    Without the rule nothing unsafe was found (`tests/model/change.py`): every change is joint. It
    keeps changes simple: a leader knows by then which configuration is committed.
    """

    source = "Raft, the bug of 2015 in single-server changes; rule 1 of tests/model/change.py"
    hears: ClassVar[tuple[type[Fact], ...]] = (Recorded,)

    def hear(self, fact: Fact) -> None:
        """Look at a configuration that has become durable."""
        assert isinstance(fact, Recorded)
        if fact.batch.membership is None or fact.batch.end <= self.known.floor:
            return
        first = fact.batch
        for batch in reversed(self.known.disks[fact.member].batches):
            if batch.term != fact.batch.term:
                break
            first = batch
        if first is fact.batch or not self.known.is_committed(first.end, first.prefix):
            raise self.violated(
                f"member {fact.member} has version {fact.batch.membership.version} of term "
                f"{fact.batch.term} in its log, and nothing of that term is committed"
            )


class JointFirst(Invariant):
    """The configuration that ends a joint one is written when the joint one is committed.

    And every change of the voters begins with a joint one.
    """

    source = "Raft dissertation §4.3; I9 of the design"
    hears: ClassVar[tuple[type[Fact], ...]] = (Recorded,)

    def hear(self, fact: Fact) -> None:
        """Compare a configuration with the one before it in the same log."""
        assert isinstance(fact, Recorded)
        after, earlier = fact.batch.membership, self._before(fact.member, fact.batch)
        if after is None or earlier is None or earlier.membership is None:
            return
        before = earlier.membership
        if before.joint and not self.known.is_committed(earlier.end, earlier.prefix):
            raise self.violated(
                f"member {fact.member} has version {after.version} in its log, and the joint "
                f"version {before.version} before it is not committed"
            )
        if before.joint:
            fits = not after.joint and after.voters == before.voters
        else:
            fits = (after.outgoing or after.voters) == before.voters
        if not fits:
            raise self.violated(
                f"version {after.version} has the voters {after.voters} after {after.outgoing}; "
                f"before it were {before.voters} after {before.outgoing}"
            )

    def _before(self, member: int, batch: Batch) -> Batch | None:
        batches = self.known.disks[member].batches
        earlier = (b for b in reversed(batches) if self.known.floor < b.end < batch.end)
        return next((b for b in earlier if b.membership is not None), None)


class VersionsInOrder(Invariant):
    """Versions are consecutive along each log, and new ids are above all that were used.

    Where ids are those of machines (`Knowledge.ids_return`), one that was used may return.
    """

    source = "I7 of the design; RedisRaft #2, openraft PR #2002: an id that was used again"
    hears: ClassVar[tuple[type[Fact], ...]] = (Recorded,)

    def hear(self, fact: Fact) -> None:
        """Compare a configuration with the one before it in the same log."""
        assert isinstance(fact, Recorded)
        after = fact.batch.membership
        if after is None or fact.batch.end <= self.known.floor:
            return
        rows = self.known.configurations_of(fact.member)
        before = rows[-2][1] if len(rows) > 1 else self.known.first
        if after.version != before.version + 1:
            raise self.violated(
                f"member {fact.member} has version {after.version} after {before.version}"
            )
        if not before.version:
            return
        new = {*after.ids} - {*before.ids}
        again = min(new, default=before.next_id) < before.next_id and not self.known.ids_return
        if again or after.next_id < before.next_id:
            raise self.violated(
                f"version {after.version} gives a seat to {sorted(new)}; the next id was "
                f"{before.next_id}, and is {after.next_id}"
            )

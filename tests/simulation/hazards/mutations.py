"""Removes the fixes of the protocol one by one, which restores upstream's rule each time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from quorate.node.leader.leadership import Leadership
from quorate.node.protocol import log_matching, quorum
from quorate.storage.log import changes
from quorate.transport import (
    AppendFlags,
    AppendPosition,
    CanvassPosition,
    CommitPosition,
    Message,
    NewLeadershipTerm,
    TermSpan,
    Vote,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from quorate.node.leader.follower_progress import Follower
    from quorate.storage import BatchHeader, TermRow


def without_f1(patch: pytest.MonkeyPatch) -> None:
    """Follow a leader of any term, and believe its commit positions."""

    def is_stale(_message: NewLeadershipTerm | CommitPosition, _newest: int) -> bool:
        return False

    patch.setattr(log_matching, "is_stale", is_stale)


def without_f2(patch: pytest.MonkeyPatch) -> None:
    """Count any reported position for the quorum, whatever its term."""
    hear = Leadership.on_message

    def on_message(self: Leadership, sender: int, message: Message) -> None:
        hear(self, sender, message)
        if isinstance(message, CanvassPosition | Vote | AppendPosition):
            follower = self.followers[sender]
            position = min(message.log_position, self.publication_position)
            follower.match = max(follower.match, position)
            self._advance()  # pyright: ignore[reportPrivateUsage]

    patch.setattr(Leadership, "on_message", on_message)


def without_f3(patch: pytest.MonkeyPatch) -> None:
    """Accept any position of the term as a report that the term is recorded."""
    hear = Leadership._on_append_position  # pyright: ignore[reportPrivateUsage]

    def on_append_position(self: Leadership, follower: Follower, message: AppendPosition) -> None:
        hear(self, follower, attrs.evolve(message, flags=message.flags | AppendFlags.READY))

    patch.setattr(Leadership, "_on_append_position", on_append_position)


def without_f6(patch: pytest.MonkeyPatch) -> None:
    """Compare with the leader's log only where the term after our log term begins."""

    def agreement(
        mine: Sequence[TermRow], append: int, theirs: Sequence[TermSpan]
    ) -> tuple[int, int]:
        log_term = mine[-1].term if mine else -1
        bases = [span.base for span in theirs if span.term == log_term + 1]
        return min([append, *bases]), log_term

    patch.setattr(log_matching, "agreement", agreement)


def without_f7(patch: pytest.MonkeyPatch) -> None:
    """Record a term's first entry without the term's row."""

    def unchanged(terms: tuple[TermRow, ...], _header: BatchHeader) -> tuple[TermRow, ...]:
        return terms

    patch.setattr(changes, "with_row_of", unchanged)


def without_f8(patch: pytest.MonkeyPatch) -> None:
    """Let a message about our own term truncate, like any other message."""

    def is_about_own_term(_message: NewLeadershipTerm) -> bool:
        return False

    patch.setattr(log_matching, "is_about_own_term", is_about_own_term)


def with_ends_of_open_terms(patch: pytest.MonkeyPatch) -> None:
    """Let a leader list its own term with its present end, instead of as open.

    F8 guards only against this. Otherwise no message about a leader's own term could truncate.
    """
    build = Leadership.new_leadership_term

    def new_leadership_term(self: Leadership, log_term: int) -> NewLeadershipTerm:
        made = build(self, log_term)
        last = attrs.evolve(made.terms[-1], end=made.log_position)
        return attrs.evolve(made, terms=(*made.terms[:-1], last))

    patch.setattr(Leadership, "new_leadership_term", new_leadership_term)


def without_f9(patch: pytest.MonkeyPatch) -> None:
    """Commit entries of earlier terms as soon as a quorum has them."""

    def may_commit(reached: int, *, base: int) -> bool:
        del reached, base
        return True

    patch.setattr(quorum, "may_commit", may_commit)

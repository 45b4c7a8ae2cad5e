"""All mutants, and within how many seeds each must be found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from ..hazards import mutations
from . import recording, serving, voting

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


@attrs.frozen
class Mutant:
    """A member with one rule taken out.

    Args:
        change: takes it out.
        seeds: it must be found within so many, from 0 on.
        scenario: what the hunt is for.
    """

    change: Callable[[pytest.MonkeyPatch], None]
    seeds: int
    scenario: str = "storm"

    @property
    def name(self) -> str:
        """What it is called."""
        return self.change.__name__


def f8_and_open_terms(patch: pytest.MonkeyPatch) -> None:
    """Let messages about one's own term truncate, from leaders that tell how far they have come."""
    mutations.with_ends_of_open_terms(patch)
    mutations.without_f8(patch)


def f3_and_f6(patch: pytest.MonkeyPatch) -> None:
    """Write in a term that nobody knows of, and compare logs at one place."""
    mutations.without_f3(patch)
    mutations.without_f6(patch)


MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(mutations.without_f1, 40),
    Mutant(mutations.without_f2, 40),
    Mutant(mutations.without_f3, 40),
    Mutant(mutations.without_f6, 40),
    Mutant(mutations.without_f7, 40),
    Mutant(f8_and_open_terms, 40),
    Mutant(mutations.without_f9, 40),
    Mutant(f3_and_f6, 40),
    Mutant(voting.adopt_without_a_promise, 40),
    Mutant(voting.ignore_newer_terms, 40),
    Mutant(voting.forget_the_vote, 40),
    Mutant(voting.promise_for_nobody, 40),
    Mutant(voting.vote_twice, 40),
    Mutant(voting.refuse_nobody, 40),
    Mutant(voting.vote_for_a_shorter_log, 40),
    Mutant(voting.win_with_a_minority, 40),
    Mutant(voting.win_an_older_term, 40),
    Mutant(voting.lead_without_a_quorum, 40),
    Mutant(recording.report_before_sync, 40),
    Mutant(recording.count_itself_before_sync, 40),
    Mutant(recording.be_ready_at_once, 40),
    Mutant(recording.skip_the_truncation, 40),
    Mutant(recording.truncate_too_much, 40),
    Mutant(recording.commit_with_a_minority, 40),
    Mutant(recording.commit_what_is_received, 40),
    Mutant(recording.write_the_row_late, 40),
    Mutant(recording.forget_bytes_at_a_power_cut, 40),
    Mutant(recording.let_the_commit_position_go_back, 40),
    Mutant(serving.read_without_a_quorum, 40),
    Mutant(serving.read_before_the_term_is_open, 40),
    Mutant(serving.read_anywhere, 40),
    Mutant(serving.acknowledge_at_append, 40),
    Mutant(serving.tell_unknown_as_refused, 40),
    Mutant(serving.ask_anew, 40),
    Mutant(serving.apply_twice, 40),
    Mutant(serving.apply_again_after_a_start, 40),
    Mutant(serving.skip_a_command, 40),
    Mutant(serving.expire_by_ones_own_clock, 40),
    Mutant(serving.reply_by_ones_own_clock, 40),
    Mutant(serving.refuse_what_was_sent, 40),
)

"""All mutants, with the number of seeds within which each must be found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from tests.simulation.hazards import mutations, schedules
from tests.simulation.mutants import members, recording, serving, standing, voting
from tests.simulation.mutants.member_schedules import (
    a_change_is_undone,
    a_leader_changes_before_its_term_is_open,
    a_leader_with_a_lease_changes_the_voters,
    a_new_store_has_the_only_copy,
    a_quorum_is_forced,
    a_removed_leader_is_alone_with_one,
    a_snapshot_is_taken_before_a_change,
    members_come_and_go,
    only_a_stranger_can_lead,
    the_first_change_knows_few_stores,
    two_get_a_vote_at_once,
)
from tests.simulation.mutants.returning import (
    an_old_leader_returns,
    an_old_leader_returns_where_the_log_is_pruned,
)
from tests.simulation.mutants.schedules import (
    a_clock_is_years_ahead,
    a_founder_comes_late,
    a_leader_is_alone,
    a_leader_wakes_up,
    a_leader_with_a_lease_is_alone,
    a_lease_is_handed_over_by_one_held_up,
    a_lease_is_handed_over_in_vain,
    a_request_for_a_vote_comes_late,
    a_term_is_forged,
    a_wiped_member_meets_the_one_that_lags,
    a_witness_has_the_longest_log,
    a_write_outlives_its_leader,
    echoes_of_a_lease_are_slow,
    only_a_wiped_member_hears_the_leader,
    the_followers_of_a_lease_restart,
    the_longer_log_is_silent,
    the_winners_disk_hangs,
    two_stand_in_one_term,
)
from tests.simulation.mutants.stores import (
    an_old_vote_is_counted_after_an_admission,
    the_end_of_a_log_rots,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pytest

    from quorate.simulation import Ledger, World

    Schedule: TypeAlias = Callable[[World[Ledger]], Awaitable[None]]


@attrs.frozen
class Mutant:
    """A member with one rule removed.

    Args:
        change: removes the rule.
        seeds: it must be found within this many seeds, from 0 on; 0 if random runs take too long
            and a schedule finds it.
        cheap: whether the hunt takes only a second or two.
        schedule: plays the course of events in which it does harm.
        members: number of members for the schedule.
        first: the seed that is tried first: that which found it last, if others take long.
    """

    change: Callable[[pytest.MonkeyPatch], None]
    seeds: int
    cheap: bool = False
    schedule: Schedule | None = None
    members: int = 3
    first: int = 0

    @property
    def name(self) -> str:
        """Return its name."""
        return self.change.__name__


def f8_and_open_terms(patch: pytest.MonkeyPatch) -> None:
    """Let messages about one's own term truncate, from leaders that list their term's end."""
    mutations.with_ends_of_open_terms(patch)
    mutations.without_f8(patch)


def f3_and_f6(patch: pytest.MonkeyPatch) -> None:
    """Write in a term that no other member has recorded, and compare logs at one place only."""
    mutations.without_f3(patch)
    mutations.without_f6(patch)


MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(mutations.without_f1, 0, schedule=schedules.stale_leader),
    Mutant(mutations.without_f2, 30),
    Mutant(mutations.without_f3, 5, cheap=True),
    Mutant(voting.lead_for_ever, 0, schedule=a_leader_is_alone),
    Mutant(f3_and_f6, 0, schedule=schedules.unrecorded_term),
    Mutant(mutations.without_f7, 5, cheap=True),
    Mutant(f8_and_open_terms, 0, schedule=schedules.delayed_message),
    Mutant(mutations.without_f9, 0, schedule=schedules.figure_eight),
    Mutant(voting.adopt_without_a_promise, 5, cheap=True),
    Mutant(voting.forget_the_vote, 5, cheap=True),
    Mutant(voting.promise_for_nobody, 5, cheap=True),
    Mutant(voting.vote_twice, 20),
    Mutant(voting.elect_in_spite_of_a_promise, 0, schedule=a_leader_with_a_lease_is_alone),
    Mutant(voting.forget_the_promise_at_a_start, 0, schedule=the_followers_of_a_lease_restart),
    Mutant(voting.refuse_nobody, 0, schedule=a_request_for_a_vote_comes_late),
    Mutant(voting.vote_for_a_shorter_log, 0, schedule=the_longer_log_is_silent),
    Mutant(voting.win_with_a_minority, 0, schedule=two_stand_in_one_term),
    Mutant(voting.win_an_older_term, 30),
    Mutant(voting.believe_any_term, 0, schedule=a_term_is_forged),
    Mutant(standing.vote_with_an_empty_disk, 0, schedule=a_wiped_member_meets_the_one_that_lags),
    Mutant(standing.count_an_empty_disk, 0, schedule=only_a_wiped_member_hears_the_leader),
    Mutant(
        standing.vote_across_an_admission,
        0,
        schedule=an_old_vote_is_counted_after_an_admission,
        members=5,
    ),
    Mutant(standing.answer_each_founder, 0, schedule=a_founder_comes_late),
    Mutant(standing.forget_a_damaged_end, 0, schedule=the_end_of_a_log_rots),
    Mutant(recording.report_before_sync, 5, cheap=True),
    Mutant(recording.count_itself_before_sync, 5, cheap=True),
    Mutant(recording.be_ready_at_once, 5, cheap=True),
    Mutant(recording.skip_the_truncation, 0, schedule=an_old_leader_returns),
    Mutant(recording.truncate_too_much, 20),
    Mutant(recording.commit_with_a_minority, 5, cheap=True),
    Mutant(recording.commit_what_is_received, 5, cheap=True),
    Mutant(
        recording.commit_before_comparing, 0, schedule=an_old_leader_returns_where_the_log_is_pruned
    ),
    Mutant(recording.lead_with_a_hanging_disk, 0, schedule=the_winners_disk_hangs),
    Mutant(recording.write_the_row_late, 5, cheap=True),
    Mutant(recording.fill_skipped_terms, 20),
    Mutant(recording.forget_bytes_at_a_power_cut, 5, cheap=True),
    Mutant(recording.let_the_commit_position_go_back, 5, cheap=True),
    Mutant(recording.leave_the_last_commit_untold, 5, cheap=True),
    Mutant(serving.read_without_a_quorum, 0, schedule=a_leader_wakes_up),
    Mutant(serving.serve_on_a_witness, 0, schedule=a_witness_has_the_longest_log, members=2),
    Mutant(serving.hold_a_lease_too_long, 0, schedule=a_leader_with_a_lease_is_alone),
    Mutant(serving.count_a_promise_from_its_echo, 0, schedule=echoes_of_a_lease_are_slow),
    Mutant(
        serving.promise_when_the_role_has_ended, 0, schedule=a_lease_is_handed_over_by_one_held_up
    ),
    Mutant(serving.hold_the_lease_while_handing_over, 0, schedule=a_lease_is_handed_over_in_vain),
    Mutant(serving.read_before_the_term_is_open, 20),
    Mutant(serving.read_anywhere, 5, cheap=True),
    Mutant(serving.acknowledge_at_append, 5, cheap=True),
    Mutant(serving.tell_unknown_as_refused, 0, schedule=a_write_outlives_its_leader),
    Mutant(serving.ask_anew, 0, schedule=a_write_outlives_its_leader),
    Mutant(serving.apply_twice, 5, cheap=True),
    Mutant(serving.apply_again_after_a_start, 5, cheap=True, first=2),
    Mutant(serving.skip_a_command, 5, cheap=True),
    Mutant(serving.expire_by_ones_own_clock, 5, cheap=True),
    Mutant(serving.stamp_by_ones_own_clock, 0, schedule=a_clock_is_years_ahead),
    Mutant(serving.reply_by_ones_own_clock, 5, cheap=True),
    Mutant(serving.refuse_what_was_sent, 5, cheap=True),
    Mutant(serving.forget_who_sent_it, 5, cheap=True),
    Mutant(serving.answer_by_where_it_lies, 5, cheap=True),
    Mutant(serving.apply_a_retry, 5, cheap=True),
    Mutant(serving.forget_the_sessions_at_a_start, 5, cheap=True),
    Mutant(serving.leave_the_sessions_out_of_a_snapshot, 20),
    Mutant(recording.delete_what_no_row_names, 5, cheap=True),
    Mutant(
        members.change_before_the_term_is_open, 0, schedule=a_leader_changes_before_its_term_is_open
    ),
    Mutant(members.decide_by_what_is_committed, 0, schedule=members_come_and_go),
    Mutant(members.count_over_the_union, 0, schedule=two_get_a_vote_at_once),
    Mutant(members.keep_the_configuration_that_is_truncated, 0, schedule=a_change_is_undone),
    Mutant(members.forget_the_configuration_at_a_start, 0, schedule=members_come_and_go),
    Mutant(members.vote_for_members_only, 0, schedule=only_a_stranger_can_lead),
    Mutant(members.end_the_change_at_once, 0, schedule=members_come_and_go),
    Mutant(
        members.count_oneself_in_any_case,
        0,
        schedule=a_removed_leader_is_alone_with_one,
        members=4,
    ),
    Mutant(members.count_by_member, 0, schedule=a_new_store_has_the_only_copy),
    Mutant(members.obey_what_is_below_the_floor, 0, schedule=a_quorum_is_forced),
    Mutant(
        members.name_stores_that_nobody_knows,
        0,
        schedule=the_first_change_knows_few_stores,
        members=5,
    ),
    Mutant(members.hold_the_lease_of_one_set, 0, schedule=a_leader_with_a_lease_changes_the_voters),
    Mutant(members.save_the_latest_configuration, 0, schedule=a_snapshot_is_taken_before_a_change),
    Mutant(members.send_the_final_one_to_the_dropped, 0, schedule=members_come_and_go),
)
"""There is no fix F5; F3 covers F6 alone (see `hazards`); F10 is the mutant
`adopt_without_a_promise`."""

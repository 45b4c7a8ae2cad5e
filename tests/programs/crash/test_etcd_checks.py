"""The checks of etcd's clients find what is wrong in a history; no process runs here."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
import trio

from quorate.etcd.codes import Code
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.local.etcd_client import EtcdRefusedError, GatewayClient
from quorate.torture.etcd.calls import Calls
from quorate.torture.etcd.compacting import compact_to
from quorate.torture.etcd.judging import ELECTION_S, LONG_S, SLACK_S, judge
from quorate.torture.etcd.judging_past import KEPT_S, judge_past
from quorate.torture.etcd.keys import User
from quorate.torture.etcd.records import (
    END,
    LOCK,
    PREFIX,
    Compaction,
    Delivery,
    Hold,
    Lease,
    Past,
    Progress,
    Read,
    Records,
    Watched,
    Write,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from google.protobuf.message import Message

A, B, C = (PREFIX + name for name in (b"a", b"b", b"c"))
OLD, NEW = (LOCK + b"/" + name for name in (b"7", b"8"))


class Story:
    """A history that holds, with two watches; one second passes with each revision."""

    def __init__(self) -> None:
        self.records = Records(at_rest=True)
        self.watches = [Watched(f"watch {i}", 2, whole=True) for i in range(2)]
        self.records.watches += self.watches
        self.state: dict[bytes, rpc.KeyValue] = {}

    @property
    def next(self) -> int:
        return self.records.known + 1

    def happens(self, *changes: tuple[bytes, bytes | None], lease: int = 0) -> None:
        """Show a revision with puts and deletions (of None) at both watches."""
        events = [self._event(key, value, lease) for key, value in changes]
        for watched in self.watches:
            watched.deliveries.append(Delivery(float(self.next), events))
        self.records.known += 1

    def put(self, *pairs: tuple[bytes, bytes], lease: int = 0, known: int = 0) -> Write:
        """Put keys; the answer is noted."""
        write = Write(known or self.records.known, pairs, lease=lease, status="ok")
        write.revision = self.next
        self.records.writes.append(write)
        self.happens(*pairs, lease=lease)
        return write

    def lease(self, lease: int, until: float) -> Lease:
        made = Lease(lease, until)
        self.records.leases.append(made)
        return made

    def read(self, low: int, high: int, key: bytes = PREFIX, end: bytes = END) -> None:
        """Note a read of what is there now."""
        kvs = [kv for each, kv in sorted(self.state.items()) if end or each == key]
        self.records.reads.append(Read(low, high, key, end, kvs))

    def _event(self, key: bytes, value: bytes | None, lease: int) -> rpc.Event:
        was, revision = self.state.pop(key, None), self.next
        if value is None:
            kv = rpc.KeyValue(key=key, mod_revision=revision)
            return rpc.Event(type=rpc.Event.DELETE, kv=kv, prev_kv=was)
        self.state[key] = kv = rpc.KeyValue(
            key=key,
            value=value,
            lease=lease,
            mod_revision=revision,
            create_revision=was.create_revision if was is not None else revision,
            version=was.version + 1 if was is not None else 1,
        )
        return rpc.Event(kv=kv, prev_kv=was)

    def found(self) -> str:
        (wrong,) = judge(self.records)
        return wrong


def written() -> Story:
    """a=1 at 2, a=2 and b=2 at 3, c=3 at 4."""
    story = Story()
    story.put((A, b"1"))
    story.put((A, b"2"), (B, b"2")).compared = 2
    story.put((C, b"3"))
    return story


def leased() -> Story:
    """a and b have lease 5, which was said to last until 6 s and ends at 6."""
    story = written()
    story.lease(5, until=6.0)
    story.put((A, b"4"), (B, b"4"), lease=5)
    story.happens((A, None), (B, None))
    return story


def locked() -> Story:
    """7 and 8 want the lock; 7 gives it back."""
    story = Story()
    for key in (OLD, NEW):
        story.lease(int(key[-1:]), until=0.0)
        story.happens((key, b""), lease=int(key[-1:]))
    story.records.holds.append(Hold(1, 3, OLD))
    story.records.writes.append(Write(3, deletes=[OLD]))
    story.happens((OLD, None))
    story.records.holds.append(Hold(2, 4, NEW))
    story.happens((NEW, None))
    return story


@pytest.mark.parametrize("make", [Story, written, leased, locked])
def test_a_true_history_holds(make: type[Story]) -> None:
    story = make()
    story.read(story.records.known, story.records.known)
    assert judge(story.records) == []


# Watches ----------------------------------------------------------------------------------------


def doctored(story: Story, deliveries: Sequence[Delivery]) -> Story:
    story.watches[1].deliveries[:] = deliveries
    return story


def test_a_watch_that_leaves_out_a_revision_is_found() -> None:
    story = written()
    one, _, three = story.watches[1].deliveries
    assert "watch 1 showed revision 4 in a reply after 2" in doctored(story, [one, three]).found()


def test_a_watch_that_repeats_a_revision_is_found() -> None:
    story = written()
    one, two, three = story.watches[1].deliveries
    assert "revision 3 in a reply after 3" in doctored(story, [one, two, two, three]).found()


def test_a_watch_that_goes_back_is_found() -> None:
    story = written()
    one, two, three = story.watches[1].deliveries
    assert "revision 3 in a reply after 4" in judge(doctored(story, [one, three, two]).records)[1]


def test_a_watch_that_splits_a_revision_is_found() -> None:
    story = written()
    one, two, three = story.watches[1].deliveries
    halves = [Delivery(3.0, [event]) for event in two.events]
    assert any("after 3" in each for each in judge(doctored(story, [one, *halves, three]).records))


def test_a_watch_that_shows_another_value_is_found() -> None:
    story = written()
    one, two, three = story.watches[1].deliveries
    other = rpc.Event()
    other.CopyFrom(three.events[0])
    other.kv.value = b"4"
    changed = doctored(story, [one, two, Delivery(4.0, [other])])
    assert "watch 1 showed at revision 4" in changed.found()


def test_a_watch_that_stops_early_is_found_unless_its_member_is_gone() -> None:
    story = written()
    assert "nothing after 3, of 4" in doctored(story, story.watches[1].deliveries[:2]).found()
    story.watches[1].whole = False
    assert judge(story.records) == []


def test_a_revision_that_no_watch_shows_is_found() -> None:
    story = written()
    story.records.known = 5
    assert "no watch showed 1 revisions, the first is 5" in judge(story.records)[0]


def test_a_watch_that_calls_young_history_compacted_is_found() -> None:
    story = written()
    skips = cut(story)
    assert "watch 2 showed nothing up to revision 3, though 3 was 2.0 s old" in story.found()
    skips.began += KEPT_S
    assert judge(story.records) == []


@pytest.mark.parametrize(
    ("field", "words"),
    [("version", "has version 3"), ("create_revision", "since 9"), ("prev", "before it")],
)
def test_an_event_that_does_not_follow_from_the_state_is_found(field: str, words: str) -> None:
    story = written()
    event = story.watches[0].deliveries[1].events[0]
    if field == "prev":
        event.prev_kv.version = 7
    else:
        setattr(event.kv, field, 3 if field == "version" else 9)
    assert words in story.found()


def test_a_deletion_of_what_is_not_there_is_found() -> None:
    story = written()
    story.records.writes.append(Write(4, deletes=[PREFIX + b"d"]))
    story.happens((PREFIX + b"d", None))
    assert "was deleted at 5, and was not there" in story.found()


# Compactions ------------------------------------------------------------------------------------


def cut(story: Story) -> Watched:
    """A watch that was told at 5 s that all before 4 is compacted."""
    watched = Watched(
        "watch 2", 4, story.watches[0].deliveries[2:], whole=True, began=5.0, cut=True
    )
    story.records.watches.append(watched)
    return watched


def compacted() -> Story:
    """1 to 4, of which 4 was compacted, and a watch that was told so."""
    story = written()
    story.records.compactions.append(Compaction(4, asked=4.5, known=0, status="ok"))
    cut(story)
    return story


def test_a_watch_may_be_told_what_clients_have_asked_to_compact() -> None:
    story = compacted()
    assert judge(story.records) == []
    story.records.compactions[0].status = "unknown"
    assert judge(story.records) == []


@pytest.mark.parametrize(("revision", "asked"), [(3, 4.5), (5, 4.5), (4, 5.5)])
def test_a_watch_that_is_told_another_compaction_is_found(revision: int, asked: float) -> None:
    story = compacted()
    story.records.compactions[0] = Compaction(revision, asked, known=0, status="ok")
    assert "3 was 2.0 s old, and nobody asked to compact it" in story.found()


def test_a_watch_that_has_less_than_from_the_compaction_on_is_found() -> None:
    story = compacted()
    story.put((A, b"4"))
    watched = story.records.watches[2]
    watched.deliveries = story.watches[0].deliveries[3:]
    assert "watch 2 showed revision 5 in a reply after 3" in story.found()


def test_a_watch_from_a_revision_that_is_not_compacted_has_all() -> None:
    story = compacted()
    later = Watched("watch 3", 4, story.watches[0].deliveries[2:])
    story.records.watches.append(later)
    assert judge(story.records) == []
    later.start = 3
    assert "watch 3 showed revision 4 in a reply after 2" in story.found()


@pytest.mark.parametrize(
    ("past", "words"),
    [
        (Past(3, known=4, asked=4, served=False), ""),
        (Past(4, known=4, asked=4, served=True), ""),
        (Past(3, known=0, asked=4, served=True), ""),
        (Past(3, known=0, asked=4, served=False), ""),
        (Past(3, known=4, asked=4, served=True), "revision 3 was read after 4 was compacted"),
        (Past(4, known=4, asked=4, served=False), "clients asked for 4 at most"),
    ],
)
def test_reads_of_the_past_are_refused_if_that_is_compacted(past: Past, words: str) -> None:
    story = compacted()
    story.records.past.append(past)
    assert [words in each for each in judge(story.records)] == ([True] if words else [])


def test_a_read_of_the_past_is_the_state_of_that_revision() -> None:
    story = written()
    story.read(4, 4)
    story.put((A, b"4"))
    assert judge(story.records) == []
    story.records.reads.append(Read(3, 3, PREFIX, END, story.records.reads[0].kvs))
    assert "which it was not at any revision from 3 to 3" in story.found()


@pytest.mark.parametrize(("asked", "right"), [(5.0, True), (6.5, False)])
def test_an_event_of_a_compacted_revision_need_not_show_what_was_before(
    asked: float, *, right: bool
) -> None:
    story = written()
    one, two, three = story.watches[1].deliveries
    bare = rpc.Event()
    bare.CopyFrom(two.events[0])
    bare.ClearField("prev_kv")
    doctored(story, [one, Delivery(6.0, [bare, two.events[1]]), three])
    story.records.compactions.append(Compaction(3, asked, known=0))
    words = "watch 1 showed b'torture:a' at 3 without its past"
    assert [words in each for each in judge(story.records)] == ([] if right else [True])
    story.records.watches.reverse()
    assert [words in each for each in judge(story.records)] == ([] if right else [True])


class CountingList(list[Compaction]):
    """Counts how often all of it is read."""

    reads = 0

    def __iter__(self) -> Iterator[Compaction]:
        self.reads += 1
        return super().__iter__()


def test_compactions_are_not_searched_for_each_event() -> None:
    """An hour has a hundred thousand events that show nothing before, and 1,800 compactions."""
    story = Story()
    for number in range(20):
        story.put((A + b"%d" % number, b"1"))
    story.records.compactions = found = CountingList()
    assert judge(story.records) == []
    assert found.reads < 10


@pytest.mark.parametrize(
    ("compaction", "words"),
    [
        (Compaction(3, 5.0, known=4, status="fail", before=4), ""),
        (Compaction(3, 5.0, known=2, status="ok"), ""),
        (Compaction(3, 5.0, known=4, status="ok"), "was answered after 4 was compacted"),
        (Compaction(3, 5.0, known=2, status="fail", before=2), "clients asked for 2 at most"),
    ],
)
def test_a_compaction_is_done_once(compaction: Compaction, words: str) -> None:
    story = written()
    story.records.compactions.append(compaction)
    assert [words in each for each in judge(story.records)] == ([True] if words else [])


def test_a_watch_that_says_it_has_shown_what_it_has_not_is_found() -> None:
    story = written()
    story.watches[1].progress += [Progress(4, shown=4), Progress(1, shown=3)]
    assert judge(story.records) == []
    story.watches[1].progress.append(Progress(4, shown=3))
    assert "watch 1 said that it has shown everything up to 4" in story.found()


# Writes -----------------------------------------------------------------------------------------


def test_an_answered_write_that_is_lost_is_found() -> None:
    story = written()
    story.records.writes[2].revision = 5
    assert any("answered with revision 5, which has []" in each for each in judge(story.records))


def test_an_answer_that_was_asked_for_later_and_is_earlier_is_found() -> None:
    story = written()
    story.put((A, b"4"), known=7)
    assert "revision 5, and asked for when 7 was known" in story.found()


def test_a_write_without_an_answer_may_be_there_or_not() -> None:
    story = written()
    story.records.writes += [Write(3, [(A, b"4")]), Write(3, [(A, b"5")])]
    story.happens((A, b"4"))
    assert judge(story.records) == []


def test_a_write_without_an_answer_that_is_done_twice_is_found() -> None:
    story = written()
    story.records.writes.append(Write(3, [(A, b"4")]))
    story.happens((A, b"4"))
    story.happens((A, b"4"))
    assert "at 6 was done before" in story.found()


def test_a_write_without_an_answer_that_is_earlier_than_what_was_known_is_found() -> None:
    story = written()
    story.records.writes.append(Write(5, [(A, b"4")]))
    story.happens((A, b"4"))
    assert "at 5 was asked for when revision 5 was known" in story.found()


def test_half_a_write_is_found() -> None:
    story = written()
    story.records.writes.append(Write(3, [(A, b"4"), (B, b"4")]))
    story.happens((A, b"4"))
    assert "nobody asked for" in story.found()


def test_a_refused_write_that_was_done_is_found() -> None:
    story = written()
    story.records.writes.append(Write(3, [(A, b"4")], status="fail"))
    story.happens((A, b"4"))
    assert "at 5 was refused" in story.found()


@pytest.mark.parametrize("value", [b"9", None])
def test_a_change_that_nobody_asked_for_is_found(value: bytes | None) -> None:
    story = written()
    story.happens((A, value))
    assert "nobody asked for" in story.found()


def test_two_deletions_that_were_answered_at_one_revision_are_found() -> None:
    story = written()
    story.happens((A, None))
    story.records.writes += [
        Write(4, deletes=[A], status="ok", revision=5),
        Write(4, deletes=[A], status="ok", revision=5),
    ]
    assert "and another write were both answered with 5" in story.found()


def test_a_swap_of_what_had_changed_is_found() -> None:
    story = written()
    story.records.writes[1].compared = 1
    assert "compared with revision 1, and it had 2" in story.found()


def test_a_swap_without_an_answer_is_found_if_what_it_compared_had_changed() -> None:
    story = written()
    story.records.writes.append(Write(3, [(A, b"4"), (B, b"4")], compared=3))
    story.happens((A, b"4"), (B, b"4"))
    assert judge(story.records) == []
    story.records.writes[-1].compared = 2
    assert "compared with revision 2, and it had 3" in story.found()


def test_a_swap_that_fails_though_the_comparison_holds_is_found() -> None:
    story = written()
    story.records.reads.append(Read(3, 4, A, b"", [story.state[A]], other_than=3))
    assert "compared with its revision 3, and that failed" in story.found()


# Reads ------------------------------------------------------------------------------------------


def test_a_read_may_be_any_state_since_it_was_asked_for() -> None:
    story = written()
    story.read(2, 6, A, b"")
    story.put((A, b"4"))
    story.put((A, b"5"))
    assert judge(story.records) == []


@pytest.mark.parametrize("end", [b"", END])
def test_a_stale_read_is_found(end: bytes) -> None:
    story = written()
    story.read(5, 6, A if not end else PREFIX, end)
    story.put((A, b"4"))
    story.put((A, b"5"))
    assert "which it was not at any revision from 5 to 6" in story.found()


def test_a_read_of_the_future_is_found() -> None:
    story = written()
    story.put((A, b"4"))
    story.read(3, 4, A, b"")
    assert "which it was not at any revision from 3 to 4" in story.found()


def test_a_read_of_an_earlier_revision_than_was_known_is_found() -> None:
    story = written()
    story.read(4, 3)
    assert "was read as of 3 when 4 was known" in story.found()


# Leases and the lock ----------------------------------------------------------------------------


def test_a_lease_that_ends_before_the_time_that_its_client_knows_is_found() -> None:
    story = leased()
    story.records.leases[0].until = 6.0 + SLACK_S / 2
    assert judge(story.records) == []
    story.records.leases[0].until = 6.5
    assert "ended at revision 6, 0.500 s before" in story.found()


def test_a_lease_may_end_early_once_its_client_has_asked_for_that() -> None:
    story = leased()
    story.records.leases[0].until = 60.0
    story.records.leases[0].revoked = 5
    assert judge(story.records) == []
    story.records.leases[0].revoked = 6
    assert "ended at revision 6" in story.found()


def test_a_lease_that_is_gone_before_the_time_that_its_client_knows_is_found() -> None:
    story = leased()
    story.records.leases[0].gone = 5.0
    assert "lease 5 was gone 1.000 s before" in story.found()


def test_a_lease_that_ends_with_a_part_of_its_keys_is_found() -> None:
    story = written()
    story.lease(5, until=0.0)
    story.put((A, b"4"), (B, b"4"), lease=5)
    story.happens((A, None))
    story.happens((B, None))
    assert "lease 5 ended at revision 6 with" in story.found()


def test_a_lease_that_ends_long_after_its_time_is_found() -> None:
    story = written()
    lease = story.lease(5, until=0.0)
    lease.ttl, lease.answered = 2.0, 4.0
    story.put((A, b"4"), lease=5)
    for i in range(30):
        story.put((B, b"%d" % (10 + i)))
    story.happens((A, None))
    assert "12.5 s with progress after its time" in story.found()
    lease.unanswered = 6
    assert judge(story.records) == []


def test_a_lease_may_end_late_when_leaders_do_not_last() -> None:
    story = written()
    lease = story.lease(5, until=0.0)
    lease.ttl, lease.answered = 2.0, 4.0
    story.put((A, b"4"), lease=5)
    for i in range(60):
        story.put((B, b"%d" % (10 + i)))
    story.happens((A, None))
    assert "with progress after its time" in story.found()
    for watched in story.watches:
        for i, delivery in enumerate(watched.deliveries):
            watched.deliveries[i] = Delivery(delivery.at + i // 5 * ELECTION_S, delivery.events)
    assert judge(story.records) == []


def test_a_lease_may_end_late_when_nothing_else_happened() -> None:
    story = written()
    lease = story.lease(5, until=0.0)
    lease.ttl, lease.answered = 2.0, 4.0
    story.put((A, b"4"), lease=5)
    story.happens((A, None))
    for watched in story.watches:
        watched.deliveries[-1] = Delivery(50.0, watched.deliveries[-1].events)
    assert judge(story.records) == []


def test_a_key_that_stays_though_nobody_renews_its_lease_is_found() -> None:
    story = written()
    story.lease(5, until=0.0)
    story.put((A, b"4"), lease=5)
    assert "nobody renews its lease 5" in story.found()
    story.records.at_rest = False
    assert judge(story.records) == []


def test_a_key_with_another_lease_than_asked_for_is_found() -> None:
    story = leased()
    story.records.writes[3].lease = 4
    assert "was answered with revision 5" in story.found()


def test_a_lock_with_two_holders_is_found() -> None:
    story = locked()
    story.records.holds[1] = Hold(2, 3, NEW)
    assert "which was not the oldest at any revision from 2 to 3" in story.found()


def test_an_answer_that_no_member_may_give_is_reported() -> None:
    story = written()
    story.records.trouble.append("an odd answer")
    assert story.found() == "etcd: an odd answer"


# The run ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "what", ["writes", "reads", "leases", "locks", "watches", "resumed", "compactions", "past"]
)
def test_a_long_run_without_something_is_found(what: str) -> None:
    story = locked()
    story.put((A, b"1"))
    story.read(story.records.known, story.records.known)
    story.records.resumed, story.records.seconds = 1, LONG_S
    story.records.compactions.append(Compaction(2, asked=9.0, known=0, status="ok"))
    story.records.past.append(Past(1, known=2, asked=2, served=False))
    story.watches[0].progress.append(Progress(1, shown=1))
    story.watches[1].start, story.watches[1].cut, story.watches[1].began = 2, True, 9.0
    assert judge(story.records) == []
    empty = Records()
    fields, names = {"locks": "holds"}, {"past": "compacted reads"}
    setattr(story.records, fields.get(what, what), getattr(empty, fields.get(what, what)))
    assert f"etcd: no {names.get(what, what)} in 30 s: expected at least one" in judge(
        story.records
    )
    story.records.seconds = LONG_S / 2
    assert not any("expected at least one" in each for each in judge(story.records))


class Member:
    """Answers puts with the next revision, and shows reads what is known here."""

    def __init__(self) -> None:
        self.revision, self.here, self.code = 1, 0, Code.OK

    async def __call__(self, path: str, request: Message, kind: type[Message]) -> Message:
        await trio.sleep(0.1)
        if self.code:
            raise EtcdRefusedError(self.code, "refused")
        if isinstance(request, rpc.PutRequest):
            self.revision += 1
        revision = self.here if isinstance(request, rpc.RangeRequest) else self.revision
        reply = kind()
        cast("rpc.PutResponse", reply).header.revision = revision
        return reply


@pytest.mark.parametrize("pause", [0.5, 1.0])
async def test_a_read_that_misses_an_own_write_is_found_unless_its_member_had_lost_its_leader(
    pause: float, autojump_clock: object
) -> None:
    member, calls = Member(), Calls(dict, Records())
    user = User(calls, cast("GatewayClient", member))
    for _ in range(10):
        await user.put(A)
        await trio.sleep(pause)
    member.here = member.revision - 1
    await user.read_here(A)
    words = "was read as of 10 when 11 was known"
    assert any(words in each for each in judge(calls.records)) == (pause == 0.5)


async def test_a_compaction_may_be_refused_if_one_that_was_asked_later_came_first(
    autojump_clock: object,
) -> None:
    calls, slow, quick = Calls(dict, Records()), Member(), Member()
    slow.code = Code.OUT_OF_RANGE
    async with trio.open_nursery() as nursery:
        nursery.start_soon(compact_to, calls, cast("GatewayClient", slow), 3)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(compact_to, calls, cast("GatewayClient", quick), 4)
    assert [each.status for each in calls.records.compactions] == ["fail", "ok"]
    assert list(judge_past(calls.records)) == []


async def test_only_calls_of_locks_may_be_refused_without_a_code(
    autojump_clock: object,
) -> None:
    member, calls = Member(), Calls(dict, Records())
    member.code, client = Code.UNKNOWN, cast("GatewayClient", member)
    for path in ("/v3/lock/lock", "/v3/lock/unlock"):
        with pytest.raises(EtcdRefusedError):
            await calls.ask(client, path, rpc.UnlockRequest(), rpc.UnlockResponse)
    assert judge(calls.records) == []
    with pytest.raises(EtcdRefusedError):
        await calls.put(client, A)
    assert "etcd: refused, as an answer to" in judge(calls.records)[0]

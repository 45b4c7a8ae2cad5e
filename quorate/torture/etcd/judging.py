"""Whether what clients of etcd were answered and shown fits together.

Revisions give all changes one order, and the watches show it whole. So each answer has its place in
it, and no search is needed:

- a long run has some of everything;
- all watches saw the same: each revision once, in order, in one reply, without a gap;
- an answered write is at its revision, alone; a refused one nowhere; any other one at most once;
- what was asked for when a revision was known comes after it;
- each event follows from the state before: version, creation, what was there, what was compared;
- a read is the state at some revision between what was known and what was answered;
- a key with a lease goes by its client, or by the end of the lease, with all keys of that; and no
  lease ends before the time that its client knows, or long after it;
- what clients compact is refused, and nothing else within an hour (`judging_past`);
- a watch has shown everything up to where it says that it has;
- a client that takes the lock has the oldest key.
"""

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

import attrs

from ...etcd.keyspace.leases import GRACE_MS
from ...etcd.messages import rpc_pb2 as rpc
from .judging_past import Asked, judge_past, judge_watch
from .records import LOCK, Hold, Lease, Read, Records, Watched, Write

__all__ = ["ELECTION_S", "LATE_S", "LONG_S", "SLACK_S", "judge"]

SLACK_S: Final = 0.05
"""How much earlier a lease may end than its client knows: log time has whole milliseconds, and
members use the wall clock, which may be slewed."""

LATE_S: Final = 10.0
"""How late a lease may end, in seconds with progress. If smaller, a slow machine counts as wrong;
if larger, a lease that ends too late is missed."""

STILL_S: Final = 0.5
"""More of the time between two revisions does not count as progress: there may be no quorum. If
larger, elections count as progress; if smaller, time with few requests does not."""

ELECTION_S: Final = 3.0
"""After so long without a revision there may be a new term, which gives leases `GRACE_S`. If
larger, terms are missed that follow each other quickly; if smaller, a slow machine has terms."""

GRACE_S: Final = GRACE_MS / 1000

LONG_S: Final = 30.0
"""A run of this length has some of everything. If smaller, one fault may be the whole run."""

MOST: Final = 20
"""How many findings are reported: one mistake often makes many."""

State: TypeAlias = dict[bytes, rpc.KeyValue]


@attrs.frozen
class _History:
    """All events by their revision, and when the first watch had them."""

    events: dict[int, Sequence[rpc.Event]]
    seen: dict[int, float]

    @property
    def last(self) -> int:
        return max(self.events, default=1)


def judge(records: Records) -> list[str]:
    """Return what does not fit."""
    found = [*records.trouble, *_floors(records)]
    history = _History({}, {})
    for watched in records.watches:
        found += _merge(watched, history)
    found += _gaps(records, history)
    found += judge_past(records)
    asked = Asked(records.compactions)
    for watched in records.watches:
        found += _bare(watched, history, asked)
        found += judge_watch(watched, records, history.seen.get(watched.start - 1))
    found += _Replay(records, history).run()
    found += _answered(records, history)
    found += _other_answers(records)
    return [f"etcd: {each}" for each in found[:MOST]]


def _floors(records: Records) -> Iterator[str]:
    """Yield what is missing in a long run, where no check means anything without it."""
    if records.seconds >= LONG_S:
        for what, count in records.counts.items():
            if not count:
                yield f"no {what} in {records.seconds:.0f} s: expected at least one"


def _merge(watched: Watched, history: _History) -> Iterator[str]:
    """Add what a watch has seen to the history; yield what is wrong with it."""
    last = watched.start - 1
    for delivery in watched.deliveries:
        by_revision: dict[int, list[rpc.Event]] = {}
        for event in delivery.events:
            by_revision.setdefault(event.kv.mod_revision, []).append(event)
        for revision, events in by_revision.items():
            if revision != last + 1:
                yield f"{watched.name} showed revision {revision} in a reply after {last}"
            last = revision
            both = _joined(history.events.get(revision, events), events)
            if both is None:
                words = f"{_shown(events)}, and another one {_shown(history.events[revision])}"
                yield f"{watched.name} showed at revision {revision} {words}"
            else:
                history.events[revision] = both
            seen = history.seen.get(revision, delivery.at)
            history.seen[revision] = min(seen, delivery.at)


def _joined(some: Sequence[rpc.Event], others: Sequence[rpc.Event]) -> list[rpc.Event] | None:
    """Return the events with what either shows of the past; None if they differ otherwise.

    As with etcd, an event of a compacted revision has no `prev_kv`.
    """
    if len(some) != len(others):
        return None
    both: list[rpc.Event] = []
    for one, other in zip(some, others, strict=True):
        full, bare = (one, other) if one.HasField("prev_kv") else (other, one)
        if (full.type, full.kv) != (bare.type, bare.kv):
            return None
        if bare.HasField("prev_kv") and bare.prev_kv != full.prev_kv:
            return None
        both.append(full)
    return both


def _bare(watched: Watched, history: _History, asked: Asked) -> Iterator[str]:
    """Yield which events of a watch lack what was before, and were not compacted."""
    for delivery in watched.deliveries:
        for event in delivery.events:
            revision = event.kv.mod_revision
            if event.HasField("prev_kv") or revision <= asked.until(delivery.at):
                continue
            others = [each for each in history.events[revision] if each.kv == event.kv]
            if any(each.HasField("prev_kv") for each in others):
                yield f"{watched.name} showed {event.kv.key!r} at {revision} without its past"


def _gaps(records: Records, history: _History) -> Iterator[str]:
    """Yield what watches never showed."""
    last = max(history.last, records.known)
    missing = [revision for revision in range(2, last + 1) if revision not in history.events]
    if missing:
        yield f"no watch showed {len(missing)} revisions, the first is {missing[0]}"
    for watched in records.watches:
        shown = [event.kv.mod_revision for each in watched.deliveries for event in each.events]
        if watched.whole and max(shown, default=watched.start - 1) < last:
            yield f"{watched.name} showed nothing after {max(shown, default=None)}, of {last}"


class _Replay:
    """Goes through the history once."""

    def __init__(self, records: Records, history: _History) -> None:
        self._history = history
        self._at_rest = records.at_rest
        self._asked = records.asked()
        self._state: State = {}
        self._found: list[str] = []
        self._leases = {each.lease: each for each in records.leases}
        self._writes = {pair: each for each in records.writes for pair in each.puts}
        self._acked = {each.revision: each for each in records.writes if each.status == "ok"}
        self._deleting: defaultdict[bytes, list[Write]] = defaultdict(list)
        for write in records.writes:
            for key in write.deletes:
                if write.status == "unknown":
                    self._deleting[key].append(write)
        self._done: set[Write] = set()
        self._moments = sorted(history.seen.values())
        # The last one has the lowest revision.
        claims: list[Read | Hold] = [*records.reads, *records.holds]
        self._claims = sorted(claims, key=lambda each: -each.low)

    def run(self) -> list[str]:
        """Return what does not fit."""
        waiting: list[Read | Hold] = []
        for revision in range(1, self._history.last + 1):
            events = self._history.events.get(revision, ())
            self._check_author(revision, events)
            for event in events:
                self._apply(revision, event)
            while self._claims and self._claims[-1].low <= revision:
                waiting.append(self._claims.pop())
            waiting = [each for each in waiting if not self._holds(each)]
            late = [each for each in waiting if each.high <= revision]
            self._found += map(_misread, late)
            waiting = [each for each in waiting if each.high > revision]
        self._found += map(_misread, [*waiting, *self._claims])
        if self._at_rest:
            self._found += [
                f"{kv.key!r} is there, and nobody renews its lease {kv.lease}"
                for kv in self._state.values()
                if kv.lease
            ]
        return self._found

    def _compare(self, write: Write, revision: int) -> None:
        """Check what was compared in the write that made a revision, before it is applied."""
        if write.compared is None:
            return
        key = write.puts[0][0]
        was = self._state[key].mod_revision if key in self._state else 0
        if was != write.compared:
            words = f"compared with revision {write.compared}, and it had {was}"
            self._found.append(f"{key!r} was written at {revision} after it was {words}")

    # --- the requests behind events

    def _check_author(self, revision: int, events: Sequence[rpc.Event]) -> None:
        acked = self._acked.get(revision)
        if acked is not None:
            self._compare(acked, revision)
            return  # `_answered` says what is wrong
        if not events:
            return  # `_gaps` says what is wrong
        puts = [event.kv for event in events if event.type == rpc.Event.PUT]
        if not puts:
            self._check_deletion(revision, events)
            return
        if puts[0].key.startswith(LOCK + b"/"):
            if len(events) > 1 or puts[0].lease not in self._leases:
                self._found.append(f"nobody asked for {_shown(events)} at {revision}")
            return
        write = self._writes.get((puts[0].key, puts[0].value))
        if write is None or _expected(write) != _shown(events):
            self._found.append(f"nobody asked for {_shown(events)} at {revision}")
        elif write.status != "unknown" or write in self._done:
            said = {"ok": f"answered with {write.revision}", "fail": "refused"}.get(
                write.status, "done before"
            )
            self._found.append(f"{_shown(events)} at {revision} was {said}")
        elif revision <= write.known:
            words = f"asked for when revision {write.known} was known"
            self._found.append(f"{_shown(events)} at {revision} was {words}")
        else:
            self._compare(write, revision)
            self._done.add(write)

    def _check_deletion(self, revision: int, events: Sequence[rpc.Event]) -> None:
        """Check deletions that were not answered: by a client, or by the end of a lease."""
        asked = self._deleting[events[0].kv.key] if len(events) == 1 else ()
        for write in asked:
            if write.known < revision and write not in self._done:
                self._done.add(write)
                return
        leases = {self._lease_of(event.kv.key) for event in events}
        lease = self._leases.get(min(leases)) if len(leases) == 1 else None
        if lease is None:
            self._found.append(f"nobody asked for {_shown(events)} at {revision}")
            return
        self._check_end(revision, lease, events)

    def _check_end(self, revision: int, lease: Lease, events: Sequence[rpc.Event]) -> None:
        early = lease.until - self._history.seen[revision]
        revoked = lease.revoked is not None and revision > lease.revoked
        if early > SLACK_S and not revoked:
            words = f"{early:.3f} s before the time that its client knows"
            self._found.append(f"lease {lease.lease} ended at revision {revision}, {words}")
        late = self._progress(lease.latest, self._history.seen[revision])
        if late > LATE_S:
            words = f"{late:.1f} s with progress after its time"
            self._found.append(f"lease {lease.lease} ended at revision {revision}, {words}")
        left = {key for key, kv in self._state.items() if kv.lease == lease.lease}
        if left != {event.kv.key for event in events}:
            words = f"{_shown(events)}, of {sorted(left)}"
            self._found.append(f"lease {lease.lease} ended at revision {revision} with {words}")

    def _progress(self, start: float, end: float) -> float:
        """Return for how many seconds there was progress between two moments, but for new terms."""
        if end - start <= LATE_S:
            return 0.0
        between = self._moments[bisect(self._moments, start) : bisect(self._moments, end)]
        terms = [0.0]
        for before, after in pairwise(between):
            terms[-1] += min(after - before, STILL_S)
            if after - before >= ELECTION_S:
                terms.append(0.0)
        return sum(max(seconds - GRACE_S, 0.0) for seconds in terms)

    def _lease_of(self, key: bytes) -> int:
        return self._state[key].lease if key in self._state else 0

    # --- what an event says

    def _apply(self, revision: int, event: rpc.Event) -> None:
        kv, was = event.kv, self._state.get(event.kv.key)
        compacted = revision <= self._asked and not event.HasField("prev_kv")
        if event.prev_kv != (was or rpc.KeyValue()) and not compacted:
            words = f"{event.prev_kv!r:.200} before it, and {was!r:.200} was there"
            self._found.append(f"{kv.key!r} at {revision} has {words}")
        if event.type == rpc.Event.DELETE:
            if self._state.pop(kv.key, None) is None:
                self._found.append(f"{kv.key!r} was deleted at {revision}, and was not there")
            return
        created = was.create_revision if was is not None else revision
        version = was.version + 1 if was is not None else 1
        if (kv.create_revision, kv.version) != (created, version):
            words = f"version {kv.version} since {kv.create_revision}"
            expected = f"expected {version} since {created}"
            self._found.append(f"{kv.key!r} has {words} at {revision}: {expected}")
        self._state[kv.key] = kv

    def _holds(self, claim: Read | Hold) -> bool:
        """Say whether an answer fits to the present state."""
        if isinstance(claim, Hold):
            line = [kv for key, kv in self._state.items() if key.startswith(LOCK + b"/")]
            first = min(line, key=lambda kv: kv.create_revision, default=None)
            return first is not None and first.key == claim.key
        if not claim.end:
            kv = self._state.get(claim.key)
            return list(claim.kvs) == ([] if kv is None else [kv])
        keys = sorted(key for key in self._state if claim.key <= key < claim.end)
        return list(claim.kvs) == [self._state[key] for key in keys]


def _misread(claim: Read | Hold) -> str:
    between = f"at any revision from {claim.low} to {claim.high}"
    if isinstance(claim, Hold):
        return f"the lock was given to {claim.key!r}, which was not the oldest {between}"
    pairs = [(kv.key, kv.value, kv.mod_revision) for kv in claim.kvs]
    return f"{claim.key!r} to {claim.end!r} was read as {pairs!r:.300}, which it was not {between}"


def _answered(records: Records, history: _History) -> Iterator[str]:
    """Yield which answers to writes do not fit to the history, or to what was known before."""
    taken: set[int] = set()
    for write in records.writes:
        if write.status != "ok":
            continue
        if write.revision in taken:
            yield f"{_expected(write)} and another write were both answered with {write.revision}"
        taken.add(write.revision)
        events = history.events.get(write.revision, ())
        if _expected(write) != _shown(events):
            words = f"{_expected(write)} was answered with revision {write.revision}"
            yield f"{words}, which has {_shown(events)}"
        if write.revision <= write.known:
            words = f"and asked for when {write.known} was known"
            yield f"{_expected(write)} was answered with revision {write.revision}, {words}"


def _other_answers(records: Records) -> Iterator[str]:
    """Yield which other answers do not fit to what was asked, or to what was known before."""
    claims: list[Read | Hold] = [*records.reads, *records.holds]
    for claim in claims:
        if claim.high < claim.low:
            yield f"{claim.key!r} was read as of {claim.high} when {claim.low} was known"
    for read in records.reads:
        was = read.kvs[0].mod_revision if read.kvs else 0
        if was == read.other_than:
            yield f"{read.key!r} was compared with its revision {was}, and that failed"
    for lease in records.leases:
        if lease.revoked is None and lease.gone < lease.until - SLACK_S:
            words = f"{lease.until - lease.gone:.3f} s before the time that its client knows"
            yield f"lease {lease.lease} was gone {words}"


def _expected(write: Write) -> list[tuple[str, bytes, bytes, int]]:
    puts = [("put", key, value, write.lease) for key, value in write.puts]
    return puts + [("delete", key, b"", 0) for key in write.deletes]


def _shown(events: Sequence[rpc.Event]) -> list[tuple[str, bytes, bytes, int]]:
    names: Mapping[int, str] = {rpc.Event.PUT: "put", rpc.Event.DELETE: "delete"}
    return [(names[e.type], e.kv.key, e.kv.value, e.kv.lease) for e in events]

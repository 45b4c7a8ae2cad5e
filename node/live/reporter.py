"""A member's own live events, for all that watch it.

Steps of the election are reported when they happen, as they come from the election itself. What
changes seldom (links, snapshots, the configuration, the disk) is found by comparing each status
with the one before: no other part of a member has to know that it is watched. Statuses are made
five times a second, and only while somebody watches.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from quorate._version import __version__  # not of a room, so it has no other path

from ...recordings import Event, Source
from ...recordings.head import WALL, Head, RecordedMember
from ..leader.leadership import Leadership
from ..protocol.states import LEADER_STATES, State
from .subscription import Feed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ...metrics import Histogram
    from ..election.transition import Transition
    from ..requests.journey import SlowBatch
    from ..requests.status import NodeStatus
    from .parts import Parts
    from .subscription import Subscription

STATUS_SECONDS: Final = 0.2
"""From one status to the next while somebody looks. Shorter: more work for members and browsers.
Longer: a page moves in jerks."""

RECORDER_SECONDS: Final = 0.5
"""From one status to the next while only the flight recorder watches. Shorter: that costs more, all
the time. Longer: positions in its files are coarser, and a page that is opened waits longer."""

RATE_SECONDS: Final = 1.0
"""Rates are of as many seconds as this. Shorter: they flicker. Longer: they lag."""

QUANTILE_SECONDS: Final = 10
"""Quantiles are of as many seconds as this. Shorter: there are few observations. Longer: what is
over still shows."""

MOST_SLOW: Final = 4
"""Slow batches that are reported from one status to the next. Fewer: a disturbance looks smaller
than it is. More: on a slow disk nothing else is seen."""

KEPT_STEPS: Final = 64
"""Steps of elections that are kept for those that ask now and then. Fewer: several elections
between two questions do not fit. More: the first answer is longer."""

RATES: Final = ("commands", "commits", "reads", "input_bytes", "output_bytes")
QUANTILES: Final = ("sync", "commit", "apply", "command")


class Reporter:
    """Reports what happens in a member.

    Args:
        member: whose events these are.
        clock_ms: milliseconds since the epoch.

    Attributes:
        counts: for each of `RATES` what returns the count so far; those that nobody counts are
            missing.
        histograms: for each of `QUANTILES` what returns a histogram of seconds; likewise.
        feed: passes the events on.
        started_ms: to which the times of events are added.
    """

    def __init__(self, member: Parts, clock_ms: Callable[[], int]) -> None:
        state, applier = member.state, member.applier
        counts = state.counts
        # What clients do, their port counts; it adds that when it is opened, and counts reads anew:
        # only the port sees how many commands a request has.
        self.counts: dict[str, Callable[[], float]] = {
            "commits": lambda: applier.entries,
            # A forwarded read is counted by the leader that answers it.
            "reads": lambda: counts.reads["quorum"] + counts.reads["lease"],
        }
        self.histograms: dict[str, Callable[[], Histogram]] = {
            "sync": lambda: member.store.syncs,
            "commit": lambda: counts.commit_duration,
            "apply": lambda: applier.apply_duration,
        }
        self.feed = Feed(self._keyframe)
        self.started_ms = clock_ms()
        self.member_id = state.member_id
        self._since = trio.current_time()
        self._state = state
        self._election = member.election
        self._status = member.status
        self._rates = _Rates(self.counts)
        self._quantiles = _Quantiles(self.histograms)
        self._nursery: trio.Nursery | None = None
        self._running = False
        self._slow_left = MOST_SLOW
        self._steps: deque[Transition] = deque(maxlen=KEPT_STEPS)
        self._step_count = 0
        member.election.observers.append(self._on_transition)
        applier.slow.observers.append(self._on_slow_batch)

    def head(self) -> dict[str, Any]:
        """Return the head of a recording that begins now."""
        state = self._state
        members = [
            RecordedMember(seat.member_id, seat.role.name.lower())
            for seat in state.membership.seats
        ]
        head = Head(
            Source.LIVE,
            __version__,
            state.config.cluster,
            WALL,
            self.started_ms,
            tuple(members),
            reporter=self.member_id,
        )
        return dict(head.as_fields())

    def now(self) -> float:
        """Return the time of an event that happens now."""
        return trio.current_time() - self._since

    def subscribe(self, *, recorder: bool = False) -> Subscription:
        """Return the events from now on; the first is a keyframe.

        Args:
            recorder: it is for a recorder, which is always there and needs few statuses.
        """
        subscription = self.feed.subscribe(recorder=recorder)
        self._watch_if_watched()
        return subscription

    def _watch_if_watched(self) -> None:
        if self._nursery is not None and self.feed.watched and not self._running:
            self._running = True
            self._nursery.start_soon(self._watch)

    def report(self, kind: str, **fields: object) -> None:
        """Report an event that happens now; costs nothing if nobody watches."""
        if self.feed.watched:
            event = Event(self.now(), self.member_id, kind, fields)
            self.feed.publish(event, hurried=kind != "batch")

    def status_now(self) -> dict[str, Any]:
        """Return the fields of a status: what `NodeStatus` has, rates, quantiles, the delay.

        The delay is the worst one of the last second; None if nobody measures it.
        """
        return self._described(self._status())

    def recent(self, since: int) -> dict[str, Any]:
        """Return what a status has beyond `NodeStatus`, and the last steps of elections.

        Args:
            since: how many steps there were at the last question; later ones are returned.

        Returns:
            ``rates``, ``quantiles`` and ``loop_delay`` as in a status; ``steps``, each with the
            fields of ``enters`` and how many seconds ago it was; and ``step_count``.
        """
        count = self._step_count
        # A number from before a restart is too high.
        new = min(count - since if 0 <= since <= count else count, len(self._steps))
        steps = self.kept_steps()[len(self._steps) - new :]
        return self._figures() | {"steps": steps, "step_count": count}

    def kept_steps(self) -> list[dict[str, Any]]:
        """Return the last steps of elections, each with how many seconds ago it was."""
        now = trio.current_time()
        return [{"ago": now - step.at, **_entered(step)} for step in self._steps]

    def run_in(self, nursery: trio.Nursery) -> None:
        """Report statuses from now on, by a task that is started when somebody watches."""
        self._nursery = nursery
        self._watch_if_watched()

    async def _watch(self) -> None:
        """Report the status until nobody watches."""
        self._rates.look()
        self._quantiles.look()
        before = self._status()
        while self.feed.watched:
            await trio.sleep(RECORDER_SECONDS if self.feed.only_recorders else STATUS_SECONDS)
            before = self._report_status(before)
        # The next one that watches must not get figures of now.
        self._rates.clear()
        self._quantiles.clear()
        self._running = False

    def _report_status(self, before: NodeStatus) -> NodeStatus:
        """Report the status, and what has changed since the one before; return it."""
        self._rates.look()
        self._quantiles.look()
        self._slow_left = MOST_SLOW
        status = self._status()
        for kind, fields in changes(before, status):
            self.report(kind, **fields)
        self.report("status", status=self._described(status))
        return status

    def _described(self, status: NodeStatus) -> dict[str, Any]:
        fields = attrs.asdict(status) | self._figures()
        # JSON has no infinity, as which a lease or an age may come.
        return {name: None if _is_endless(value) else value for name, value in fields.items()}

    def _figures(self) -> dict[str, Any]:
        """Return what is counted over the last seconds."""
        return {
            "rates": self._rates.now(),
            "quantiles": self._quantiles.now(),
            "loop_delay": max(self._state.counts.delays, default=None),
        }

    def _keyframe(self) -> Event:
        own = {
            "status": self.status_now(),
            "by": self.member_id,
            "heard_ms": 0,
            "steps": self.kept_steps(),
        }
        return Event(
            self.now(),
            self.member_id,
            "keyframe",
            {"members": {str(self.member_id): own}},
        )

    def _on_transition(self, step: Transition) -> None:
        """Report a step of the election."""
        self._steps.append(step)
        self._step_count += 1
        if not self.feed.watched:
            return
        at = step.at - self._since
        self.feed.publish(Event(at, step.member_id, "enters", _entered(step)))
        role = self._state.role
        if (
            step.after is State.CLOSED
            and step.before in LEADER_STATES
            and isinstance(role, Leadership)
        ):
            self.report(
                "leads",
                term=role.term,
                cause=self._election.cause,
                base=role.base,
                took=step.at - self._election.began,
            )

    def _on_slow_batch(self, batch: SlowBatch) -> None:
        """Report a batch that took long, and where its time went."""
        if not self.feed.watched or not self._slow_left:
            return
        self._slow_left -= 1
        self.report(
            "batch",
            position=batch.position,
            entries=batch.entries,
            bytes=batch.size,
            receive=batch.receive,
            sync=batch.sync,
            quorum=batch.quorum,
            apply=batch.apply,
            reply=batch.reply,
            took=batch.took,
        )


def _entered(step: Transition) -> dict[str, Any]:
    """Return the fields of ``enters``."""
    return {
        "before": step.before.name,
        "after": step.after.name,
        "reason": step.reason,
        "term": step.term,
        "election": step.election,
        "log_end": [step.log_end.term, step.log_end.position],
        "commit": step.commit_position,
    }


def changes(before: NodeStatus, now: NodeStatus) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield kind and fields of the events that made one status of another."""
    links = {each.member_id: each for each in before.peers}
    for peer in now.peers:
        known = links.get(peer.member_id)
        if known is None or known.connected != peer.connected:
            yield (
                "link",
                {
                    "peer": peer.member_id,
                    "direction": "out",
                    "up": peer.connected,
                    "why": peer.trouble,
                },
            )
    if now.snapshot_position != before.snapshot_position:
        yield "snapshot", {"what": "done", "position": now.snapshot_position}
    elif now.snapshot_failure and now.snapshot_failure != before.snapshot_failure:
        yield "snapshot", {"what": f"failed: {now.snapshot_failure}"}
    elif now.snapshot_activity and not before.snapshot_activity:
        yield "snapshot", {"what": "begun", "position": now.applied_position}
    configuration = (now.config_version, now.voters, now.joint)
    if configuration != (before.config_version, before.voters, before.joint):
        version, voters, joint = configuration
        yield "config", {"version": version, "voters": list(voters), "joint": joint}
    if now.disk_full != before.disk_full:
        yield "disk", {"what": "full" if now.disk_full else "has room again"}
    if now.damage != before.damage:
        yield "disk", {"what": now.damage or "repaired"}


def _is_endless(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


class _Rates:
    """How fast counts grow, by the last second."""

    def __init__(self, counts: Mapping[str, Callable[[], float]]) -> None:
        self._counts = counts
        self._seen = deque[tuple[float, dict[str, float]]]()

    def clear(self) -> None:
        """Forget all."""
        self._seen.clear()

    def look(self) -> None:
        """Read the counts."""
        now = trio.current_time()
        self._seen.append((now, {name: count() for name, count in self._counts.items()}))
        # The oldest reading is the last one that is a second old, or older.
        while len(self._seen) > 1 and self._seen[1][0] <= now - RATE_SECONDS:
            self._seen.popleft()

    def now(self) -> dict[str, float | None]:
        """Return the rates per second; None for what is not known."""
        rates: dict[str, float | None] = dict.fromkeys(RATES)
        if not self._seen:
            return rates
        (since, then), (until, now) = self._seen[0], self._seen[-1]
        if until > since:
            for name in now.keys() & then.keys():
                # An operator may have set a count to zero.
                rates[name] = max(0.0, (now[name] - then[name]) / (until - since))
        return rates


def _fell(before: Mapping[str, tuple[int, ...]], now: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether any count is smaller than it was."""
    return any(
        count < then
        for name, counts in now.items()
        for count, then in zip(counts, before.get(name, ()), strict=False)
    )


class _Quantiles:
    """Quantiles of durations, by the last ten seconds."""

    def __init__(self, histograms: Mapping[str, Callable[[], Histogram]]) -> None:
        self._histograms = histograms
        self._seen = deque[tuple[float, dict[str, tuple[int, ...]]]]()

    def clear(self) -> None:
        """Forget all."""
        self._seen.clear()

    def look(self) -> None:
        """Keep the counts, once a second."""
        now = trio.current_time()
        counts = {name: tuple(each().counts) for name, each in self._histograms.items()}
        if self._seen and _fell(self._seen[-1][1], counts):
            # CONFIG RESETSTAT has set them to zero; what was before can't be compared with.
            self._seen.clear()
            counts = dict.fromkeys(counts, ())
        if self._seen and now < self._seen[-1][0] + 1.0:
            return
        self._seen.append((now, counts))
        while len(self._seen) > QUANTILE_SECONDS + 1:
            self._seen.popleft()

    def now(self) -> dict[str, dict[str, float] | None]:
        """Return p50 and p99 of each duration, in seconds; None without observations."""
        found: dict[str, dict[str, float] | None] = dict.fromkeys(QUANTILES)
        if not self._seen:
            return found
        then = self._seen[0][1]
        for name, get in self._histograms.items():
            each, since = get(), then.get(name, ())
            if _fell({name: since}, {name: tuple(each.counts)}):
                since = ()
            half, most = each.quantile(0.5, since), each.quantile(0.99, since)
            if half is not None and most is not None:
                # JSON has no infinity; what exceeds the last bound is at least twice that.
                largest = 2 * each.bounds()[-1]
                found[name] = {"p50": min(half, largest), "p99": min(most, largest)}
        return found

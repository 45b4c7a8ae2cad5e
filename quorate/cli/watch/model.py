"""What is known of a cluster, folded from events: of members that are asked, or of a recording.

Each figure has a time: when the member that it is about reported it. What was not reported for
`STALE_SECONDS` is stale, and shown as such: the last figures of a member that is cut off look like
those of one that is well.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, cast

import attrs

from ...node.requests.status import EtcdStatus
from ...recordings import Event

if TYPE_CHECKING:
    from collections.abc import Mapping

STALE_SECONDS: Final = 2.0
"""Smaller: a busy member is shown as lost. Larger: a lost one is shown as well for longer."""

HISTORY: Final = 120
"""Samples of the rate that are kept: a minute of them. Larger: nothing shows them."""

KEPT_STEPS: Final = 200
"""Steps of elections that are kept. Smaller: an election of many members does not fit."""

SAME_SECONDS: Final = 0.2
"""Two equal steps that are nearer to each other are one, which came in two ways. Smaller: a step is
shown twice if a clock was compared anew. Larger: one that was repeated is shown once."""

MOST_TEXT: Final = 300
"""Characters of a text that are kept. Longer: one reason fills the terminal."""

SETTLED: Final = "CLOSED"

_ENDS: Final = {
    "killed": "killed",
    "powerless": "without power",
    "ends": "ended",
    "stops": "stopped",
    "fails": "failed",
    "removed": "removed",
    "pauses": "paused",
    "wiped": "wiped",
}
_NUMBERS: Final = {
    "term": "term",
    "append_position": "append",
    "commit_position": "commit",
    "applied_position": "applied",
    "snapshot_position": "snapshot",
    "entries": "entries",
    "config_version": "config_version",
}


@attrs.define
class Seen:
    """What is known of one member. Positions are bytes of the log, -1 if unknown.

    Args:
        member_id: its id.

    Attributes:
        where: its client port; empty in a recording.
        role: "leader", "follower" and so on; empty if unknown.
        state: of its election; empty if unknown.
        state_since: when it entered that state; None if unknown.
        term: that it is in; -1 if unknown.
        leader: which member leads, as it says; None if it knows none.
        append: where its durable log ends.
        commit: up to where it knows the log to be committed.
        applied: up to where it has applied the log.
        snapshot: of its newest snapshot.
        entries: that it has applied since it started; -1 if unknown.
        config_version: of the configuration in its log.
        voters: the voters by that configuration; empty if it has none.
        votes: whether it has a vote.
        commands: of its clients, a second; None if unknown.
        half: seconds that half of these commands do not exceed; None if unknown.
        most: seconds that 99 % of them do not exceed; None if unknown.
        etcd: of its port for clients of etcd; None without one.
        delay: seconds by which a timer of its process was late, the worst of the last second.
        heard: when it reported last; None if it never did.
        others: when it heard each other member last.
        reports: it reports all the time, so its silence means something.
        trouble: why nothing is known of it now, in words; empty if it reports.
    """

    member_id: int
    where: str = ""
    role: str = ""
    state: str = ""
    state_since: float | None = None
    term: int = -1
    leader: int | None = None
    append: int = -1
    commit: int = -1
    applied: int = -1
    snapshot: int = -1
    entries: int = -1
    config_version: int = 0
    voters: tuple[int, ...] = ()
    votes: bool = True
    commands: float | None = None
    half: float | None = None
    most: float | None = None
    etcd: EtcdStatus | None = None
    delay: float | None = None
    heard: float | None = None
    others: dict[int, float] = attrs.field(factory=dict[int, float])
    reports: bool = False
    trouble: str = ""


@attrs.frozen
class Step:
    """A step of an election.

    Args:
        at: when.
        member: the member.
        before: the state before; empty if unknown.
        after: the state that it entered.
        reason: why; empty if that was not reported.
    """

    at: float
    member: int
    before: str
    after: str
    reason: str = ""


@attrs.define
class Cluster:
    """What is known of all members.

    Attributes:
        name: of the cluster.
        now: the time of the picture, in the seconds of the events.
        started_ms: milliseconds since the epoch at time 0; 0 in a simulation.
        members: by their ids.
        steps: the last steps of elections, the newest last.
        step_count: how many there were.
        rates: entries applied a second, one for each sample, the newest last.
        bytes_rate: bytes committed a second.
        note: the last violation or note of a recording.
    """

    name: str = ""
    now: float = 0.0
    started_ms: int = 0
    members: dict[int, Seen] = attrs.field(factory=dict[int, Seen])
    steps: deque[Step] = attrs.field(factory=lambda: deque[Step](maxlen=KEPT_STEPS))
    step_count: int = 0
    rates: deque[float] = attrs.field(factory=lambda: deque[float](maxlen=HISTORY))
    bytes_rate: float = 0.0
    note: str = ""
    _sample: tuple[float, int, int] | None = None

    def member(self, member_id: int) -> Seen:
        """Return what is known of a member; of one that is new, nothing."""
        return self.members.setdefault(member_id, Seen(member_id))

    # --- events -----------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Note an event; those of kinds that have no place in the picture change nothing."""
        self.now = max(self.now, event.at)
        fields = event.fields
        match event.kind:
            case "keyframe":
                members = fields.get("members")
                for key, found in _object(members).items():
                    if key.isdecimal() and (status := _object(_object(found).get("status"))):
                        age = _number(_object(found).get("heard_ms"), 0) / 1000
                        self._on_kept(event.at, int(key), _object(found).get("steps"))
                        self._on_status(event.at - age, int(key), status)
            case "status" if isinstance(fields.get("status"), dict):
                self._on_status(event.at, event.member, fields["status"], live=True)
            case "violation" | "note":
                self.note = f"{event.kind}: {_text(fields.get('text'))}"
            case _ if event.member >= 0:
                self._on_other(event)
            case _:
                pass

    def _on_other(self, event: Event) -> None:
        fields, seen = event.fields, self.member(event.member)
        match event.kind:
            case "enters":
                self._on_step(event)
            case "leads":
                seen.role, seen.term = "leader", _number(fields.get("term"), seen.term)
                seen.leader = seen.member_id
                self._hear(seen, event.at)
            case "positions" | "durable":
                for name in ("append", "commit", "applied", "snapshot"):
                    setattr(seen, name, _number(fields.get(name), getattr(seen, name)))
                self._hear(seen, event.at)
            case "starts" | "resumes":
                seen.state = seen.state if event.kind == "resumes" else ""
                self._hear(seen, event.at)
            case "hears" if isinstance(fields.get("sender"), int):
                seen.others[fields["sender"]] = event.at
                self._hear(seen, event.at)
            case kind if kind in _ENDS and not (kind == "ends" and seen.trouble):
                seen.trouble = _ENDS[kind]
            case _:
                pass

    def _on_step(self, event: Event) -> None:
        fields, seen = event.fields, self.member(event.member)
        before, after = _text(fields.get("before")), _text(fields.get("after"))
        reason = _text(fields.get("reason"))
        self._add_step(Step(event.at, event.member, before, after, reason))
        seen.state, seen.state_since = after, event.at
        seen.term = _number(fields.get("term"), seen.term)
        seen.commit = max(seen.commit, _number(fields.get("commit"), -1))
        if after != SETTLED:
            seen.role, seen.leader = "candidate", None
        elif before.startswith("LEADER"):
            seen.role, seen.leader = "leader", seen.member_id
        else:
            seen.role = "follower"
            leads = [each for each in self.members.values() if each.role == "leader"]
            newest = max(leads, key=lambda each: each.term, default=None)
            seen.leader = newest.member_id if newest else None
        self._hear(seen, event.at)

    def _on_kept(self, now: float, member: int, steps: object) -> None:
        """Note steps that a member took before we looked."""
        for each in cast("list[object]", steps) if isinstance(steps, list) else []:
            fields = _object(each)
            at = now - _number(fields.get("ago"), 0)
            known = any(
                (step.member, step.before, step.after)
                == (member, fields.get("before"), fields.get("after"))
                and abs(step.at - at) < SAME_SECONDS
                for step in self.steps
            )
            if not known:
                self._on_step(Event(at, member, "enters", fields))

    def _on_status(
        self, at: float, member: int, status: Mapping[str, Any], *, live: bool = False
    ) -> None:
        """Note what a member has reported of itself."""
        seen = self.member(member)
        if seen.heard is not None and at < seen.heard:
            return  # an older picture, passed on by another member
        before, state = seen.state, _text(status.get("state"))
        since = at - _number(status.get("state_age_s"), 0)
        steps_here = any(step.member == member and step.after == state for step in self.steps)
        changed = before and state != before
        # Asked from time to time: what was between two answers is not seen.
        if changed and not (steps_here and self.steps[-1].at >= since - STALE_SECONDS):
            self._add_step(Step(since, member, before, state))
        seen.state, seen.state_since = state, since
        seen.role = _text(status.get("role"))
        leader = status.get("leader_id")
        seen.leader = leader if isinstance(leader, int) else None
        for name, own in _NUMBERS.items():
            setattr(seen, own, _number(status.get(name), getattr(seen, own)))
        seen.voters = tuple(each for each in status.get("voters") or () if isinstance(each, int))
        seen.votes = status.get("standing") not in {"standby", "joining"}
        seen.commands = _number(_object(status.get("rates")).get("commands"), None)
        durations = _object(_object(status.get("quantiles")).get("command"))
        seen.half, seen.most = (_number(durations.get(name), None) for name in ("p50", "p99"))
        seen.delay = _number(status.get("loop_delay"), None)
        seen.etcd = _etcd(_object(status.get("etcd")))
        for peer in status.get("peers") or ():
            if isinstance(peer, dict):
                self._on_peer(seen, at, cast("dict[str, Any]", peer))
        seen.reports = seen.reports or live
        self.name = _text(status.get("cluster")) or self.name
        self._hear(seen, at)

    def _on_peer(self, seen: Seen, at: float, peer: Mapping[str, Any]) -> None:
        member, age = peer.get("member_id"), peer.get("last_heard_s")
        if isinstance(member, int):
            self.member(member)  # it is known to exist, if no more
            if isinstance(age, int | float):
                seen.others[member] = at - age

    def _add_step(self, step: Step) -> None:
        self.steps.append(step)
        self.step_count += 1

    @staticmethod
    def _hear(seen: Seen, at: float) -> None:
        seen.heard, seen.trouble = at, ""

    def miss(self, member: int, at: float, why: str) -> None:
        """Note that a member was asked and did not answer."""
        self.now = max(self.now, at)
        self.member(member).trouble = why

    def sample(self) -> None:
        """Take a sample of the rates at this moment, for the line of the last minute."""
        entries = max((each.entries for each in self.members.values()), default=-1)
        head = max((each.commit for each in self.members.values()), default=-1)
        before, self._sample = self._sample, (self.now, entries, head)
        if before is None or self.now <= before[0]:
            return
        took = self.now - before[0]
        # A member that has restarted counts from 0 again: no rate is below 0.
        known = self.counts_entries and before[1] >= 0
        self.bytes_rate = max(head - before[2], 0) / took if before[2] >= 0 else 0.0
        self.rates.append(max(entries - before[1], 0) / took if known else self.bytes_rate)

    # --- what follows from it ---------------------------------------------------------------------

    @property
    def counts_entries(self) -> bool:
        """Whether the rates are entries a second; else they are bytes."""
        # Pictures in a recording have the number, too, but too seldom for a rate.
        return any(each.entries >= 0 and each.reports for each in self.members.values())

    def age(self, seen: Seen) -> float | None:
        """Return how long ago a member reported; None if it never did."""
        return None if seen.heard is None else max(self.now - seen.heard, 0.0)

    def is_stale(self, seen: Seen) -> bool:
        """Whether what is known of a member may be wrong by now."""
        age = self.age(seen)
        # What a recording says of a member holds until it says otherwise.
        return age is None or bool(seen.trouble) or (seen.reports and age > STALE_SECONDS)

    @property
    def fresh(self) -> list[Seen]:
        """The members that report."""
        return [each for _, each in sorted(self.members.items()) if not self.is_stale(each)]

    @property
    def leaders(self) -> list[Seen]:
        """The members that say that they lead: more than one if they disagree."""
        claims = [each for each in self.fresh if each.role == "leader"]
        # They are not asked in one moment: what an old leader said before the new one began is no
        # disagreement.
        return [
            each
            for each in claims
            if not any(
                other.term > each.term and (other.state_since or 0.0) > (each.heard or 0.0)
                for other in claims
            )
        ]

    @property
    def leader(self) -> Seen | None:
        """The member that leads: of several, the one in the newest term."""
        return max(self.leaders, key=lambda each: each.term, default=None)

    @property
    def head(self) -> int:
        """Where the log ends, from which lags are counted: the leader's end, or the highest."""
        if self.leader:
            return self.leader.append
        return max((each.append for each in self.fresh), default=-1)

    @property
    def electorate(self) -> list[int]:
        """The voters, by the newest configuration that a member has reported."""
        newest = max(self.members.values(), key=lambda each: each.config_version, default=None)
        if newest is not None and newest.config_version and newest.voters:
            return list(newest.voters)
        return [each.member_id for each in self.members.values() if each.votes]

    @property
    def commands(self) -> float | None:
        """Commands of clients a second, of all members that report; None if none says so."""
        known = [each.commands for each in self.fresh if each.commands is not None]
        return sum(known) if known else None

    @property
    def busiest(self) -> Seen | None:
        """The member with the most commands of clients, if it says how long they take."""
        known = [each for each in self.fresh if each.most is not None]
        return max(known, key=lambda each: each.commands or 0.0, default=None)

    @property
    def spare(self) -> int:
        """How many voters that report may fail before writes stop; below 0 if they stopped."""
        voters = self.electorate
        there = [each for each in self.fresh if each.member_id in voters]
        return len(there) - (len(voters) // 2 + 1)

    def last_heard(self, member: int) -> float | None:
        """Return how long ago the leader heard a member; without a leader, any other member."""
        of = [self.leader] if self.leader else self.fresh
        times = [each.others[member] for each in of if member in each.others]
        return max(self.now - max(times), 0.0) if times else None

    def lag(self, seen: Seen) -> int | None:
        """Return how many bytes of the log a member is behind; None if unknown."""
        # One that is silent may lead, or have a longer log. Of one that is dead all is known.
        if self.leader is None and any(
            self.is_stale(each) and (each.heard is None or each.trouble not in _ENDS.values())
            for each in self.members.values()
        ):
            return None
        return None if seen.append < 0 or self.head < 0 else self.head - seen.append


def _etcd(found: dict[str, Any]) -> EtcdStatus | None:
    if not found:
        return None
    return EtcdStatus(*(_number(found.get(each.name), 0) for each in attrs.fields(EtcdStatus)))


def _object(found: object) -> dict[str, Any]:
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _text(found: object) -> str:
    """Return a text of one line that no terminal takes for a command."""
    return "".join(each if each.isprintable() else "?" for each in str(found or "")[:MOST_TEXT])


def _number(found: Any, otherwise: Any) -> Any:
    return found if isinstance(found, int | float) and not isinstance(found, bool) else otherwise

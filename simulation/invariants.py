"""What must hold in a cluster after every single event, whatever was done to it.

Numbers are those of the list of invariants that the protocol is checked against: one leader per
term (I-1), promises never go back (I-3), logs that agree at one batch agree below it (I-10), the
table of terms fits the log (I-12), no entry of a term before a quorum has recorded that term
(I-13), commit and applied positions (I-17, I-18), what is committed is on a quorum (I-19) and is
never anything else (I-22), a leader counts of a follower only what is a common prefix (I-27).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ..node.leadership import Leadership
from ..storage import decode_header_untrusted
from ..storage.recording_log import row_of

if TYPE_CHECKING:
    from ..node import Member, Service
    from ..storage.state import Recorded
    from .world import World


class ViolationError(AssertionError):
    """An invariant does not hold."""


@attrs.frozen
class Batch:
    """A batch of a log: where it lies, and a hash of the whole log up to its end."""

    position: int
    end: int
    term: int
    prefix: int


@attrs.define(eq=False)
class Mirror:
    """What is durable at a member, as last looked at; it outlives the member's process."""

    batches: list[Batch] = attrs.field(factory=list[Batch])
    prefix_at: dict[int, int] = attrs.field(factory=lambda: {0: 0})
    terms: dict[int, int] = attrs.field(factory=dict[int, int])  # base of each
    recorded: Recorded | None = None
    candidate_term: int = -1
    incarnation: int = 0
    commit: int = 0  # of this incarnation
    compared: int = 0  # batches that were compared with what is committed

    @property
    def end(self) -> int:
        """Where the log ends."""
        return self.batches[-1].end if self.batches else 0

    def cut(self, position: int) -> None:
        """Forget what was truncated."""
        while self.batches and self.batches[-1].end > position:
            del self.prefix_at[self.batches.pop().end]
        self.compared = min(self.compared, len(self.batches))


def require(condition: bool, words: str) -> None:  # noqa: FBT001 - like an assertion
    """Raise unless it holds."""
    if not condition:
        raise ViolationError(words)


class Invariants:
    """Looks at a world after every event.

    Attributes:
        violations: words of all that did not hold.
        events: how often it looked.
    """

    def __init__(self, world: World[Service], *, fatal: bool = True) -> None:
        self.violations: list[str] = []
        self.events = 0
        self._world = world
        self._fatal = fatal
        self._mirrors = {i: Mirror() for i in world.hosts}
        self._leader_of: dict[int, int] = {}
        self._prefix_of: dict[tuple[int, int], int] = {}
        self._committed: dict[int, Batch] = {}
        self._quorum = len(world.hosts) // 2 + 1
        world.after_every_event(self.look)

    def look(self, i: int) -> None:
        """Look at a member."""
        self.events += 1
        try:
            self._look(i)
        except ViolationError as violation:
            self.violations.append(str(violation))
            if self._fatal:
                raise

    def _look(self, i: int) -> None:
        member = self._world.hosts[i].member
        if member is None:
            return
        mirror = self._mirrors[i]
        if mirror.incarnation != member.incarnation:
            self._restarted(member, mirror)
        self._follow_log(i, member, mirror)
        self._check_positions(i, member, mirror)
        self._check_committed(i, member, mirror)
        if isinstance(role := member.core.role, Leadership):
            self._check_leader(i, role)

    def _restarted(self, member: Member, mirror: Mirror) -> None:
        mirror.incarnation = member.incarnation
        mirror.commit = 0
        mirror.compared = 0
        mirror.recorded = None
        require(
            member.store.append_position >= mirror.end or bool(mirror.batches) is False,
            f"member {member.config.member_id} lost durable bytes",
        )
        mirror.cut(0)
        mirror.batches.clear()
        mirror.prefix_at = {0: 0}
        truncate = member.store.truncate

        async def truncated(position: int, *, last_term: int | None = None) -> None:
            await truncate(position, last_term=last_term)
            mirror.cut(position)
            mirror.recorded = None

        setattr(member.store, "truncate", truncated)  # noqa: B010 - of this one store

    def _follow_log(self, i: int, member: Member, mirror: Mirror) -> None:
        store = member.store
        if store.recorded is mirror.recorded:
            return
        mirror.recorded = store.recorded
        if store.append_position < mirror.end:
            mirror.cut(store.append_position)
        mirror.terms = {row.term: row.base for row in store.terms}
        state = store.node_state
        require(state.candidate_term >= mirror.candidate_term, f"member {i} forgot a promise")
        require(state.candidate_term >= store.log_term, f"member {i} recorded a term unpromised")
        mirror.candidate_term = state.candidate_term
        if store.append_position == mirror.end:
            return
        for raw in store.scan(mirror.end):
            header = decode_header_untrusted(raw)
            prefix = hash((mirror.prefix_at[mirror.end], header.term, header.position, raw))
            known = self._prefix_of.setdefault((header.term, header.position), prefix)
            require(
                known == prefix,
                f"member {i}: another log below term {header.term} at {header.position}",
            )
            row = row_of(store.terms, header.term)
            require(
                row is not None
                and row.base <= header.position
                and (row.end is None or header.end <= row.end),
                f"member {i}: {header} does not fit {row}",
            )
            mirror.batches.append(Batch(header.position, header.end, header.term, prefix))
            mirror.prefix_at[header.end] = prefix

    def refresh(self) -> None:
        """Look at what is durable everywhere."""
        for j, host in self._world.hosts.items():
            mirror = self._mirrors[j]
            if host.member is not None and host.member.incarnation == mirror.incarnation:
                self._follow_log(j, host.member, mirror)

    def _check_positions(self, i: int, member: Member, mirror: Mirror) -> None:
        applier, append = member.core.applier, member.store.append_position
        require(applier.commit_position >= mirror.commit, f"member {i}: commit went back")
        mirror.commit = applier.commit_position
        require(
            applier.applied_position <= applier.commit_position <= append,
            f"member {i}: applied {applier.applied_position}, "
            f"commit {applier.commit_position}, append {append}",
        )

    def _check_committed(self, i: int, member: Member, mirror: Mirror) -> None:
        commit = member.core.applier.commit_position
        fresh = False
        while mirror.compared < len(mirror.batches):
            batch = mirror.batches[mirror.compared]
            if batch.end > commit:
                break
            mirror.compared += 1
            fresh = fresh or batch.position not in self._committed
            known = self._committed.setdefault(batch.position, batch)
            require(
                known.prefix == batch.prefix,
                f"member {i} committed term {batch.term} at {batch.position}, "
                f"another one term {known.term}",
            )
        if fresh:
            self._check_on_quorum(i, commit)

    def _check_on_quorum(self, i: int, commit: int) -> None:
        self.refresh()
        prefix = self._mirrors[i].prefix_at.get(commit)
        holders = [
            j for j, mirror in self._mirrors.items() if mirror.prefix_at.get(commit) == prefix
        ]
        require(
            len(holders) >= self._quorum,
            f"member {i} committed {commit}, which only {holders} hold",
        )

    def _check_leader(self, i: int, role: Leadership) -> None:
        leader = self._leader_of.setdefault(role.term, i)
        require(leader == i, f"members {leader} and {i} both lead term {role.term}")
        self.refresh()
        mine = self._mirrors[i].prefix_at
        for j, follower in role.followers.items():
            mirror = self._mirrors[j]
            if mirror.candidate_term > role.term or follower.match not in mine:
                continue
            require(
                mirror.prefix_at.get(follower.match) == mine[follower.match],
                f"leader {i} counts {follower.match} of member {j}, whose log is another",
            )
        if role.publication_position > role.base:
            recorded = [j for j, mirror in self._mirrors.items() if role.term in mirror.terms]
            require(
                len(recorded) >= self._quorum,
                f"leader {i} writes in term {role.term}, which only {recorded} have recorded",
            )

    @property
    def committed_end(self) -> int:
        """Highest position that anybody committed."""
        return max((batch.end for batch in self._committed.values()), default=0)

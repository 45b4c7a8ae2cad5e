"""The observer: looks at members after every event, and tells the invariants what is new.

It hears what a member hears, sends and makes durable, and looks then at what the member holds: its
store as it is durable, its commit position, whether it leads and whom it counts. What has changed
since it last looked are the facts that it tells, in the order in which one rests on the other.
"""

from __future__ import annotations

import functools
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import attrs
import trio

from ..node.leader.leadership import Leadership
from ..node.protocol.membership import Membership, decode_membership_untrusted
from ..storage import (
    EMPTY_LOG,
    EntryKind,
    VotingRight,
    decode_entries_untrusted,
    decode_header_untrusted,
)
from ..storage.log.batch import HEADER_BYTES
from ..transport import (
    AppendPosition,
    CommitPosition,
    ForwardReply,
    ForwardRequest,
    LogBatch,
    NewLeadershipTerm,
    RequestVote,
    Vote,
)
from .invariants import INVARIANTS, ViolationError
from .watching.facts import (
    Appended,
    Batch,
    Claimed,
    Committed,
    Counted,
    Created,
    CutOff,
    Deposed,
    Dismissed,
    Elected,
    InForce,
    Installed,
    Installing,
    Leased,
    Listed,
    Promised,
    Recorded,
    Said,
    Saved,
    Started,
    TermRecorded,
    Truncated,
    Truncating,
    VotingStatus,
    Wiped,
    Writes,
)
from .watching.knowledge import NOTHING, Knowledge

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from ..node import Member
    from ..storage import BatchHeader, NodeState, SnapshotHead, SnapshotRow, TermRow
    from ..storage.log.state import Recorded as StoreState
    from ..transport import Message
    from .watching.facts import Fact

CLAIMS = RequestVote | Vote | AppendPosition | NewLeadershipTerm
AT_WORK = AppendPosition | CommitPosition | LogBatch | ForwardRequest | ForwardReply
PREFIX_BYTES = 12


@attrs.define(eq=False)
class _Seen:
    """What was last seen of a running member."""

    member: Member
    state: StoreState
    terms: tuple[TermRow, ...] = ()
    promised: NodeState | None = None
    commit: int = 0
    role: Leadership | None = None
    writes: bool = False
    counted: dict[int, int] = attrs.field(factory=dict[int, int])
    membership: Membership | None = None
    rows: object = None
    appending: bool = False
    cutting: bool = False
    dismissed: bool = False


class Observer:
    """Tells invariants the facts of a cluster.

    Args:
        members: their ids.
        standbys: those of them that are no part of any quorum.
        fatal: raise what is violated; else it is only kept.

    Attributes:
        known: all that is known of the cluster.
        violations: the words of all that did not hold.
        facts: how many there were.
        on_violation: called with what does not hold, when that is seen.
    """

    def __init__(
        self, members: list[int], *, standbys: Collection[int] = (), fatal: bool = True
    ) -> None:
        self.known = Knowledge(members, standbys)
        self.violations: list[str] = []
        self.facts = 0
        self.on_violation: Callable[[ViolationError], None] = lambda _: None
        self._fatal = fatal
        self._seen: dict[int, _Seen] = {}
        self._hearers: dict[type[Fact], list[Callable[[Fact], None]]] = {}
        for invariant in [kind(self.known) for kind in INVARIANTS]:
            for fact in invariant.hears:
                self._hearers.setdefault(fact, []).append(invariant.hear)

    def tell(self, fact: Fact) -> None:
        """Tell a fact to all invariants that want to hear it.

        Raises:
            ViolationError: it must not be, and that is fatal.
        """
        self.facts += 1
        self.known.hear(fact)
        for hear in self._hearers.get(type(fact), ()):
            try:
                hear(fact)
            except ViolationError as violation:
                self.violations.append(str(violation))
                self.on_violation(violation)
                if self._fatal:
                    raise

    # --- a member's life --------------------------------------------------------------------------

    def attend(self, member: Member) -> None:
        """Look at a member that is about to start, and at how it cuts its log from then on."""
        i, store = member.config.member_id, member.store
        state = store.recorded
        promised = state.node_state
        if state.lost != EMPTY_LOG:
            self.tell(CutOff(i, state.append_position))
        term, voted_for = promised.candidate_term, promised.voted_for
        instance = store.identity.instance_id
        self.tell(Started(i, state.append_position, term, voted_for, instance))
        self.tell(VotingStatus(i, member.state.votes, state.voting_status.floor.position))
        self._seen[i] = _Seen(member, state, promised=promised)
        self._look_for_snapshot(i, member)
        self._read_terms(i, state.terms)
        self._read_log(i, member)
        self._watch_append(i, member)
        self._watch_commit(i, member)
        truncate = store.truncate

        async def watched(position: int, *, last_term: int | None = None) -> None:
            self.look(i)
            self.tell(Truncating(i, position))
            # The table is shorter before we hear of it: a message may come in between.
            self._seen[i].cutting = True
            await truncate(position, last_term=last_term)
            self.tell(Truncated(i, position))
            self._seen[i].cutting = False
            self._seen[i].terms, self._seen[i].membership = (), None
            self.look(i)

        setattr(store, "truncate", watched)  # noqa: B010 - of this one store
        self._watch_install(i, member)
        self._watch_save(i, member)
        self.look(i)

    def _watch_save(self, i: int, member: Member) -> None:
        """Look at each snapshot, of its own or of another member, that the member writes."""
        # Both ways to a file go through it.
        write = member.snapshots._write  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

        async def watched(head: SnapshotHead, pieces: Iterator[bytes]) -> int:
            # Without a vote, a store does not know yet which configurations are of its history.
            if member.state.votes:
                text = head.membership.encode()
                self.tell(Saved(i, head.position, decode(text) if text else None))
            return await write(head, pieces)

        setattr(member.snapshots, "_write", watched)  # noqa: B010 - of this one member

    def _watch_install(self, i: int, member: Member) -> None:
        """Look at a snapshot that takes the place of the log."""
        install = member.store.install

        async def watched(snapshot: SnapshotRow, *arguments: Any, **more: Any) -> None:
            self.tell(Installing(i, snapshot.position))
            await install(snapshot, *arguments, **more)
            self._seen[i].membership = None
            self.look(i)

        setattr(member.store, "install", watched)  # noqa: B010 - of this one store

    def _watch_append(self, i: int, member: Member) -> None:
        """Look at each configuration that the member submits to its log."""
        append = member.store.append

        def watched(
            batch: bytes,
            *,
            header: BatchHeader | None = None,
            done: Callable[[], None] | None = None,
        ) -> None:
            membership = membership_of(batch)
            if membership is None:
                append(batch, header=header, done=done)
                return
            seen = self._seen[i]
            # Parts of the member are called in the middle of this, and what they send is looked at.
            seen.appending = True
            end = decode_header_untrusted(batch).end
            self.tell(Appended(i, end, membership))
            append(batch, header=header, done=done)
            seen.appending, seen.membership = False, None  # it is told anew, changed or not
            self.look(i)

        setattr(member.store, "append", watched)  # noqa: B010 - of this one store

    def _watch_commit(self, i: int, member: Member) -> None:
        """Look at a leader's commit before its followers have heard of it."""
        commit = member.applier.commit

        def watched(position: int) -> None:
            commit(position)
            self.look(i)

        setattr(member.applier, "commit", watched)  # noqa: B010 - of this one member

    def created(self, i: int) -> None:
        """There is a machine for a new member."""
        self.tell(Created(i))

    def gone(self, i: int) -> None:
        """A member does not run any more."""
        seen = self._seen.pop(i, None)
        if seen is not None and seen.role is not None:
            self.tell(Deposed(i, seen.role.term))

    def digest_at(self, position: int) -> bytes:
        """Give what stands for everything applied up to a position; see `watched.Digests`."""
        return self.known.digests.get(position, b"")

    def wiped(self, i: int) -> None:
        """A member's disk was lost."""
        self.tell(Wiped(i))

    def sends(self, i: int, message: Message) -> None:
        """A member is about to send a message."""
        if not isinstance(message, AT_WORK):
            self.tell(Said(i, trio.current_time(), type(message).__name__))
        if isinstance(message, CLAIMS):
            self.look(i)
            self.tell(Claimed(i, message))

    # --- looking ----------------------------------------------------------------------------------

    def look(self, i: int) -> None:
        """Look at a member."""
        seen = self._seen.get(i)
        if seen is None:
            return
        member = seen.member
        if member.store.recorded is not seen.state:
            self._look_at_disk(i, seen)
        self._look_at_membership(i, seen)
        commit = member.applier.commit_position
        if member.store.recorded.lost != EMPTY_LOG:  # what it has applied may go further
            commit = min(commit, member.store.append_position)
        role = member.state.role
        if role is not seen.role and (seen.role is not None or isinstance(role, Leadership)):
            self._look_at_role(i, seen, role if isinstance(role, Leadership) else None)
        if commit != seen.commit:
            seen.commit = commit
            self._look_at_disks()
            self.tell(Committed(i, commit))
        if seen.role is not None:
            self._look_at_leader(i, seen, seen.role)

    def _look_at_disks(self) -> None:
        """Look at what is durable everywhere, for a claim about others rests on it."""
        for j, other in self._seen.items():
            if other.member.store.recorded is not other.state:
                self._look_at_disk(j, other)

    def _look_at_disk(self, i: int, seen: _Seen) -> None:
        member = seen.member
        state = seen.state = member.store.recorded
        if state.node_state is not seen.promised:
            seen.promised = state.node_state
            self.tell(Promised(i, seen.promised.candidate_term, seen.promised.voted_for))
        disk, floor = self.known.disks[i], state.voting_status.floor.position
        if (member.state.votes, floor) != (disk.votes, disk.floor):
            self.tell(VotingStatus(i, member.state.votes, floor))
            seen.membership = None
        self._look_for_snapshot(i, member)
        if state.terms is not seen.terms:
            self._read_terms(i, state.terms)
            seen.terms = state.terms
        if state.append_position > self.known.disks[i].end:
            self._read_log(i, member)

    def _look_at_membership(self, i: int, seen: _Seen) -> None:
        """Look by which configuration a member decides, and what its store says of it."""
        state, membership = seen.state, seen.member.state.membership
        if state.memberships is not seen.rows and not seen.cutting:
            seen.rows = state.memberships
            rows = [(row.position, decode(row.payload)) for row in state.memberships]
            self.tell(Listed(i, tuple((at, value) for at, value in rows if value is not None)))
        if membership is not seen.membership and not seen.appending:
            seen.membership = membership
            self.tell(InForce(i, membership))
        if state.voting_status.kind is VotingRight.REMOVED and not seen.dismissed:
            seen.dismissed = True
            self.tell(Dismissed(i))

    def _look_for_snapshot(self, i: int, member: Member) -> None:
        """Look whether the log begins anew behind all that was known of it."""
        if member.store.start_position > self.known.disks[i].end:
            self.tell(Installed(i, member.store.start_position))

    def _read_terms(self, i: int, terms: tuple[TermRow, ...]) -> None:
        bases = self.known.disks[i].bases
        for row in terms:
            if bases.get(row.term) != row.base:
                self.tell(TermRecorded(i, row.term, row.base))

    def _read_log(self, i: int, member: Member) -> None:
        """Read the batches that have become durable."""
        disk = self.known.disks[i]
        prefix = disk.batches[-1].prefix if disk.batches else NOTHING
        for raw in member.store.scan(disk.end):
            header = decode_header_untrusted(raw)
            prefix = blake2b(prefix + raw, digest_size=PREFIX_BYTES).digest()
            batch = Batch(
                header.position, header.end, header.term, prefix, membership_of(raw, header)
            )
            self.tell(Recorded(i, batch))

    def _look_at_role(self, i: int, seen: _Seen, role: Leadership | None) -> None:
        if seen.role is not None:
            self.tell(Deposed(i, seen.role.term))
        seen.role, seen.writes = role, False
        seen.counted.clear()
        if role is not None:
            self._look_at_disks()
            self.tell(Elected(i, role.term))
            for j, other in self._seen.items():
                if j != i and other.role is not None:
                    self._look_at_lease(j, other.role)

    def _look_at_lease(self, i: int, role: Leadership) -> None:
        """Look whether a leader answers reads without asking anybody although another one leads."""
        if role.term >= self.known.newest or role.ended is not None:
            return
        if role.reads.lease_left > 0:
            self.tell(Leased(i, role.term))

    def _look_at_leader(self, i: int, seen: _Seen, role: Leadership) -> None:
        self._look_at_lease(i, role)
        if not seen.writes and role.publication_position > role.base:
            seen.writes = True
            self._look_at_disks()
            self.tell(Writes(i, role.term))
        for j, follower in role.followers.items():
            counted = follower.match if follower.votes else 0
            if j in self.known.disks and counted != seen.counted.get(j):
                seen.counted[j] = counted
                self._look_at_disks()
                self.tell(Counted(i, j, role.term, counted))


def membership_of(raw: bytes, header: BatchHeader | None = None) -> Membership | None:
    """Give the configuration in a batch, None if it has none."""
    # An entry of membership is alone in its batch, so the first kind says it all.
    count = (header or decode_header_untrusted(raw)).count
    if not count or raw[HEADER_BYTES] != EntryKind.MEMBERSHIP:
        return None
    return decode(bytes(decode_entries_untrusted(raw)[0].payload))


@functools.cache
def decode(payload: bytes) -> Membership | None:
    """Give the configuration of an entry; equal ones are one value."""
    return decode_membership_untrusted(payload)

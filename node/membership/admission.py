"""Whose store may vote: a wiped disk is not an empty new member.

What a member has acknowledged and whom it has voted for was on its disk. If that is replaced by an
empty one, and the member votes on, {L, W} have committed an entry, W is wiped, X and W elect X, and
the entry is gone. So a store has a **voting status**, durably (`storage.log.voting_status`):

- NEW, as it is made. It takes no part in anything, and tells the others which fresh stores it
  has heard of, its own included. Once all members tell the same full list, each of them founds the
  cluster: its store is a VOTER, and remembers the list. Who is in the list that a founder tells
  does so, too; who is not stands in the place of a lost store, and stops with `LostStoreError`.
  An operator may name members that the founding does not wait for, see below.
- RECOVERING, as an operator has said that it is (``quorate recover``). It follows a leader and gets
  all of the log. But it does not stand, gives no vote and no yes to a scout, and what it reports
  counts for nothing: not for the commit position, for READY, for reads, for a quorum heard.
- VOTER, once an entry of the log that names just this store was committed, by a quorum of others
  therefore, and was applied here. Only then is it counted. The leader appends that entry when a
  follower that has its log asks for it.

Why the list is safe. Each of its stores was fresh when it sent its list; the first to do so had
heard of all the others. So at that moment all of them existed and were fresh: nothing had been
committed that was not lost already, and all that was committed since rests on these very stores.

Founding without named members (``quorate control found --without``). The member that is asked
founds once it has heard of all others, and their lists and its own are equal where the named
members are left out; they are so many that a quorum of the configuration is left. A named member
that lists our store is there, and is not left out. The argument above holds for the stores of that
list. Two lists may both be founded, as by two operators with different words. Still each member
has one store with a vote, and a quorum of N is N // 2 + 1, so nothing that is committed can be
missed. Whoever founds dials the others anew and tells the history, by which members of different
lists part; those that are no quorum find no leader, and have to recover.
A member whose id is in no list was left out. Its store never
had a vote, so it becomes RECOVERING by itself, and the log admits it as it admits a lost store. A
left-out store that has a log (of a backup) stops with `LostStoreError`: its log was not compared.

Why an admission is safe. Let q be the quorum of N, a the entry that admits W's new store, t its
term. Entries that the old store had acknowledged are with q - 1 others, of which any leader that
was elected without W has met one, since it has the votes of q of the N - 1 others. So a's leader
has them; who holds a has them too, and W votes only after it does, in terms above t, for it
promised t when it followed. What remains are old votes: a candidate that counts the vote of the
old store in a term above t asked for it when there was no a, so its log has none, and it needs the
votes of q - 1 more. But a is with q of the N - 1 others; q + q - 1 > N - 1, so one of those holds
a, and refuses a log without it. That is also why a vote for a log that is behind, which an operator
may ask for, is not given across an admission (`rules.consider`). The same holds for several lost
stores: only those that have a vote admit others.

Fresh stores may have a log: those of a restored cluster, or one with which a quorum was forced.
Where the longest ended is the floor of the cluster: who is below it never stands, and votes for
nobody who is. So a leader always has what the cluster began with.

The number of the members that count does not change by any of this: N is that of the configuration.
A member that is marked there as a standby is no part of N, whatever its store: it is neither among
the founders nor ever admitted, and has nothing to lose with its disk.
"""

from __future__ import annotations

import json
import logging
import struct
from typing import TYPE_CHECKING, Final, cast

import trio

from ...errors import LostStoreError, RefusedError, WireError
from ...storage import EMPTY_LOG, Entry, EntryKind, LogEnd, VotingRight, VotingStatus
from ...storage.log.voting_status import encode_voting_status
from ...transport import AdmissionRequest, AppendFlags, Founding, FoundingStore
from ..protocol.role import Signal

if TYPE_CHECKING:
    from ...storage import Store
    from ..follower.following import Following
    from ..leader.follower_progress import Follower
    from ..leader.leadership import Leadership
    from ..requests.gateway import Request
    from ..state import Core

log = logging.getLogger("quorate.node")

FOUND: Final = b"found"
"""The verb of the control request that begins a cluster without named members."""


class Founders:
    """Has a fresh store found the cluster, together with those of all other members.

    Args:
        core: of the member.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._heard: dict[int, Founding] = {}
        self._without: tuple[int, ...] = ()
        self._said = ""
        self._changed = Signal()

    @property
    def missing(self) -> list[int]:
        """The members whose stores we have not heard of, as long as our own is fresh."""
        fresh = self._core.store.voting_status.kind is VotingRight.NEW
        return [peer for peer in self._core.voters if fresh and peer not in self._heard]

    async def found(self) -> None:
        """Return once our store is not fresh any more.

        Raises:
            LostStoreError: the cluster began with other stores: ours stands in a lost one's place.
        """
        core, said, again, pause = self._core, None, trio.current_time(), 0.0
        while core.store.voting_status.kind is VotingRight.NEW and not core.standby:
            if (stores := self._complete()) is not None:
                await core.store.save_voting_status(stores)
                core.links.set_history(stores.history)
                core.links.dial_anew()
                self._log_outcome(stores)
                return
            self._tell()
            news = self._founding(self._stores(), core.log_end, founded=False)
            # What others repeat is no news, and to answer it at once would be answered at once.
            if news != said or trio.current_time() >= again:
                core.broadcast(news)
                pause = core.timeouts.canvass_interval if news != said else 2 * pause
                pause = min(pause, core.timeouts.leader_heartbeat_timeout)
                said, again = news, trio.current_time() + pause
            await self._changed.wait(again)

    def _log_outcome(self, standing: VotingStatus) -> None:
        """Log with which stores the cluster begins, or that it began without ours."""
        own = self._core.member_id
        if standing.kind is VotingRight.RECOVERING:
            log.warning(
                "member %d: the cluster was founded without this member; "
                "it has no vote until the log admits its store",
                own,
            )
            return
        members = ", ".join(str(member) for member, _ in standing.founders)
        log.info("member %d: the cluster is founded by members %s", own, members)

    def _tell(self) -> None:
        """Log which members the founding waits for, whenever that changes."""
        waits = ", ".join(map(str, self.missing)) or "nobody"
        if waits != self._said:
            self._said = waits
            log.info(
                "member %d: its store is new; the cluster begins once all members report that "
                "theirs are new, too; not heard of: %s%s",
                self._core.member_id,
                waits,
                self._way_out(),
            )

    def _way_out(self) -> str:
        """Say how to begin without the missing members, where the others are a quorum."""
        missing, core = self.missing, self._core
        if not missing or core.size - len(missing) < core.quorum:
            return ""
        named, own = ",".join(map(str, missing)), core.config.own
        return (
            f". To begin without member {named}, if it has no data of this cluster: "
            f"quorate control found --without {named} --connect {own.host}:{own.client_port}"
        )

    def take(self, request: Request) -> bool:
        """Answer an operator who founds the cluster; say whether the request is one of his.

        A waiting member has no leader that could answer, so this one does.
        """
        verb, _, rest = request.payload.partition(b" ")
        if verb != FOUND or self._core.store.voting_status.kind is not VotingRight.NEW:
            return False
        try:
            self._without = self._named_untrusted(rest)
        except RefusedError as error:
            request.done(error)
            return True
        self._changed.notify()
        named = ", ".join(map(str, self._without))
        waits = [peer for peer in self.missing if peer not in self._without]
        log.warning("member %d: founds without member %s", self._core.member_id, named)
        still = f", once member {', '.join(map(str, waits))} is there" if waits else ""
        request.done(f"the cluster begins without member {named}{still}".encode())
        return True

    def _named_untrusted(self, rest: bytes) -> tuple[int, ...]:
        """Decode the members to begin without: ids with spaces in between.

        Raises:
            RefusedError: they are not other voters, or too few would be left for a quorum.
        """
        core, words = self._core, rest.decode("ascii", "replace").split()
        known = {str(member): member for member in core.voters}
        most = core.size - core.quorum
        named = {known[word] for word in words if word in known}
        if not words or not {*words} <= {*known} or len(named) > most:
            others = ", ".join(known)
            raise RefusedError(
                f"found without {' '.join(words)!r}: expected at most {most} of the other voters "
                f"{others}, so that a quorum of {core.quorum} is left"
            )
        return tuple(sorted(named))

    def on_message(self, sender: int, message: Founding) -> None:
        """Hear of another member's store; tell of ours if it is none of the fresh ones."""
        if message.member_id != sender or sender not in self._core.voters:
            return
        standing = self._core.store.voting_status
        if standing.kind is VotingRight.NEW:
            self._heard[sender] = message
            self._changed.notify()
        elif standing.kind is VotingRight.VOTER and not message.founded:
            floor = standing.floor
            self._core.send(sender, self._founding(standing.founders, floor, founded=True))

    def _complete(self) -> VotingStatus | None:
        """Give our standing, once it is certain with which stores the cluster begins."""
        core, own = self._core, self._core.store.identity
        for message in self._heard.values():
            if message.founded:
                stores = _pairs(message)
                if (own.member_id, own.instance_id) in stores:
                    return _member(stores, _end(message))
                unlisted = own.member_id not in {member for member, _ in stores}
                if unlisted and core.log_end == EMPTY_LOG:
                    return VotingStatus(VotingRight.RECOVERING)
                raise LostStoreError(self._lost(message.member_id))
        stores, left_out = self._stores(), self._left_out
        heard = [each for each in self._heard.values() if each.member_id not in left_out]
        agreed = all(self._counted(_pairs(message)) == stores for message in heard)
        if not agreed or not {*self.missing} <= left_out:
            return None
        ends = [_end(message) for message in heard]
        return _member(stores, max([core.log_end, *ends]))

    def _lost(self, witness: int) -> str:
        own = self._core.member_id
        if self._core.store.recorded.forced:
            return (
                f"member {own}: the quorum was forced with its store, but member {witness} has the "
                "history from before. Stop that one, and give it an empty directory"
            )
        return (
            f"member {own}: its store is new, but the cluster has a history, as member {witness} "
            "says. If its disk was lost or replaced: quorate recover"
        )

    def _stores(self) -> tuple[tuple[int, int], ...]:
        """Our store and the fresh ones that we have heard of, but for those of named members."""
        own = self._core.store.identity
        heard = {peer: message.instance_id for peer, message in self._heard.items()}
        stores = sorted({**heard, own.member_id: own.instance_id}.items())
        return self._counted(tuple(stores))

    def _counted(self, stores: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        """The stores of a list that the founding is about."""
        return tuple(store for store in stores if store[0] not in self._left_out)

    @property
    def _left_out(self) -> set[int]:
        """The members to begin without; one that lists our store is there, and begins with us."""
        own = self._core.store.identity
        ours = own.member_id, own.instance_id
        there = {each.member_id for each in self._heard.values() if ours in _pairs(each)}
        return {*self._without} - there

    def _founding(
        self, stores: tuple[tuple[int, int], ...], end: LogEnd, *, founded: bool
    ) -> Founding:
        own = self._core.store.identity
        listed = tuple(FoundingStore(*store) for store in stores)
        return Founding(own.member_id, own.instance_id, founded, end.term, end.position, listed)


def _member(stores: tuple[tuple[int, int], ...], floor: LogEnd) -> VotingStatus:
    return VotingStatus(VotingRight.VOTER, stores, floor)


def _end(message: Founding) -> LogEnd:
    return LogEnd(message.log_term, message.log_position)


def _pairs(message: Founding) -> tuple[tuple[int, int], ...]:
    return tuple((store.member_id, store.instance_id) for store in message.stores)


# --- admissions -----------------------------------------------------------------------------------


def ask_for_admission(role: Following) -> None:
    """Ask the leader, whose log we have, to admit our store, if it has no vote yet."""
    core = role.core
    if not core.votes and not core.standby and AppendFlags.READY in role.flags:
        own = core.store.identity
        core.send(role.leader_id, AdmissionRequest(role.term, own.member_id, own.instance_id))


def on_admission_request(
    leadership: Leadership, follower: Follower, message: AdmissionRequest
) -> None:
    """Append the entry that admits a follower's store, once for each time that it joins."""
    follows = follower.ready and follower.live and not follower.votes and not follower.standby
    if message.member_id != follower.member_id or not follows:
        return
    if not leadership.accepting or follower.admission is not None:
        return
    known = leadership.core.store.voting_status
    payload = encode_admission(message.member_id, message.instance_id, known)
    leadership.append([Entry(EntryKind.MEMBERSHIP, payload)])
    follower.admission = leadership.publication_position
    log.warning(
        "member %d: the new store %016x of member %d is to be admitted at %d",
        leadership.core.member_id,
        message.instance_id,
        message.member_id,
        follower.admission,
    )


async def on_admission(store: Store, entry: Entry) -> bool:
    """Have a vote from now on, if a committed entry admits our very store; say whether it does."""
    try:
        member_id, instance_id, standing = decode_admission_untrusted(entry.payload)
    except WireError as error:  # of a newer version
        log.warning("member %d: %s", store.identity.member_id, error)
        return False
    own = store.identity.member_id, store.identity.instance_id
    if own != (member_id, instance_id) or store.voting_status.kind is VotingRight.VOTER:
        return False
    await store.save_voting_status(standing)
    log.warning("member %d: its store is admitted, it has a vote", member_id)
    return True


def encode_admission(member_id: int, instance_id: int, standing: VotingStatus) -> bytes:
    """Return the payload of the entry that admits a store: JSON, instance ids in hexadecimal.

    With the standing that it has from then on, which is the leader's.
    """
    admits = {
        "member": member_id,
        "instance": f"{instance_id:016x}",
        "founders": {str(member): f"{instance:016x}" for member, instance in standing.founders},
        "floor": standing.floor,
    }
    return json.dumps(admits).encode()


def decode_admission_untrusted(payload: bytes) -> tuple[int, int, VotingStatus]:
    """Return member and instance id of an entry that admits a store, and its standing then.

    Raises:
        WireError: it is none.
    """
    try:
        admits = cast("dict[str, object]", json.loads(payload))
        stores = cast("dict[str, str]", admits["founders"])
        founders = tuple(sorted((int(one), int(stores[one], 16)) for one in stores))
        member, instance = cast("int", admits["member"]), int(cast("str", admits["instance"]), 16)
        term, position = cast("list[int]", admits["floor"])
        standing = VotingStatus(VotingRight.VOTER, founders, LogEnd(int(term), int(position)))
        encode_voting_status(standing)  # its numbers fit
    except (ValueError, TypeError, KeyError, AttributeError, struct.error) as error:
        raise WireError(f"an entry of membership that can't be read: {error!r}") from error
    return int(member), instance, standing

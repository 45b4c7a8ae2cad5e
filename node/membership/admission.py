"""Whose store may vote: a wiped disk is not an empty new member.

What a member has acknowledged and whom it has voted for was on its disk. If that is replaced by an
empty one, and the member votes on, {L, W} have committed an entry, W is wiped, X and W elect X, and
the entry is gone. So a store has a **standing**, durably (:mod:`storage.log.voting_status`):

- FRESH, as it is made. It takes no part in anything, and tells the others which fresh stores it
  has heard of, its own included. Once all members tell the same full list, each of them founds the
  cluster: its store is a MEMBER, and remembers the list. Who is in the list that a founder tells
  does so, too; who is not stands in the place of a lost store, and stops with `LostStoreError`.
  An operator may name members that the founding does not wait for, see below.
- RECOVERING, as an operator has said that it is (``quorate recover``). It follows a leader and gets
  all of the log. But it does not stand, gives no vote and no yes to a scout, and what it reports
  counts for nothing: not for the commit position, for READY, for reads, for a quorum heard.
- MEMBER, once an entry of the log that names just this store was committed, by a quorum of others
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
may ask for, is not given across an admission (`ballots.consider`). The same holds for several lost
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
from typing import TYPE_CHECKING, cast

from ...errors import WireError
from ...storage import LogEnd, VotingRight, VotingStatus
from ...storage.log.voting_status import encode_voting_status

if TYPE_CHECKING:
    from ...storage import Entry, Store

log = logging.getLogger("quorate.node")


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

"""Which store may vote: a wiped disk is not an empty new member.

What a member has acknowledged, and for whom it has voted, is on its disk. Suppose that members L
and W have committed an entry, and the disk of W is replaced by an empty one. If W votes on as if
nothing had been, X and W elect X, and the entry is gone.

The voting status of a store
============================
So each store has a status, durably (:mod:`quorate.storage.rows.voting_status`):

- NEW, as it is made. It takes no part in anything until the cluster is founded. (The status calls
  it *fresh*.)
- RECOVERING, once an operator says that it takes the place of a lost store (``quorate recover``).
  It follows a leader and gets all of the log. But it does not stand, and grants no vote and no
  pre-vote. Its reports count for nothing: not for the commit position, for READY, for reads, or for
  the quorum that a leader must hear.
- VOTER (in the status: *member*), once it has a vote. The cluster was founded with it. Or it was
  RECOVERING, and has applied its *admission*: a committed entry of the log that names just this
  store. That entry is durable on a quorum of other members. The leader appends it when a follower
  that has its log asks for it.

The number of members that count, N, never changes by any of this: it is that of the configuration.
A standby is no part of N, whatever its store: it is neither a founder nor ever admitted, and has
nothing to lose with its disk.

Founding a cluster (:mod:`.founding`)
=====================================
A NEW store sends the other members the list of NEW stores that it has heard of, its own
included. Once all members send the same full list, each founds the cluster: its store becomes a
VOTER, and remembers the list. A store that is in a founder's list does the same. If that list has
another store of the same member, ours takes the place of a lost one: it stops with
`LostStoreError`.

Why the list is safe: each of its stores was NEW when it sent the full list. The first of them to
send it had heard of all the others. So at that moment all of them existed and were NEW. Nothing had
been committed that was not lost already, and all that was committed since rests on these very
stores.

Founding without named members (``quorate control found --without``) works likewise. The member that
is asked founds once it has heard of all others, and the lists agree if the named members are left
out; enough must be left for a quorum of the configuration. A named member that lists our store is
there, and is not left out. The argument above holds for the stores of that list.

Two operators may name different members, so two lists may both be founded. That is safe: each
member has one store with a vote, and any two quorums of N share a member. A list's fingerprint is
the *history*. A founder dials the others anew to announce it, and members of different histories
refuse each other. Those that are no quorum find no leader, and have to recover.

A member whose id is in no list was left out. Its store never had a vote, so it becomes RECOVERING
by itself, and the log admits it as it admits a lost store. A left-out store that has a log (from a
backup) stops with `LostStoreError`, because its log was not compared.

NEW stores may have a log: those of a restored cluster, or one with which a quorum was forced. The
longest of these logs is the floor of the cluster. A member below it never stands, and votes for no
candidate below it. So a leader always has what the cluster began with.

Why an admission is safe
========================
Let q be the quorum of N. Let E be the entry that admits W's new store, and t its term.

*Entries.* Committed entries that the old store acknowledged are on q - 1 other members. The leader
that wrote E was elected without W, by q of the N - 1 others. So one of its voters had them, and its
log has them. A log that has E has them, too. W votes only once its log has E, and only in terms
above t, since it promised t when it followed.

*Old votes.* A candidate may still count a vote of the old store, in a term above t. It asked for
that vote before E existed, so its log does not have E. It needs q - 1 votes of the N - 1 others.
But E is on q of these, and q + q - 1 > N - 1. So one of its voters has E, and refuses a log without
it. An operator may ask for votes for a log that is behind; such a vote is not given across an
admission, for this reason (`ballots.consider`).

The same holds for several lost stores: only stores that have a vote admit others.
"""

from __future__ import annotations

import json
import logging
import struct
from typing import TYPE_CHECKING, cast

from ...errors import WireError
from ...storage import LogEnd, VotingRight, VotingStatus
from ...storage.rows.voting_status import encode_voting_status

if TYPE_CHECKING:
    from ...storage import Entry, Store

log = logging.getLogger("quorate.node")


async def on_admission(store: Store, entry: Entry) -> bool:
    """Give our store its vote if a committed entry admits it; return whether it does."""
    try:
        member_id, instance_id, status = decode_admission_untrusted(entry.payload)
    except WireError as error:
        # An entry of a newer version: it concerns members that can read it.
        log.warning("member %d: %s", store.identity.member_id, error)
        return False
    own = store.identity.member_id, store.identity.instance_id
    if own != (member_id, instance_id) or store.voting_status.kind is VotingRight.VOTER:
        return False
    await store.save_voting_status(status)
    log.warning("member %d: its store is admitted, it has a vote", member_id)
    return True


def encode_admission(member_id: int, instance_id: int, status: VotingStatus) -> bytes:
    """Return the payload of the entry that admits a store: JSON, instance ids in hexadecimal.

    Args:
        member_id: whose store it is.
        instance_id: of the store.
        status: that the store has from then on, which is the leader's.
    """
    admits = {
        "member": member_id,
        "instance": f"{instance_id:016x}",
        "founders": {str(member): f"{instance:016x}" for member, instance in status.founders},
        "floor": status.floor,
    }
    return json.dumps(admits).encode()


def decode_admission_untrusted(payload: bytes) -> tuple[int, int, VotingStatus]:
    """Return member id, instance id and voting status of an entry that admits a store.

    Raises:
        WireError: it is none.
    """
    try:
        admits = cast("dict[str, object]", json.loads(payload))
        stores = cast("dict[str, str]", admits["founders"])
        founders = tuple(sorted((int(one), int(stores[one], 16)) for one in stores))
        member, instance = cast("int", admits["member"]), int(cast("str", admits["instance"]), 16)
        term, position = cast("list[int]", admits["floor"])
        status = VotingStatus(VotingRight.VOTER, founders, LogEnd(int(term), int(position)))
        encode_voting_status(status)  # its numbers fit
    except (ValueError, TypeError, KeyError, AttributeError, struct.error) as error:
        raise WireError(f"an entry of membership that can't be read: {error!r}") from error
    return int(member), instance, status

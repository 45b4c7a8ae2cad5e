"""Which store may vote: a wiped disk is not an empty new member.

What a member has acknowledged, and for whom it has voted, is on its disk. Suppose that members L
and W have committed an entry, and the disk of W is replaced by an empty one. If W votes on as if
nothing had been, X and W elect X, and the entry is gone.

Two questions
=============
May this store vote at all? Only the store itself knows; that is its *voting status* (below). And is
its vote counted? A candidate and a leader count votes by the configuration in force in their own
logs (:mod:`..configurations`). A voter there is a pair of a member and a store, so the store that
takes the place of a lost one is another voter.

The voting status of a store
============================
It is durable (:mod:`quorate.storage.rows.voting_status`):

- NEW, as it is made. It takes no part in anything until the cluster is founded. (The status calls
  it *fresh*.)
- RECOVERING, if it comes to a cluster that runs: it joins (``join = true``), or an operator says
  that it takes the place of a lost store (``quorate recover``). It follows a leader and gets all of
  the log. But it does not stand, and grants no vote and no pre-vote. Its reports count for nothing.
- VOTER (in the status: *member*), once it may vote. The cluster was founded with it. Or it was
  RECOVERING, and a configuration that it has applied names it as the store of its seat. The leader
  appends that configuration when a follower that has its log asks for it: the store *claims* its
  seat. From then on it votes when it is asked, but it counts only once a joint change has made it a
  voter (:mod:`..leader.members.reconfiguration`).
- REMOVED: the cluster goes on without this member.

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
member has one store with a vote, and any two quorums share a member. A list's fingerprint is the
*history*. A founder dials the others anew to announce it, and members of different histories refuse
each other. Those that are no quorum find no leader, and have to recover.

A member whose id is in no list was left out. Its store never had a vote, so it becomes RECOVERING
by itself, and claims its seat like a store in the place of a lost one. A left-out store that has a
log (from a backup) stops with `LostStoreError`, because its log was not compared.

NEW stores may have a log: those of a restored cluster, or one with which a quorum was forced. The
longest of these logs is the floor of the cluster. A member below it never stands, and votes for no
candidate below it. So a leader always has what the cluster began with. Configurations at or below
the floor are of the history before, and mean nothing.

Why a change of stores is safe
==============================
A change from (W, old store) to (W, new store) is a change of voters, so it is joint: from the joint
entry J on, decisions need a majority with the old store and one with the new store. Nothing that
the old store has acknowledged or promised is lost, since no quorum rests on the new store alone.

The first configuration in a log is the exception. The founders' files name no stores, so a vote of
W counts, whichever store of it votes. A leader that has no configuration in its log could so count
the new store. But the new store votes only after it has applied its claim E. E is committed by a
quorum of voters that are named with their stores, among which the new store is not. So a candidate
whose log does not have E finds a voter among any quorum that has E, and refuses. An operator may
ask for votes for a log that is behind; such a vote is not given across a configuration, for this
reason (`ballots.consider`).

A member without its old store named, because nobody has heard of it since the founding, counts for
nothing until it claims its seat. That is safe too: there are only fewer quorums.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ...log_events import log_event
from ...storage import VotingRight, VotingStatus

if TYPE_CHECKING:
    from ...storage import Store
    from ..protocol.membership import Membership

log = logging.getLogger("quorate.node")


async def become_voter(store: Store, applied: Membership) -> bool:
    """Let our store vote if an applied configuration has it in our seat; return whether it now may.

    Args:
        store: ours.
        applied: the configuration that is applied here; no new leader can take it back.
    """
    own = store.identity
    seat = applied.seat(own.member_id)
    # Another task of ours may be saving it: then it is not durable yet.
    may_begin = store.submitted.voting_status.kind in {VotingRight.NEW, VotingRight.RECOVERING}
    if not may_begin or seat is None or seat.instance != own.instance_id or not applied.version:
        return False
    status = VotingStatus(VotingRight.VOTER, applied.founders, applied.floor)
    await store.save_voting_status(status)
    words = "member %(member)d: the log admits its store as a %(role)s"
    role = seat.role.value
    log_event(log, logging.INFO, "store_admitted", words, member=own.member_id, role=role)
    return True

"""Schedules: for each hazard, a function that plays it on a started stage.

A schedule also runs with the fix in place, and then does no harm. Each one begins with a cluster of
three that has elected a leader and applied one command, and ends at rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from quorate.node import State
from quorate.simulation.ledger import equal
from quorate.simulation.world import TIMEOUTS
from quorate.storage import Entry, EntryKind, encode_batch
from quorate.transport import CommitPosition, LogBatch, LogSubscribe, NewLeadershipTerm

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorate.node import Timeouts
    from quorate.simulation import Ledger, World

PATIENT = attrs.evolve(TIMEOUTS, startup_canvass=60.0, leader_heartbeat_timeout=30.0)


async def begin(stage: World[Ledger], timeouts: Timeouts = TIMEOUTS) -> int:
    """Start the cluster, with one command applied on all members; return the leader."""
    for host in stage.hosts.values():
        host.config = attrs.evolve(host.config, timeouts=timeouts)
    await stage.start()
    leader = await stage.settled()
    assert await stage.attempt(leader, b"begin")
    await equal(stage, [b"begin"])
    return leader


async def wins(stage: World[Ledger], *, among: list[int], state: State) -> int:
    """Wait until one of these members has won a ballot and enters that state; return it."""
    since = len(stage.transitions)

    def found() -> list[int]:
        news = stage.transitions[since:]
        return [each.member_id for each in news if each.after is state and each.member_id in among]

    await stage.until(lambda: bool(found()))
    return found()[0]


async def rest(stage: World[Ledger]) -> None:
    """Wait until all running members have applied all that their leader has committed."""
    leader = await stage.settled()
    assert await stage.attempt(leader, b"end", within=5.0)

    def applied() -> set[int]:
        statuses = [h.member.status() for h in stage.hosts.values() if h.member is not None]
        return {each.applied_position for each in statuses} | {statuses[0].append_position}

    await stage.until(lambda: len(applied()) == 1)


def append_of(stage: World[Ledger], i: int) -> int:
    return stage.hosts[i].running.status().append_position


# --- H1: a stale leader recaptures a member -------------------------------------------------------


async def stale_leader(stage: World[Ledger]) -> None:
    """A voter of the new term returns to the old leader, which then counts it for its quorum.

    The old leader has not noticed that it is alone. The new one has won with the voter's vote, and
    waits for the voter.
    """
    old = await begin(stage, PATIENT)
    known = append_of(stage, old)
    for other in stage.others(old):
        stage.set_timeouts(other, TIMEOUTS)
    pause = stage.messages.drop(
        lambda sender, receiver, message: (
            old not in {sender, receiver}
            and isinstance(message, NewLeadershipTerm | CommitPosition)
        )
    )
    stage.isolate(old)
    for other in stage.others(old):
        stage.network.break_links(f"h{old}", f"h{other}")
    new = await wins(stage, among=stage.others(old), state=State.LEADER_LOG_REPLICATION)
    (voter,) = stage.others(old, new)
    stage.messages.drop(
        lambda sender, _receiver, message: (
            sender == old and isinstance(message, CommitPosition) and message.log_position > known
        )
    )
    stage.network.heal(f"h{old}", f"h{voter}")
    await stage.attempt(old, b"x", within=0.9)
    await stage.kill(old)
    pause()
    await rest(stage)


# --- H2: a divergent log is counted ---------------------------------------------------------------


async def divergent_position(stage: World[Ledger]) -> None:
    """A member whose log is long, but divergent, canvasses before a leader that is alone."""
    old = await begin(stage)
    stage.isolate(old)
    async with trio.open_nursery() as nursery:
        for i in range(3):
            nursery.start_soon(stage.attempt, old, b"doomed %d " % i + b"." * 1000)
        await stage.until(lambda: any(i != old for i in stage.leaders()))
        (new,) = (i for i in stage.leaders() if i != old)
        (third,) = stage.others(old, new)
    assert await stage.attempt(new, b"safe")
    await stage.kill(third)
    stage.messages.drop(
        lambda sender, _receiver, message: sender == new and isinstance(message, NewLeadershipTerm)
    )
    stage.network.heal(f"h{old}", f"h{new}")
    await stage.attempt(new, b"y", within=2.0)
    await stage.kill(new)
    stage.network.heal(f"h{old}", f"h{third}")
    await stage.start(third)
    await rest(stage)


# --- H3: entries of a term that no other member knows ---------------------------------------------


async def unrecorded_term(stage: World[Ledger]) -> None:
    """Two successive leaders write on their own disks only; their logs end at the same position."""
    await begin(stage)
    await stage.kill(*stage.hosts)
    await_nothing = stage.messages.drop(lambda _s, _r, message: isinstance(message, LogSubscribe))
    await stage.start()
    one = await wins(stage, among=stage.others(), state=State.LEADER_READY)
    end = await _write_alone(stage, one, lambda _position: b"x" * 1000)
    await stage.kill(one)
    two = await wins(stage, among=stage.others(one), state=State.LEADER_READY)
    await _write_alone(stage, two, lambda position: _filling(position, end))
    await stage.kill(two)
    await_nothing()
    await stage.start(one)
    await stage.settled()
    await stage.start(two)
    await rest(stage)


async def _write_alone(stage: World[Ledger], leader: int, payload: Callable[[int], bytes]) -> int:
    """Make a leader write before it is ready, if it does so; return the end of its log."""
    await trio.sleep(0.1)
    if stage.hosts[leader].state is State.CLOSED:
        command = payload(append_of(stage, leader))
        await stage.attempt(leader, command, within=0.1)
    return append_of(stage, leader)


def _filling(position: int, end: int) -> bytes:
    """Return a command whose batch reaches from `position` to `end`."""
    for size in range(end - position):
        entries = [Entry(EntryKind.COMMAND, b"y" * size)]
        made = encode_batch(entries, term=0, position=position, timestamp_ms=0, commit_position=0)
        if position + len(made) == end:
            return b"y" * size
    raise AssertionError(f"no batch goes from {position} to {end}")


# --- H5: a delayed message of the current term ----------------------------------------------------


async def delayed_message(stage: World[Ledger]) -> None:
    """The leader's answer to a member's canvass arrives in a later canvass of the same term."""
    leader = await begin(stage)
    absent, member = stage.others(leader)
    await stage.kill(absent)

    def to_member(sender: int, receiver: int, message: object) -> bool:
        return (sender, receiver) == (leader, member) and isinstance(message, NewLeadershipTerm)

    enough = stage.messages.hold(lambda s, r, m: not stage.messages.held and to_member(s, r, m))
    stage.network.break_links(f"h{leader}", f"h{member}")
    await stage.until(lambda: bool(stage.messages.held))
    enough()
    await stage.settled()
    known = append_of(stage, member)
    stage.messages.drop(lambda _s, _r, m: isinstance(m, CommitPosition) and m.log_position > known)
    assert await stage.attempt(leader, b"x")
    stage.messages.drop(to_member)
    stage.network.break_links(f"h{leader}", f"h{member}")
    await stage.reached(member, State.CANVASS)
    stage.messages.deliver(stage.messages.held[0])
    await trio.sleep(0.1)
    await stage.kill(leader)
    await stage.start(absent)
    await rest(stage)


# --- H16: earlier terms committed by counting -----------------------------------------------------


async def figure_eight(stage: World[Ledger]) -> None:
    """A rival with a shorter log returns; only its own disk has a term from in between."""
    leader = await begin(stage)
    known = append_of(stage, leader)
    deaf = stage.messages.drop(lambda sender, _r, m: sender == leader and isinstance(m, LogBatch))
    await stage.attempt(leader, b"x", within=0.1)
    assert append_of(stage, leader) > known
    await stage.kill(leader)
    deaf()
    nobody_joins = stage.messages.drop(lambda _s, _r, m: isinstance(m, LogSubscribe))
    rival = await wins(stage, among=stage.others(leader), state=State.LEADER_READY)
    await stage.kill(rival)
    stage.messages.drop(
        lambda sender, _r, m: (
            sender == leader
            and (
                (isinstance(m, CommitPosition) and m.log_position > known)
                or (isinstance(m, NewLeadershipTerm) and m.commit_position > known)
            )
        )
    )
    await stage.start(leader)
    await stage.reached(leader, State.LEADER_READY)
    await stage.kill(leader)
    nobody_joins()
    await stage.start(rival)
    assert await stage.attempt(await stage.settled(), b"z", within=5.0)
    await stage.start(leader)
    await rest(stage)


# --- H4: the entries of a term without its row ----------------------------------------------------


async def crashes_while_joining(stage: World[Ledger]) -> None:
    """A member is killed and restarted again and again while it records the entries that it missed.

    It missed the rest of one term, and a newer term.
    """
    leader = await begin(stage)
    late = stage.others(leader)[0]
    await stage.kill(late)
    assert await stage.attempt(leader, b"first")
    await stage.kill(leader)
    await stage.start(leader)
    leader = await stage.settled()
    for i in range(5):
        assert await stage.attempt(leader, b"second %d" % i)
    for host in stage.hosts.values():
        host.disk.latency = 0.01
    for i in range(8):
        await stage.start(late)
        await trio.sleep(0.03 + 0.004 * i)
        await stage.kill(late)
    await stage.start(late)
    await trio.sleep(0.2)
    await rest(stage)

"""Operators' changes of the membership: members are added, promoted, moved, replaced and removed.

All of these the cluster must survive, among all other faults, as long as each set of voters has a
majority with good stores. A change may be refused, or have an unknown outcome. What was begun comes
to an end once the faults are over.

If voters that are silent are replaced (`Timeouts.replace_after`), some new members are spares. Then
a leader begins changes by itself, too.

Each order goes to a random member. Orders may cross each other; the leader does one at a time. The
order to move a member is repeated until it is done, as the manual says; other ones are not. The
machine of a new member is made once its seat is committed, and sometimes much later. Its name in
the network is in the order, before the cluster has given it an id.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import trio

from ...errors import RefusedError, RequestError
from ...node.protocol.membership import MAX_VOTERS, MemberRole

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ...node.protocol.membership import Membership, Seat
    from .context import FaultContext

FEWEST_VOTERS: Final = 2
"""Members with a vote that stay, so far as the nemesis knows. Fewer: a run is mostly spent without
any fault of a disk, which a cluster of one or two can't survive."""

MOST_SEATS: Final = 9
"""Members at a time. More: a run is slow, and does less."""

MOST_ORDERS: Final = 2
"""Orders under way at a time, so that they cross each other at times, but most are done."""

ORDER_TIMEOUTS: Final = (0.5, 4.0, 20.0)
"""How long an operator waits, in heartbeat timeouts; one of them is chosen each time."""


async def members(n: FaultContext) -> None:
    """Have an operator change something about the members."""
    actions = [action for action, weight in ACTIONS for _ in range(weight)]
    await n.rng.choice(actions)(n)


async def _add(n: FaultContext) -> None:
    """Add a member."""
    now = n.observer.known.latest
    if len(now.seats) < MOST_SEATS and _wanted(now) < MAX_VOTERS:
        roles = ("voter", "voter", "voter", "standby", "witness")
        spares = ("spare",) * 4 if n.world.setting.timeouts.replace_after else ()
        role = n.rng.choice((*roles, *spares))
        # Where little log is kept, the loss of a member with tables may be more than one loss.
        if role == "witness" and not n.world.setting.snapshot.margin_bytes:
            role = "voter"
        await _order_new(n, f"role={role} even")


async def _replace(n: FaultContext) -> None:
    """Replace a member by a new one; perhaps it is dead."""
    if len(n.observer.known.latest.seats) > MOST_SEATS:
        return
    member = _someone(n)
    await _order_new(n, f"replaces={member} even")
    host = n.world.hosts.get(member)
    if n.rng.random() < 0.4 and host is not None and host.member is not None:
        await n.world.kill(member)  # for good, unless another fault starts it


async def _order_new(n: FaultContext, words: str) -> None:
    """Ask for a new member, and make its machine once it has a seat."""
    name = n.new_name()
    order = f"member add host={name} member_port=7000 client_port=6000 {words}"
    if _order(n, order):
        n.spawn(_come_up, n, name)


async def _come_up(n: FaultContext, name: str) -> None:
    """Start a new member once its seat is committed; perhaps long after, perhaps not now."""
    while (seat := seat_at(n.observer.known.latest, name)) is None:  # noqa: ASYNC110
        await trio.sleep(n.unit / 5)
    if n.rng.random() < 0.1:
        return  # an operator has typed a wrong address, or is at lunch
    await trio.sleep(n.rng.choice((0.0, n.a_while())))
    if seat.member_id not in n.world.hosts and n.observer.known.latest.seat(seat.member_id):
        n.world.create(seat.member_id, n.observer.known.latest)
        n.count(f"a new {seat.role.value}")
        await n.world.start(seat.member_id)


def seat_at(membership: Membership, name: str) -> Seat | None:
    """Give the seat of the member on a machine."""
    return next((seat for seat in membership.seats if seat.host == name), None)


async def _promote(n: FaultContext) -> None:
    """Make a standby a voter."""
    standbys = [s for s in n.observer.known.latest.seats if s.role is MemberRole.STANDBY]
    if standbys and _wanted(n.observer.known.latest) < MAX_VOTERS:
        _order(n, f"member promote {n.rng.choice(standbys).member_id} even")


async def _demote(n: FaultContext) -> None:
    """Make a voter a standby; leaders more often."""
    if _may_shrink(n):
        _order(n, f"member demote {_someone(n)}")


async def _remove(n: FaultContext) -> None:
    """Remove a member; leaders more often."""
    member = _someone(n)
    if _may_shrink(n) or not n.observer.known.latest.has_vote(member):
        _order(n, f"member remove {member}")


async def _move(n: FaultContext) -> None:
    """Have a member listen at another port: at once, or once the order is acknowledged.

    One at a time, and until the cluster knows it: two that have moved, and of which it does not,
    can't find each other. Nor can one whose file has not all members: others may have moved since
    it was last up. A founder's file has to stay as it was.
    """
    now, hosts = n.observer.known.latest, n.world.hosts
    seats = [
        seat
        for seat in now.seats
        if (host := hosts.get(seat.member_id)) is not None
        and (host.config.join or {*now.ids} <= {each.member_id for each in host.config.members})
    ]
    # One that was not started anew still listens where it did, and nobody else knows that.
    waits = any(h.member and h.member.config.own != h.config.own for h in hosts.values())
    if not seats or waits or moved(n) is not None:
        return
    member = n.rng.choice(seats).member_id
    n.world.readdress(member, 7000 + n.counts["members"], now)
    if n.rng.random() < 0.5 and hosts[member].member is not None:
        await n.world.kill(member)
        n.spawn(_restart, n, member)
    n.spawn(finish_move, n)


def moved(n: FaultContext) -> int | None:
    """Give the member that has moved, if the cluster does not know it yet."""
    for seat in n.observer.known.latest.seats:
        host = n.world.hosts.get(seat.member_id)
        if host is not None and host.config.own.member_port != seat.member_port:
            return seat.member_id
    return None


async def finish_move(n: FaultContext) -> None:
    """Repeat the order to move a member until the cluster knows the new address.

    Without an answer nobody knows whether it was done. A member whose address the cluster does not
    know is found only if it dials the leader. Perhaps its own file does not name that member.
    """
    while (member := moved(n)) is not None:
        port = n.world.hosts[member].config.own.member_port
        if running := _awake(n):
            await _ask(n, n.rng.choice(running), f"member move {member} member_port={port}")
        await trio.sleep(n.unit * n.rng.random())


async def _restart(n: FaultContext, member: int) -> None:
    await trio.sleep(n.a_while())
    if n.world.hosts[member].stopped:
        await n.world.start(member)


async def _lose(n: FaultContext) -> None:
    """Cut a voter off for longer than a leader waits before it puts a spare in its place."""
    patience = n.world.setting.timeouts.replace_after
    seats = n.observer.known.latest.seats
    if not patience or all(seat.role is not MemberRole.SPARE for seat in seats):
        return
    member = _someone(n)
    if member not in n.world.hosts:
        return  # nobody has made its machine yet
    n.world.isolate(member)
    n.later(1.5 * patience, lambda: n.world.reconnect(member))


async def _come_back(n: FaultContext) -> None:
    """Start a member that was removed, months later."""
    retired = [i for i, host in n.world.hosts.items() if host.retired and host.stopped]
    if retired:
        member = n.rng.choice(retired)
        n.world.reconnect(member)
        n.count("a removed member comes back")
        await n.world.start(member)


ACTIONS: Final[tuple[tuple[Callable[[FaultContext], Awaitable[None]], int], ...]] = (
    (_add, 4),
    (_replace, 3),
    (_promote, 2),
    (_demote, 2),
    (_remove, 4),
    (_move, 1),
    (_lose, 2),
    (_come_back, 1),
)
"""What an operator does, with weights. Removing is as likely as adding, so the size varies."""


# --- orders ---------------------------------------------------------------------------------------


def _order(n: FaultContext, words: str) -> bool:
    """Send an order to a member in the background; return whether that was possible."""
    running = _awake(n)
    if not running or n.orders >= MOST_ORDERS:
        return False
    n.spawn(_ask, n, n.rng.choice(running), words)
    return True


def _awake(n: FaultContext) -> list[int]:
    return [i for i in n.world.running() if not n.world.hosts[i].paused]


async def _ask(n: FaultContext, at: int, words: str) -> None:
    verb = words.split()[1]
    # This task may begin behind the death of the member, in the same moment.
    if (asked := n.world.hosts[at].member) is None:
        return
    n.orders += 1
    n.world.trace.tell("note", at, text=f"order: {words}")
    outcome = "unknown"
    try:
        with trio.move_on_after(n.unit * n.rng.choice(ORDER_TIMEOUTS)):
            answer = json.loads(await asked.control(words))
            outcome = "done" if isinstance(answer, dict) else "?"
    except RefusedError as refusal:
        outcome = f"refused ({str(refusal).partition(':')[0]})"
    except RequestError:
        pass
    finally:
        n.orders -= 1
    n.count(f"{verb} {outcome}")
    n.world.trace.tell("note", at, text=f"order: {words}: {outcome}")


def _wanted(membership: Membership) -> int:
    """Give how many members have a vote, or are to have one."""
    return sum(seat.is_to_vote for seat in membership.seats) or len(membership.voters)


def _may_shrink(n: FaultContext) -> bool:
    # A leader does not see damage that nobody has read yet: too few good stores might be left.
    return not n.rotten and len(n.observer.known.latest.voters) > FEWEST_VOTERS


def _someone(n: FaultContext) -> int:
    """Choose a member, leaders more often."""
    now = n.observer.known.latest
    ids = now.ids or tuple(voter.member_id for voter in now.voters)
    leads = [i for i in ids if i in n.world.leaders()]
    return n.rng.choice(leads if leads and n.rng.random() < 0.4 else ids)

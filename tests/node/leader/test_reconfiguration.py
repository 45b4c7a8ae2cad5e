"""Orders about members at the leader: what is refused, by which word, and what may be repeated."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from quorate.errors import RefusedError, RequestError, UnknownOutcomeError
from quorate.node.leader.leadership import Leadership
from quorate.node.leader.members.promotion import MAX_LAG_BYTES
from quorate.node.protocol.membership import MemberRole
from quorate.simulation.ledger import Ledger, equal, open_ledgers
from quorate.transport import AdmissionRequest, AppendFlags, AppendPosition
from tests.support.changing import (
    add,
    complete,
    described,
    is_standby,
    order,
    seat,
    voters,
    waits,
)
from tests.support.settled import settled

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation.world import World
    from quorate.transport import Message


def change_reports(
    world: World[Ledger],
    leader: int,
    role: Leadership,
    change: Callable[[AppendPosition], AppendPosition],
    *,
    of: int | None = None,
) -> Callable[[], None]:
    """Change what followers report to a leader; return a function that ends this."""

    def changes(sender: int, receiver: int, message: Message) -> bool:
        if (
            receiver != leader
            or not isinstance(message, AppendPosition)
            or of not in {None, sender}
        ):
            return False
        role.on_message(sender, change(message))
        return True

    return world.messages.drop(changes)


async def refused(world: World[Ledger], words: str, word: str) -> None:
    """Check that an order is refused by a word, and changes nothing."""
    before = world.membership
    with pytest.raises(RefusedError, match=f"^{word}: "):
        await order(world, words)
    assert world.membership == before


def leadership(world: World[Ledger]) -> Leadership:
    (leader,) = world.leaders()
    role = world.hosts[leader].running.state.role
    assert isinstance(role, Leadership)
    return role


# --- refused --------------------------------------------------------------------------------------


@settled
async def test_each_refusal_has_its_word(world: World[Ledger]) -> None:
    place = "member_port=7000 client_port=6000"
    await refused(world, "promote 7", "unknown-member")
    await refused(world, "demote 7", "unknown-member")
    await refused(world, "remove 7", "unknown-member")
    await refused(world, "move 7 host=x", "unknown-member")
    await refused(world, f"add host=x {place} replaces=7", "unknown-member")
    await refused(world, "remove 0 if_version=1", "version")
    await refused(world, f"add host=h1 {place} role=standby", "address")
    await refused(world, "add host=h1 member_port=6000 client_port=7000", "address")
    await refused(world, "move 0 host=h1", "address")
    await refused(world, "move 0 member_port=6000", "address")
    out = world.others(await world.leader())[0]
    await order(world, f"remove {out}")
    await refused(world, f"promote {out}", "removed")
    await refused(world, f"demote {out}", "removed")
    await refused(world, f"move {out} host=x", "removed")
    await refused(world, f"add host=x {place} replaces={out}", "removed")
    new = await add(world, "role=standby", start=False)
    await refused(world, f"add host=x {place} replaces={new}", "role")
    (stays,) = [i for i in voters(world) if i != await world.leader()]
    await order(world, f"add host=y {place} replaces={stays}")
    await refused(world, f"add host=x {place} replaces={stays}", "in-flight")
    await world.kill(stays)
    with pytest.raises(RequestError):  # without a quorum nothing is begun
        await order(world, f"remove {stays}")


@settled
async def test_a_vote_is_kept_if_the_rest_would_be_no_quorum(world: World[Ledger]) -> None:
    leader = await world.leader()
    dead, other = world.others(leader)
    await world.kill(dead)
    await trio.sleep(1.0)
    await refused(world, f"remove {other}", "would-lose-quorum")
    await refused(world, f"demote {other}", "would-lose-quorum")
    await order(world, f"remove {dead}")
    assert voters(world) == sorted([leader, other])


@settled
async def test_a_new_leader_waits_for_voters_that_are_on_their_way(world: World[Ledger]) -> None:
    leader = await world.leader()
    patience = world.hosts[leader].running.state.timeouts.leader_heartbeat_timeout

    def late(sender: int, receiver: int, message: Message) -> bool:
        return leader not in {sender, receiver} and isinstance(message, AppendPosition)

    # It hands over, and its successor does the rest; there the third member is late.
    heard_again = world.messages.drop(late)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(order, world, f"remove {leader}")
        await world.until(lambda: world.leaders() not in ([], [leader]))
        await trio.sleep(patience / 2)
        heard_again()
    assert leader not in voters(world)


async def test_at_most_nine_members_vote(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_ledgers(tmp_path, 9) as world:
        await world.start()
        await world.settled()
        place = "host=x member_port=7000 client_port=6000"
        await refused(world, f"add {place}", "too-many")
        await order(world, f"add {place} replaces=0")
        await world.until(lambda: world.membership.seat(9) is not None)


@settled
async def test_a_leader_that_nobody_can_follow_is_not_removed(world: World[Ledger]) -> None:
    leader = await world.leader()
    for member in world.others(leader):
        # They have no room for what comes, so none of them has the whole log in time.
        leadership(world).followers[member].heir = False
    await refused(world, f"remove {leader}", "not-settled")
    await refused(world, f"demote {leader}", "not-settled")
    assert world.leaders() == [leader]
    assert await world.attempt(leader, b"one")


@settled
async def test_an_order_is_refused_while_another_one_is_not_committed(
    world: World[Ledger],
) -> None:
    role, leader = leadership(world), await world.leader()
    known = role.publication_position

    def cap(message: AppendPosition) -> AppendPosition:
        return attrs.evolve(message, log_position=min(message.log_position, known))

    change_reports(world, leader, role, cap)
    with pytest.raises(UnknownOutcomeError, match="not committed yet"):
        await order(world, "move 0 client_port=6100")
    await refused(world, "move 1 client_port=6100", "in-flight")
    assert (await order(world, "list"))["version"] == 1


@settled
async def test_an_order_is_refused_while_the_leader_takes_nothing(world: World[Ledger]) -> None:
    role = leadership(world)
    role.replication.accepting = False
    await refused(world, "move 0 client_port=6100", "not-settled")
    role.open()
    await order(world, "move 0 client_port=6100")


@settled
async def test_orders_that_cross_each_other_are_done_one_after_the_other(
    world: World[Ledger],
) -> None:
    async with trio.open_nursery() as nursery:
        for i in range(3):
            nursery.start_soon(partial(order, world, f"move {i} client_port=6100", at=i))
    await complete(world)
    assert {each.client_port for each in world.membership.seats} == {6100}
    assert world.membership.version == 3


# --- repeated -------------------------------------------------------------------------------------


@settled
async def test_orders_may_be_repeated(world: World[Ledger]) -> None:
    leader = await world.leader()
    member, other = world.others(leader)
    for words in (
        "add host=x member_port=7000 client_port=6000",
        f"demote {member}",
        "move 3 host=y",
        f"remove {other if other != leader else member}",
    ):
        first = await order(world, words)
        # An answer of the leader; what it has applied follows.
        again = await order(world, words)
        assert (again["version"], again["member"]) == (first["version"], first["member"])
    await order(world, f"promote {member} even")
    await world.until(lambda: member in voters(world))
    await complete(world)
    version = world.membership.version
    assert (await order(world, f"promote {member}"))["version"] == version
    assert (await order(world, f"promote {member} if_version={version}"))["version"] == version


@settled
async def test_a_version_that_is_named_is_that_before_the_order(world: World[Ledger]) -> None:
    answer = await order(world, "add host=x member_port=7000 client_port=6000 if_version=0")
    assert answer["version"] == 1
    await refused(world, "remove 3 if_version=0", "version")
    assert (await order(world, "remove 3 if_version=1"))["version"] == 2


@settled
async def test_a_leader_is_removed_although_the_order_names_a_version(
    world: World[Ledger],
) -> None:
    leader = await world.leader()
    answer = await order(world, f"remove {leader} if_version=0", at=world.others(leader)[0])
    assert answer["version"] == 2
    assert leader not in voters(world)


@settled
async def test_members_change_while_the_cluster_is_suspended(world: World[Ledger]) -> None:
    leader = world.hosts[await world.leader()].running
    await leader.control("suspend")
    new = await add(world)
    await world.until(lambda: new in voters(world))
    out = world.others(await world.leader(), new)[0]
    await order(world, f"remove {out}")
    await leader.control("resume")
    assert await world.attempt(await world.leader(), b"one", within=10.0)


@settled
async def test_an_order_whose_client_has_gone_is_done(world: World[Ledger]) -> None:
    out = world.others(await world.leader())[0]
    with trio.move_on_after(0.0005):
        await order(world, f"remove {out}")
    await world.until(lambda: out not in world.membership.ids)


@settled
async def test_what_becomes_of_the_one_that_replaces_a_member_is_said(
    world: World[Ledger],
) -> None:
    one, other = world.others(await world.leader())
    spare = await add(world, "role=spare", start=False)
    new = await add(world, f"replaces={one}", start=False)
    answer = await order(world, f"demote {one}")
    assert answer["done"] == f"member {one} is a standby now; member {new} still replaces it"
    answer = await order(world, f"remove {one}")
    successor = f"member {new} was to replace it, and joins all the same"
    assert answer["done"] == f"member {one} is removed; {successor}"
    assert (await described(world, new))["replaces"] is None
    assert (await order(world, f"demote {other}"))["done"] == f"member {other} is a standby now"
    version = (await order(world, f"demote {spare}"))["version"]
    assert (await described(world, spare))["role"] == "standby"
    assert (await order(world, f"demote {spare}"))["version"] == version


@settled
async def test_a_member_that_is_gone_is_not_live_though_nothing_is_written(
    world: World[Ledger],
) -> None:
    member = world.others(await world.leader())[0]
    standby = await add(world, "role=standby")
    await world.settled()
    await trio.sleep(5.0)
    assert (await described(world, standby))["live"]
    assert (await described(world, member))["live"]
    await world.kill(member)
    await trio.sleep(5.0)
    assert not (await described(world, member))["live"]
    assert (await described(world, standby))["live"]


# --- why a joiner waits ---------------------------------------------------------------------------


@settled
async def test_a_joiner_that_is_not_there_has_not_claimed_its_seat(world: World[Ledger]) -> None:
    new = await add(world, start=False)
    await waits(world, new, "not-claimed")
    assert (await described(world, new))["state"] == "joining"
    assert not (await described(world, new))["live"]


@settled
async def test_a_joiner_is_watched_for_a_while(world: World[Ledger]) -> None:
    new = await add(world)
    seen: list[str] = []
    while new not in voters(world):
        word = (await described(world, new))["waits"]
        seen += [word] if word not in seen else []
        await trio.sleep(0.02)
    assert "behind" in seen
    assert {*seen} <= {"not-claimed", "not-ready", "behind", "in-flight", ""}
    assert (await described(world, new))["state"] == "voter"


@settled
async def test_a_joiner_that_is_lost_again_is_not_ready(world: World[Ledger]) -> None:
    new = await add(world, "role=standby")
    await world.until(lambda: seat(world, new).instance != 0)
    await world.kill(new)
    await trio.sleep(1.0)
    await order(world, f"promote {new}")
    assert (await described(world, new))["waits"] in {"not-claimed", "not-ready"}
    assert voters(world) == [0, 1, 2]
    await world.start(new)
    await world.until(lambda: new in voters(world))


@settled
async def test_a_joiner_that_is_far_behind_lags(world: World[Ledger]) -> None:
    new = await add(world, "role=standby")
    await world.until(lambda: seat(world, new).instance != 0)
    await complete(world)
    await order(world, f"promote {new}")
    role = leadership(world)
    follower, match = role.followers[new], role.followers[new].match
    follower.match = match - MAX_LAG_BYTES - (1 << 20)
    reports = world.messages.drop(
        lambda sender, _r, message: sender == new and isinstance(message, AppendPosition)
    )
    assert (await described(world, new))["waits"] == "lagging"
    reports()
    await world.until(lambda: new in voters(world))


@settled
async def test_a_joiner_without_room_on_its_disk_waits(world: World[Ledger]) -> None:
    new = await add(world)
    role, leader = leadership(world), await world.leader()

    def full(message: AppendPosition) -> AppendPosition:
        return attrs.evolve(message, flags=message.flags | AppendFlags.NO_ROOM)

    has_room = change_reports(world, leader, role, full, of=new)
    await waits(world, new, "disk-room")
    await trio.sleep(5.0)
    assert new not in voters(world)
    has_room()
    await world.until(lambda: new in voters(world))


# --- claims ---------------------------------------------------------------------------------------


@settled
async def test_a_claim_of_a_store_that_does_not_speak_is_ignored(world: World[Ledger]) -> None:
    role, leader = leadership(world), await world.leader()
    member = world.others(leader)[0]
    role.on_message(member, AdmissionRequest(role.term, member, 12345))
    role.on_message(member, AdmissionRequest(role.term, leader, 12345))
    assert world.hosts[leader].running.state.membership.version == 0


@settled
async def test_a_demoted_member_keeps_its_store_and_its_promises(world: World[Ledger]) -> None:
    member = world.others(await world.leader())[0]
    await order(world, f"demote {member}")
    await complete(world)
    await world.kill(member)
    await world.start(member)
    await equal(world)
    assert is_standby(world, member)
    now = seat(world, member)
    assert now.role is MemberRole.STANDBY
    assert now.instance == world.hosts[member].running.store.identity.instance_id
    assert attrs.evolve(now, role=MemberRole.VOTER).name not in world.membership.voters
    assert world.hosts[member].running.state.votes


# --- log that is kept for a member ----------------------------------------------------------------


@settled
async def test_no_log_is_kept_for_a_member_that_is_removed(world: World[Ledger]) -> None:
    role, leader = leadership(world), await world.leader()
    member, other = world.others(leader)

    def installs(message: AppendPosition) -> AppendPosition:
        return attrs.evolve(message, flags=message.flags | AppendFlags.INSTALL)

    for removed, how in ((member, "remove"), (other, "demote")):
        undo = change_reports(world, leader, role, installs, of=removed)
        held = world.hosts[leader].running.snapshots.held
        await world.until(partial(held.__contains__, removed))
        undo()
        await order(world, f"{how} {removed}")
        assert removed not in held

"""A lease: taken once, renewed in time, given up at the end; whatever is lost on the way."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from quorate.errors import ConfigurationError, ConflictError, LeaseLostError, UnknownOutcomeError
from quorate.keyvalue.programs.transaction import Transaction
from quorate.node.requests.request import UNSTAMPED, Stamp
from quorate.recipes import Lease, lock
from quorate.recipes.lease import holder_of_untrusted
from tests.support.recipes_world import Link, Run, World, play

KEY = b"job"
TTL_S = 3.0


def lease_on(link: Link, name: str = "me", *, seed: int = 0) -> Lease:
    return Lease(link.kv, KEY, ttl_s=TTL_S, name=name, rng=Random(seed))


async def hold(lease: Lease, block: Callable[[], Awaitable[None]]) -> None:
    async with lease.held():
        await block()


def test_a_lease_has_one_owner_and_is_free_after_its_block(run: Run) -> None:
    async def scenario(world: World) -> None:
        first, second = lease_on(world.link(), "a"), lease_on(world.link(), "b", seed=1)
        assert first.lost
        assert await first.acquire()
        async with first.held():
            assert not first.lost
            assert not await second.acquire()
        assert first.lost
        assert world.keys() == []
        assert await second.acquire()
        assert second.token > first.token > 0
        await second.release()

    run(scenario)


def test_a_block_of_many_lifetimes_keeps_the_lease_and_its_token(run: Run) -> None:
    async def scenario(world: World) -> None:
        link = world.link()
        lease = lease_on(link)
        assert await lease.acquire()
        assert holder_of_untrusted(*await found(link))[:2] == ("me", lease.token)
        async with lease.held():
            for _ in range(20):
                await anyio.sleep(TTL_S)
                # Renewals change the revision, and yet everybody can read the token.
                assert holder_of_untrusted(*await found(link))[:2] == ("me", lease.token)
        assert len(link.commands) < 20 * 3 + 5

    run(scenario)


async def found(link: Link) -> tuple[bytes, int]:
    (record,) = await link.kv.records([KEY])
    assert record is not None
    return record[:2]


def const(fate: str, _payload: bytes) -> str:
    return fate


def test_an_owner_that_is_cut_off_stops_before_its_key_expires(run: Run) -> None:
    async def scenario(world: World) -> None:
        link = world.link()
        lease = lease_on(link)
        assert await lease.acquire()
        start = anyio.current_time()

        async def block() -> None:
            link.fate = lambda _: "stuck"
            try:
                await anyio.sleep_forever()
            finally:
                assert TTL_S * 0.8 < anyio.current_time() - start < TTL_S
                assert world.keys() == [KEY]

        with pytest.raises(LeaseLostError, match=r"b'job', token \d+, was lost: .*not renewed"):
            await hold(lease, block)
        await anyio.sleep(1)
        assert world.keys() == []

    run(scenario)


def test_an_outage_that_is_shorter_than_the_lease_is_survived(run: Run) -> None:
    async def scenario(world: World) -> None:
        for fate in "stuck", "refused", "lost", "unheard", "mute":
            link = world.link()
            lease = lease_on(link, seed=len(fate))
            assert await lease.acquire()
            async with lease.held():
                await anyio.sleep(5)
                link.fate = partial(const, fate)
                await anyio.sleep(TTL_S * 0.5)
                link.fate = lambda _: None
                await anyio.sleep(5)
                assert not lease.lost

    run(scenario)


def test_a_key_that_was_deleted_ends_the_block(run: Run) -> None:
    async def scenario(world: World) -> None:
        link = world.link()
        lease = lease_on(link)
        assert await lease.acquire()

        async def block() -> None:
            await world.store().delete(KEY)
            await anyio.sleep_forever()

        with pytest.raises(LeaseLostError, match="deleted or has another owner"):
            await hold(lease, block)
        assert b"DELETE" not in link.commands[-1]

    run(scenario)


def test_fence_says_that_the_key_was_deleted(run: Run) -> None:
    async def scenario(world: World) -> None:
        kv = world.store()
        async with lock(kv, "jobs") as held:
            assert repr(held) == f"<Lease: lock 'jobs', token {held.token}>"
            value = await kv.get(held.key)
            assert value is not None
            await kv.delete(held.key)
            lost = (
                f"^lock 'jobs', token {held.token}, was lost: it was deleted or has another owner"
            )
            with pytest.raises(LeaseLostError, match=lost):
                await kv.transact(held.fence)
            await kv.set(held.key, value, px=60_000)
        with pytest.raises(LeaseLostError, match="was lost: it was released"):
            await kv.transact(held.fence)

    run(scenario)


def test_a_jump_of_log_time_gives_the_key_to_another_owner_with_a_higher_token(run: Run) -> None:
    async def scenario(world: World) -> None:
        first, second = lease_on(world.link()), lease_on(world.link(), seed=1)
        assert await first.acquire()

        async def block() -> None:
            world.ahead_s = 5
            assert await second.acquire()
            await anyio.sleep_forever()

        with pytest.raises(LeaseLostError):
            await hold(first, block)
        assert second.token > first.token
        assert holder_of_untrusted(*await found(world.link())).token == second.token
        await second.release()

    run(scenario)


def test_an_error_of_the_block_comes_out_as_it_is(run: Run) -> None:
    async def scenario(world: World) -> None:
        lease = lease_on(world.link())
        assert await lease.acquire()

        async def block() -> None:
            raise ValueError("mine")

        with pytest.raises(ValueError, match=r"^mine$") as caught:
            await hold(lease, block)
        assert not hasattr(caught.value, "__notes__")
        assert world.keys() == []

    run(scenario)


def test_an_error_of_a_block_that_lost_its_lease_has_a_note(run: Run) -> None:
    async def scenario(world: World) -> None:
        lease = lease_on(world.link())
        assert await lease.acquire()

        async def block() -> None:
            await world.store().delete(KEY)
            try:
                await anyio.sleep_forever()
            finally:
                raise ValueError("mine")

        with pytest.raises(ValueError, match="mine") as caught:
            await hold(lease, block)
        assert "was lost" in caught.value.__notes__[0]

    run(scenario)


def test_a_block_that_does_not_wait_hears_of_the_loss_at_its_end(run: Run) -> None:
    async def scenario(world: World) -> None:
        lease = lease_on(world.link())
        assert await lease.acquire()

        async def block() -> None:
            await world.store().delete(KEY)
            with anyio.CancelScope(shield=True):
                await anyio.sleep(TTL_S)

        with pytest.raises(LeaseLostError):
            await hold(lease, block)

    run(scenario)


@pytest.mark.parametrize("fate", ["unheard", "lost", "late"])
def test_an_attempt_of_unknown_outcome_is_recognised(run: Run, fate: str) -> None:
    async def scenario(world: World) -> None:
        link, other = world.link(), lease_on(world.link(), seed=1)
        lease = lease_on(link)
        link.fate = lambda _: fate
        with pytest.raises(UnknownOutcomeError):
            await lease.acquire()
        link.fate = lambda _: None
        assert await lease.acquire()
        assert not await other.acquire()
        async with lease.held():
            holder = holder_of_untrusted(*await found(link))
            assert holder.token == lease.token
            await anyio.sleep(10)
        assert world.keys() == []

    run(scenario)


def test_an_attempt_that_is_late_does_not_look_like_the_lease(run: Run) -> None:
    """It is done after the lease has expired early, and another owner came and went."""

    async def scenario(world: World) -> None:
        link, other = world.link(), lease_on(world.link(), seed=1)
        lease = lease_on(link)
        link.fate = lambda _: "late"
        with pytest.raises(UnknownOutcomeError):
            await lease.acquire()
        link.fate = lambda _: None
        await anyio.sleep(2.5)
        assert await lease.acquire()

        async def block() -> None:
            world.ahead_s = 5
            assert await other.acquire()
            await other.release()
            await anyio.sleep_forever()

        with pytest.raises(LeaseLostError, match="another owner"):
            await hold(lease, block)
        # The late attempt was of this owner, who has given it up, too.
        assert world.keys() == []

    run(scenario)


def test_a_lost_reply_to_the_first_renewal_does_no_harm(run: Run) -> None:
    async def scenario(world: World) -> None:
        link = world.link()
        lease = lease_on(link)
        assert await lease.acquire()
        fates = iter(["unheard", "unheard"])
        async with lease.held():
            link.fate = lambda _: next(fates, None)
            await anyio.sleep(10)
        assert next(fates, None) is None
        assert world.keys() == []

    run(scenario)


@pytest.mark.parametrize("fate", ["mute", "stuck"])
def test_a_cancelled_attempt_is_taken_back(run: Run, fate: str) -> None:
    async def scenario(world: World) -> None:
        link = world.link()
        lease = lease_on(link)
        with anyio.move_on_after(1):
            async with lease.releasing():
                link.fate = lambda _: fate
                try:
                    await lease.acquire()
                finally:
                    assert world.keys() == ([KEY] if fate == "mute" else [])
                    link.fate = lambda _: None
        assert world.keys() == []

    run(scenario)


def test_a_cancelled_block_is_released_and_the_cancellation_goes_on(run: Run) -> None:
    async def scenario(world: World) -> None:
        lease = lease_on(world.link())
        with anyio.move_on_after(1) as outer:
            assert await lease.acquire()
            async with lease.held():
                with anyio.CancelScope():
                    await anyio.sleep_forever()
                raise AssertionError
        assert outer.cancelled_caught
        assert world.keys() == []

    run(scenario)


def test_the_scopes_of_a_block_are_its_own(run: Run) -> None:
    async def scenario(world: World) -> None:
        lease = lease_on(world.link())
        assert await lease.acquire()
        async with lease.held():
            with anyio.move_on_after(1) as inner:
                await anyio.sleep_forever()
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep_forever)
                group.cancel_scope.cancel()
            assert inner.cancelled_caught
            await anyio.sleep(TTL_S)
        assert world.keys() == []

    run(scenario)


def test_a_cancelled_block_that_cleans_up_still_owns_its_key(run: Run) -> None:
    async def scenario(world: World) -> None:
        lease = lease_on(world.link())
        with anyio.move_on_after(1):
            assert await lease.acquire()
            async with lease.held():
                try:
                    await anyio.sleep_forever()
                finally:
                    with anyio.CancelScope(shield=True):
                        await anyio.sleep(TTL_S * 3)
                    assert not lease.lost
                    assert world.keys() == [KEY]
        assert world.keys() == []

    run(scenario)


def test_a_release_without_an_answer_ends_in_time(run: Run) -> None:
    async def scenario(world: World) -> None:
        link = world.link()
        lease = lease_on(link)
        assert await lease.acquire()
        start = anyio.current_time()
        async with lease.held():
            link.fate = lambda _: "lost"
        assert anyio.current_time() - start <= TTL_S / 3 + 0.01
        assert world.keys() == [KEY]
        await anyio.sleep(TTL_S)
        assert world.keys() == []

    run(scenario)


def test_a_release_is_repeated_until_it_is_done(run: Run) -> None:
    async def scenario(world: World) -> None:
        link = world.link()
        lease = lease_on(link)
        assert await lease.acquire()
        fates = iter(["lost", "refused", "unheard"])
        async with lease.held():
            link.fate = lambda _: next(fates, None)
        assert world.keys() == []

    run(scenario)


def test_a_reply_that_comes_after_the_lease_is_no_lease(run: Run) -> None:
    async def scenario(world: World) -> None:
        lease, other = lease_on(Slow(world)), lease_on(world.link(), seed=1)
        async with anyio.create_task_group() as group:

            async def rival() -> None:
                await anyio.sleep(TTL_S + 0.5)
                assert await other.acquire()

            group.start_soon(rival)
            assert not await lease.acquire()
        assert lease.lost
        await other.release()

    run(scenario)


class Slow(Link):
    """A connection on which the reply to an attempt takes longer than the lease."""

    async def command(self, payload: bytes, flags: int = 0, stamp: Stamp = UNSTAMPED) -> bytes:
        reply = await super().command(payload, flags, stamp)
        if b"ABSENT" in payload:
            await anyio.sleep(TTL_S + 1)
        return reply


def test_a_block_can_be_cancelled_by_asyncio_itself(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        lease = lease_on(world.link())

        async def hold() -> None:
            assert await lease.acquire()
            async with lease.held():
                await anyio.sleep_forever()

        task = asyncio.create_task(hold())
        await anyio.sleep(1)
        assert world.keys() == [KEY]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert world.keys() == []

    play("asyncio", tmp_path, scenario)


def test_a_fenced_transaction_is_done_only_while_the_lease_is_held(run: Run) -> None:
    async def scenario(world: World) -> None:
        lease, other = lease_on(world.link()), lease_on(world.link(), seed=1)
        kv = world.store()

        async def write(t: Transaction) -> None:
            await lease.fence(t)
            t.increment("n")

        async def overtaken() -> None:
            async with kv.transaction() as t:
                await write(t)
                await kv.delete(KEY)
                assert await other.acquire()

        async def block() -> None:
            await kv.transact(write)
            await anyio.sleep(TTL_S)  # renewals change the key
            await kv.transact(write)
            with pytest.raises(ConflictError):
                await overtaken()
            assert not lease.lost  # as far as it knows
            with pytest.raises(LeaseLostError):
                await kv.transact(write)
            await anyio.sleep_forever()

        assert await lease.acquire()
        with pytest.raises(LeaseLostError):
            await hold(lease, block)
        await other.release()
        assert await kv.get("n") == b"2"

    run(scenario)


@pytest.mark.parametrize("ttl_s", [0, -1, 0.05, 1e6, float("nan"), "3", None, True])
def test_a_lifetime_out_of_range_is_refused(ttl_s: Any, run: Run) -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(ConfigurationError, match=r"^ttl_s = .*: expected seconds, 0.1 to"):
            Lease(world.store(), KEY, ttl_s=ttl_s)

    run(scenario)


def test_the_value_of_another_client_is_an_owner() -> None:
    assert holder_of_untrusted(b"redis-cli", 7) == ("redis-cli", 7, b"redis-cli")
    assert holder_of_untrusted(b"\xff" * 5000, 7).token == 7
    number = b"0123456789abcdef"
    assert holder_of_untrusted(b"0 " + number + b" a b", 7) == ("a b", 7, number)
    assert holder_of_untrusted(b"5 " + number + b" ", 7) == ("", 5, number)

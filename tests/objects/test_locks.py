"""Locks with leases in the log's time."""

import pytest
import trio

from quorate import ConfigurationError, LeaseLostError, NoLeaderError
from quorate.objects import CallError, LockManager

from .test_calls import World, running


async def log_time(world: World) -> None:
    """Let the log's time pass as the test's does, and have timers come."""
    start = trio.current_time()
    while True:
        await trio.sleep(0.05)
        world.now_ms = 1_000_000 + round((trio.current_time() - start) * 1000)
        deadline = world.machine.next_deadline_ms()
        if deadline is not None and deadline <= world.now_ms:
            world.position += 64
            world.machine.advance(world.position, world.now_ms)


async def test_one_holder_at_a_time_and_rising_tokens(
    autojump_clock: trio.testing.MockClock,
) -> None:
    locks = LockManager("locks")
    inside, tokens = 0, list[int]()

    async def work() -> None:
        nonlocal inside
        async with locks.hold("l", ttl_s=2, owner="me") as held:
            assert inside == 0
            inside += 1
            await trio.sleep(5)  # longer than a lease
            assert await locks.holder("l") is not None
            inside -= 1
            tokens.append(held.token)

    async with running(locks) as world, trio.open_nursery() as nursery:
        nursery.start_soon(log_time, world)
        async with trio.open_nursery() as workers:
            for _ in range(3):
                workers.start_soon(work)
        assert tokens == sorted(set(tokens))
        assert len(tokens) == 3
        assert await locks.holder("l") is None
        nursery.cancel_scope.cancel()


async def test_a_dead_holder_loses_its_lock_in_the_logs_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    locks = LockManager("locks")
    async with running(locks) as world, trio.open_nursery() as nursery:
        nursery.start_soon(log_time, world)
        token = await locks.acquire("l", "dead", 3000)
        assert not await locks.acquire("l", "other", 3000)
        assert await locks.acquire("m", "dead", 100_000)
        with pytest.raises(TimeoutError, match="held by others for 1 s"):
            async with locks.hold("l", wait_s=1):
                raise AssertionError
        async with locks.hold("l") as held:
            assert held.token > token
            assert not await locks.renew("l", token, 1000)
            assert not await locks.release("l", token)
        assert list(locks.leases) == ["m"]
        nursery.cancel_scope.cancel()


async def test_a_lock_that_cant_be_renewed_cancels_its_block(
    autojump_clock: trio.testing.MockClock,
) -> None:
    locks = LockManager("locks")
    async with running(locks, patience_s=0.5) as world:
        begun = trio.current_time()
        with pytest.raises(LeaseLostError, match="the lock 'l'"):  # noqa: PT012
            async with locks.hold("l", ttl_s=2):
                world.fail = [(NoLeaderError("none"), False)] * 10_000
                await trio.sleep(100)
        assert trio.current_time() - begun < 2 + 1


async def test_a_lock_that_somebody_gave_back_cancels_its_block(
    autojump_clock: trio.testing.MockClock,
) -> None:
    locks = LockManager("locks")
    async with running(locks):
        with pytest.raises(LeaseLostError):  # noqa: PT012
            async with locks.hold("l", ttl_s=3) as held:
                await locks.release("l", held.token)
                await trio.sleep(100)


async def test_an_error_of_the_block_comes_out_and_the_lock_is_given_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    locks = LockManager("locks")
    async with running(locks):
        with pytest.raises(KeyError, match="mine"):
            async with locks.hold("l"):
                raise KeyError("mine")
        assert locks.leases == {}
        with pytest.raises(ConfigurationError, match="ttl_s = 0"):
            async with locks.hold("l", ttl_s=0):
                raise AssertionError
        with pytest.raises(CallError, match="ttl_ms = -1"):
            await locks.acquire("l", "me", -1)


async def test_a_wait_without_an_answer_does_not_say_that_others_hold_the_lock(
    autojump_clock: trio.testing.MockClock,
) -> None:
    locks = LockManager("locks")
    async with running(locks) as world:
        world.fail = [(NoLeaderError("an election"), False) for _ in range(100)]
        with pytest.raises(TimeoutError, match=r"'l': the cluster did not answer within 1 s$"):
            async with locks.hold("l", wait_s=1):
                raise AssertionError

"""Tokens hold at all members."""

from __future__ import annotations

import hashlib
from random import Random

import pytest
import trio

from quorate.etcd.access import logged_tokens
from quorate.etcd.access.logged_tokens import LoggedTokens
from quorate.etcd.access.needs import FREE
from quorate.etcd.access.tokens import TOKEN_SECONDS, Tokens
from quorate.etcd.backend.backend import Backend
from quorate.etcd.codes import Code, EtcdError
from quorate.etcd.keyspace import tokens as kept_tokens
from quorate.etcd.keyspace.notes import TOKEN_NOTES
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requested import in_words_untrusted
from quorate.etcd.messages.requests import Op
from quorate.etcd.services.context import PortContext
from tests.etcd.services.test_users import RANGE, World, hashed
from tests.support.etcd_world import DictTables, EtcdWorld, in_world

ANNA = (b"anna", b"#hash")


def tokens_of(backend: Backend, seed: int) -> Tokens:
    """Make the tokens of one member."""
    return Tokens(Random(seed).randbytes, LoggedTokens(backend))


class CountingTokens(LoggedTokens):
    """Counts the questions to the leader."""

    questions = 0

    async def find(self, digest: bytes) -> rpc.TokenFound:
        """Ask for a token."""
        self.questions += 1
        return await super().find(digest)


async def shown(tokens: Tokens, token: str, *, holds: bool = True) -> tuple[bytes, bytes] | None:
    """Show a token to a member, as a call does; None if it is refused.

    Args:
        tokens: of the member.
        token: is shown.
        holds: its user is still let in by it.
    """
    asked: list[tuple[bytes, bytes]] = []

    def held(name: bytes, proof: bytes) -> bool:
        asked.append((name, proof))
        return holds

    await tokens.learn(token)
    try:
        assert tokens.show_untrusted(token, held) == asked[0][0]
    except EtcdError:
        return None
    return asked[0]


@in_world
async def test_a_token_of_one_member_is_good_at_another(world: EtcdWorld) -> None:
    one, two = tokens_of(world.backend, 1), tokens_of(world.backend, 2)
    token = await one.make(*ANNA)
    assert not two.knows(token)
    assert await shown(two, token) == ANNA
    assert two.knows(token)
    assert await shown(two, token[::-1]) is None


@in_world
async def test_a_token_lives_on_while_any_member_is_shown_it(world: EtcdWorld) -> None:
    one, two = tokens_of(world.backend, 1), tokens_of(world.backend, 2)
    token = await one.make(*ANNA)
    for _ in range(4):
        await trio.sleep(TOKEN_SECONDS * 0.9)
        assert await shown(one, token) == ANNA
    commands = len(world.member.commands)
    assert await shown(one, token) == ANNA
    assert len(world.member.commands) == commands  # it is not renewed with each call
    assert await shown(two, token) == ANNA
    await trio.sleep(kept_tokens.LIFE_MS / 1000)
    assert await shown(one, token) is None
    assert await shown(two, token) is None


async def test_a_token_survives_a_restart_and_is_gone_when_it_is_over(
    autojump_clock: object,
) -> None:
    tables = DictTables()
    async with EtcdWorld.opened(tables) as world:
        token = await tokens_of(world.backend, 1).make(*ANNA)
        state = world.member.state
        state.reload()
        assert await shown(tokens_of(world.backend, 2), token) == ANNA
        end = state.next_deadline_ms()
        assert end is not None
        assert 0 <= end - world.member.now_ms() <= kept_tokens.LIFE_MS
        state.advance(end)
        assert state.next_deadline_ms() is None
        assert not any(key.startswith(TOKEN_NOTES) for key in tables.notes.rows)


@in_world
async def test_the_token_that_would_end_first_makes_room(
    world: EtcdWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_tokens, "MAX_TOKENS", 2)
    one, two = tokens_of(world.backend, 1), tokens_of(world.backend, 2)
    given: list[str] = []
    for _ in range(3):
        given.append(await one.make(*ANNA))
        await trio.sleep(1)
    assert [await shown(two, token) for token in given] == [None, ANNA, ANNA]


@in_world
async def test_the_log_has_no_token(world: EtcdWorld) -> None:
    token = await tokens_of(world.backend, 1).make(*ANNA)
    (payload,) = world.member.commands
    assert token.encode() not in payload
    assert bytes.fromhex(token) not in payload
    assert in_words_untrusted(payload) == "etcd TOKEN user='anna'"
    assert hashlib.sha256(token.encode()).digest() in payload


@in_world
async def test_a_token_without_a_leader_is_neither_given_nor_refused(world: EtcdWorld) -> None:
    one = tokens_of(world.backend, 1)
    world.member.parked = []
    with trio.move_on_after(1) as scope:
        await one.make(*ANNA)
    assert scope.cancelled_caught
    with trio.move_on_after(1) as scope:
        await one.learn("a token of another member")
    assert scope.cancelled_caught


@pytest.mark.parametrize(
    "token",
    [
        pytest.param(rpc.Token(digest=b"short"), id="digest"),
        pytest.param(rpc.Token(digest=bytes(32), name=bytes(5000)), id="name"),
    ],
)
@in_world
async def test_a_malformed_token_changes_nothing(world: EtcdWorld, token: rpc.Token) -> None:
    with pytest.raises(EtcdError) as caught:
        await world.backend.call(Op.TOKEN, token.SerializeToString())
    assert caught.value.code is Code.INTERNAL
    assert world.member.state.next_deadline_ms() is None


@in_world
async def test_a_call_with_a_token_of_another_member_is_admitted(world: EtcdWorld) -> None:
    made = World.made(b"~*", b"+@all")
    made.users._tokens = tokens_of(world.backend, 1)  # pyright: ignore[reportPrivateUsage]
    other = tokens_of(world.backend, 2)
    context = PortContext(world.backend, world.hub, made.users)
    proof = made.access.logins.check(b"anna", b"secret")
    assert isinstance(proof, bytes)
    token = await other.make(b"anna", proof)
    request = rpc.RangeRequest(key=b"k").SerializeToString()
    assert context.admit(token, RANGE, request) is None
    call = await context.admit_when_known(token, RANGE, request)
    assert call.user == "anna"
    assert context.admit(token, RANGE, request) is not None
    made.state.set(b"anna", [b"resetpass", hashed(b"new")], 3)
    with pytest.raises(EtcdError, match="invalid auth token"):
        context.admit(token, RANGE, request)
    with pytest.raises(EtcdError, match="invalid auth token"):
        await context.admit_when_known("made up", RANGE, request)


@in_world
async def test_a_token_that_is_refused_does_not_live_longer(world: EtcdWorld) -> None:
    """Else its owner could wait, by showing it, until its user is let in again."""
    one, two = tokens_of(world.backend, 1), tokens_of(world.backend, 2)
    token = await one.make(*ANNA)
    commands = len(world.member.commands)
    for tokens in (one, two, one, two):
        await trio.sleep(0.3 * TOKEN_SECONDS)
        assert await shown(tokens, token, holds=False) is None
    assert await shown(one, token) is None
    assert await shown(two, token) is None
    assert len(world.member.commands) == commands


@in_world
async def test_the_leader_is_asked_once_for_a_token_that_is_refused(world: EtcdWorld) -> None:
    token = await tokens_of(world.backend, 1).make(*ANNA)
    others = CountingTokens(world.backend)
    two = Tokens(Random(2).randbytes, others)
    for _ in range(3):
        assert await shown(two, token, holds=False) is None
    assert await shown(two, token) == ANNA
    assert others.questions == 1


@pytest.mark.parametrize("path", sorted(FREE))
@in_world
async def test_what_needs_no_token_is_served_with_one_that_is_over(
    world: EtcdWorld, path: str
) -> None:
    """So logs in again who has one, as clients of etcd 3.4 do."""
    made = World.made(b"~*", b"+@all")
    context = PortContext(world.backend, world.hub, made.users)
    assert context.admit("it is over", path, b"") is not None
    call = await context.admit_when_known("it is over", path, b"")
    assert (call.user, call.principal) == (None, 0)


@in_world
async def test_no_member_ends_a_token_before_its_time(world: EtcdWorld) -> None:
    for shown_after in (59, 149):
        one, two = tokens_of(world.backend, shown_after), tokens_of(world.backend, 2)
        token = await one.make(*ANNA)
        await trio.sleep(shown_after)
        assert await shown(one, token) == ANNA
        await trio.sleep(TOKEN_SECONDS - 1)
        assert await shown(two, token) == ANNA
        await trio.sleep(TOKEN_SECONDS - 1)
        assert await shown(one, token) == ANNA


@in_world
async def test_a_token_that_nobody_shows_is_over_soon_at_all_members(world: EtcdWorld) -> None:
    one, two = tokens_of(world.backend, 1), tokens_of(world.backend, 2)
    token = await one.make(*ANNA)
    await trio.sleep(TOKEN_SECONDS + 60)
    assert await shown(one, token) is None
    assert await shown(two, token) is None


@pytest.mark.parametrize("reload", [False, True])
@in_world
async def test_logins_of_one_user_end_no_token_of_another(
    world: EtcdWorld, monkeypatch: pytest.MonkeyPatch, *, reload: bool
) -> None:
    monkeypatch.setattr(kept_tokens, "MAX_TOKENS", 4)
    one, two = tokens_of(world.backend, 1), tokens_of(world.backend, 2)
    quiet = [await one.make(*ANNA) for _ in range(2)]
    flood: list[str] = []
    for _ in range(5):
        await trio.sleep(0.1)
        flood.append(await one.make(b"eve", b"#hash"))
        if reload:
            world.member.state.reload()
    assert [await shown(two, token) for token in quiet] == [ANNA, ANNA]
    assert [await shown(two, token) is not None for token in flood] == [False] * 3 + [True] * 2


@in_world
async def test_made_up_tokens_leave_room_for_the_requests_of_users(
    world: EtcdWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logged_tokens, "MAX_LOOKUPS", 3)
    one = tokens_of(world.backend, 1)
    world.member.parked = []
    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(one.learn, f"made up {number}")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(EtcdError, match="too many requests"):
            await one.learn("made up")
        world.member.release()
    await one.learn("made up")


@in_world
async def test_the_leader_is_not_asked_again_about_a_token_that_was_refused(
    world: EtcdWorld,
) -> None:
    one, two = tokens_of(world.backend, 1), tokens_of(world.backend, 2)
    token = await one.make(*ANNA)
    for _ in range(3):
        assert await shown(two, token, holds=False) is None
    assert len(world.member.queries) == 1
    # It lives no longer by that.
    await trio.sleep(TOKEN_SECONDS)
    assert not two.knows(token)

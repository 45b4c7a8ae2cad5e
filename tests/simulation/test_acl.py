"""Users that are revoked in a simulated cluster, and members with one rule taken out.

Six schedules play what storms seldom do: a user is revoked while its member is cut off, while its
member is behind, and while its request waits for a leader or is on its way; one user tries the
session of another; and strangers try everything. The rule book must find nothing wrong with members
as they are, and something with each mutant.
"""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio

from quorate.keyvalue.access.directory import Directory
from quorate.keyvalue.access.logins import Logins
from quorate.keyvalue.access.users import Users
from quorate.keyvalue.clients.port_access import PortAccess
from quorate.keyvalue.conversation.conversation import Conversation
from quorate.keyvalue.state.sessions import Sessions
from quorate.node.requests.router import Requests
from quorate.simulation import Plan, run, simulate
from quorate.simulation.observer import Observer
from quorate.simulation.plan import BOUND_TIMEOUTS
from quorate.simulation.ports.machine import Ports
from quorate.simulation.ports.rulebook import Asking, RuleBook
from quorate.simulation.store import stores
from quorate.simulation.watching.watched import watch
from quorate.simulation.workloads.users import STRANGE, hash_of
from quorate.simulation.world import TIMEOUTS, Setting, open_world
from quorate.transport.testing import Pace

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from pathlib import Path

    from quorate.node import Service
    from quorate.node.requests.request import Request
    from quorate.simulation import World
    from quorate.simulation.ports.session import Session

TIMEOUT = TIMEOUTS.leader_heartbeat_timeout
BOUND = BOUND_TIMEOUTS * TIMEOUT
OK = b"+OK\r\n"
PROOF = hash_of(b"secret")


@attrs.define(eq=False)
class Stage:
    """A cluster with two users: `admin`, and `bob` who has a session with a follower."""

    world: World[Service]
    ports: Ports
    rules: RuleBook
    leader: int = -1
    follower: int = -1

    def connect(self, i: int) -> Session:
        session = self.ports.connect(i)
        assert session is not None
        return session

    async def begin(self) -> tuple[Session, Session]:
        """Start the members; return a session of the administrator, and one of bob."""
        await self.world.start()
        self.leader = await self.world.settled()
        self.follower = self.world.others(self.leader)[0]
        root = self.connect(self.leader)
        everything = (b"allkeys", b"+@all")
        for name in (b"admin", b"bob"):
            words = (b"ACL", b"SETUSER", name, b"on", PROOF, *everything)
            assert await root.ask(words) == OK
        assert await root.ask((b"AUTH", b"admin", b"secret")) == OK
        assert await root.ask((b"ACL", b"SETUSER", b"default", b"resetpass")) == OK
        return root, await self.log_in(self.follower)

    async def log_in(self, i: int) -> Session:
        session = self.connect(i)
        assert await session.ask((b"AUTH", b"bob", b"secret")) == OK
        return session

    async def write(self, session: Session, token: bytes) -> None:
        asking = Asking(b"bob", PROOF, (b"SET", b"a", token))
        self.rules.asks(asking)
        reply = await session.ask(asking.command)
        if reply is not None and reply.startswith((b"-NOPERM ", b"-NOAUTH ")):
            self.rules.denied(asking)

    async def read(self, session: Session) -> None:
        asking = Asking(b"bob", PROOF, (b"GET", b"a"))
        reply = await session.ask(asking.command)
        if reply is not None and not reply.startswith(b"-"):
            self.rules.answered(asking)


@asynccontextmanager
async def stage(directory: Path) -> AsyncGenerator[Stage, None]:
    rules, observer = RuleBook(BOUND), Observer([0, 1, 2])
    service = watch(stores(random.Random(0)), observer.tell, observer)
    ports = Ports(random.Random(1), observer.tell, rules)
    async with open_world(directory, service, Setting(), observer=observer) as world:
        world.accompany = ports.accompany
        yield Stage(world, ports, rules)


async def cut_off(stage: Stage) -> None:
    """The user's member can't know that the user was revoked, and is asked all the same."""
    root, bob = await stage.begin()
    stale = await stage.log_in(stage.follower)
    assert await stale.ask((b"READONLY",)) == OK
    await stage.write(bob, b"token-0")
    await stage.read(stale)
    stage.world.isolate(stage.follower)
    await stage.world.until(lambda: stage.world.hosts[stage.follower].state.name == "CANVASS")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.write, bob, b"token-1")  # waits for a leader
        await trio.sleep(0.01)
        assert await root.ask((b"ACL", b"SETUSER", b"bob", b"-@all")) == OK
        await trio.sleep(BOUND)
        nursery.start_soon(stage.read, stale)
        await trio.sleep(0.1)
        stage.world.mend()


async def leaderless(stage: Stage) -> None:
    """The user's write waits for a leader, and is still waiting when the user is revoked."""
    _, bob = await stage.begin()
    world, old, mine = stage.world, stage.leader, stage.follower
    (third,) = world.others(old, mine)
    root = stage.connect(third)
    assert await root.ask((b"AUTH", b"admin", b"secret")) == OK
    await world.kill(old)
    await world.until(lambda: world.hosts[mine].state.name != "CLOSED")
    world.isolate(mine)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.write, bob, b"token-1")
        await trio.sleep(0.01)
        await world.start(old)
        assert await root.ask((b"ACL", b"SETUSER", b"bob", b"-@all")) == OK
        await trio.sleep(BOUND)
        assert world.hosts[mine].running.status().parked > 0
        world.mend()


async def behind(stage: Stage) -> None:
    """The user's member hears its leader, and applies nothing."""
    root, bob = await stage.begin()
    stale = await stage.log_in(stage.follower)
    assert await stale.ask((b"READONLY",)) == OK
    member = stage.world.hosts[stage.follower].running
    async with member.applier.halted():
        assert await root.ask((b"ACL", b"SETUSER", b"bob", b"-@all")) == OK
        await stage.write(bob, b"token-1")
        await trio.sleep(BOUND)
        await stage.read(stale)
        await stage.write(bob, b"token-2")


async def on_its_way(stage: Stage) -> None:
    """The user's write takes long from its member to the leader."""
    root, bob = await stage.begin()
    name = stage.world.name
    slow = Pace(latency=2 * BOUND)
    stage.world.network.set_pace(name(stage.follower), name(stage.leader), slow, both=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.write, bob, b"token-1")
        await trio.sleep(0.01)
        assert await root.ask((b"ACL", b"DELUSER", b"bob")) == b":1\r\n"
        await trio.sleep(3 * BOUND)


async def a_session_of_another_user(stage: Stage) -> None:
    """The administrator uses the session of bob."""
    root, bob = await stage.begin()
    opened = await bob.ask((b"QUORATE.SESSION", b"OPEN"))
    assert opened is not None
    session = opened[1:-2]
    assert await bob.ask((b"QUORATE.ONCE", session, b"1", b"INCR", b"n")) == b":1\r\n"
    await root.ask((b"QUORATE.ONCE", session, b"1", b"SET", b"a", b"1"))
    await root.ask((b"QUORATE.SESSION", b"KEEPALIVE", session))
    assert await bob.ask((b"QUORATE.ONCE", session, b"1", b"INCR", b"n")) == b":1\r\n"


async def strangers(stage: Stage) -> None:
    """Clients that have not logged in ask while `default` is closed, limited, and not known."""
    root, _ = await stage.begin()
    i = stage.follower
    await _try_everything(stage, i)
    assert await root.ask((b"ACL", b"SETUSER", b"default", b"nopass", b"-@dangerous")) == OK
    await _try_everything(stage, i)
    stage.world.isolate(i)
    await stage.world.until(lambda: stage.world.hosts[i].state.name == "CANVASS")
    await trio.sleep(BOUND)
    await _try_everything(stage, i)
    stage.world.mend()


async def _try_everything(stage: Stage, i: int) -> None:
    for words in STRANGE:
        stranger = stage.ports.connect(i, remote=True)
        assert stranger is not None
        with trio.move_on_after(BOUND):
            reply = await stranger.ask(words)
            assert reply is not None
            stage.rules.strange(words, reply)
        stranger.close()


def let_strangers_in(patch: pytest.MonkeyPatch) -> None:
    """Let strangers in as a user that needs no password."""
    holds = Logins.holds

    def free(self: Logins, name: bytes, proof: bytes, *, remote: bool = False) -> bool:
        return holds(self, name, proof, remote=remote and False)

    patch.setattr(Logins, "holds", free)


def answer_strangers_without_a_leader(patch: pytest.MonkeyPatch) -> None:
    """Tell strangers about the member while the users are unknown."""
    patch.setattr(PortAccess, "is_stranger", _do_nothing)


def share_sessions(patch: pytest.MonkeyPatch) -> None:
    """Let any user use any session."""
    living = Sessions._living  # pyright: ignore[reportPrivateUsage]

    def anyones(self: Sessions, session_id: int, now: int, user: int) -> object:
        session = self._sessions.get(session_id)  # pyright: ignore[reportPrivateUsage]
        return living(self, session_id, now, user if session is None else session.owner)

    patch.setattr(Sessions, "_living", anyones)


def no_second_check(patch: pytest.MonkeyPatch) -> None:
    """Send a request that has waited by the rules of the time when it came."""
    patch.setattr(Conversation, "doubt", _do_nothing)
    believe_members(patch)


def believe_members(patch: pytest.MonkeyPatch) -> None:
    """Take what another member has allowed, whatever has changed since."""

    def take(_self: Requests, request: Request, to: Any) -> None:
        to.submit(request)

    patch.setattr(Requests, "_take_if_allowed", take)


def forget_to_raise_the_version(patch: pytest.MonkeyPatch) -> None:
    """Leave the version of the users as it is when one changes."""
    note = Users._note_version  # pyright: ignore[reportPrivateUsage]

    def stay(self: Users, _revision: int) -> None:
        note(self, 1)

    patch.setattr(Users, "_note_version", stay)


def never_doubt_the_users(patch: pytest.MonkeyPatch) -> None:
    """Go by the users of one's own state, however long the leader has not confirmed them."""

    def settle(self: Directory, _users: object, _version: int) -> None:
        self.settle()

    patch.setattr(PortAccess, "forget_if_old", _do_nothing)
    patch.setattr(Directory, "borrow", settle)


def _do_nothing(*_arguments: object) -> None:
    pass


async def _play(directory: Path, schedule: Callable[[Stage], Awaitable[None]]) -> list[str]:
    async with stage(directory) as opened:
        with trio.move_on_after(60):
            await schedule(opened)
            await trio.sleep(BOUND)
        return opened.rules.trouble


@pytest.mark.parametrize(
    "schedule", [cut_off, leaderless, behind, on_its_way, a_session_of_another_user, strangers]
)
def test_a_revoked_user_is_out(
    tmp_path: Path, schedule: Callable[[Stage], Awaitable[None]]
) -> None:
    assert run(_play, tmp_path, schedule, seed=0) == []


@pytest.mark.parametrize(
    ("mutant", "schedule"),
    [
        (no_second_check, leaderless),
        (believe_members, on_its_way),
        (forget_to_raise_the_version, behind),
        (never_doubt_the_users, cut_off),
        (never_doubt_the_users, behind),
        (share_sessions, a_session_of_another_user),
        (let_strangers_in, strangers),
        (answer_strangers_without_a_leader, strangers),
    ],
)
def test_a_mutant_is_found(
    tmp_path: Path,
    mutant: Callable[[pytest.MonkeyPatch], None],
    schedule: Callable[[Stage], Awaitable[None]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        assert run(_play, tmp_path, schedule, seed=0) != []


def test_nobody_does_anything_after_the_bound_in_a_storm() -> None:
    outcome = simulate(Plan(9, 3, 0.02, "acl"))
    assert outcome.violation is None, outcome.story
    assert outcome.judged > 0
    assert outcome.latest_timeouts <= BOUND_TIMEOUTS

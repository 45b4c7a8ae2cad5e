"""Clients with users at the members' ports, while an administrator changes and deletes the users.

The administrator is the first client. It knows its own changes only as far as they were answered;
what was allowed when is judged by the log (:mod:`..ports.rulebook`).
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ..door import PATIENCE
from ..invariants import ViolationError
from ..ports.rulebook import Asking
from .base import Workload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from ...node import Service
    from ..door import Door
    from ..ports.machine import Ports
    from ..ports.rulebook import RuleBook
    from ..ports.session import Session
    from ..world import World

NAMES: Final = (b"alice", b"bob", b"carol")
KEYS: Final = (b"acl:a", b"acl:b")
RULES: Final = (
    "off",
    "on",
    "-@write",
    "+@write",
    "-get",
    "+get",
    "resetkeys ~acl:a",
    "allkeys",
    "resetpass",
    "on allkeys +@all",
)
STRANGE: Final = (
    (b"GET", b"acl:a"),
    (b"SET", b"acl:a", b"strange"),
    (b"INFO", b"server"),
    (b"ACL", b"WHOAMI"),
    (b"QUORATE.CONTROL", b"found", b"2"),
)
"""What strangers ask, in vain."""
ADMIN: Final = b"admin"
_DENIALS: Final = (b"-NOPERM ", b"-NOAUTH ", b"-EXECABORT ")


def hash_of(secret: bytes) -> bytes:
    """Return a password as a rule."""
    return b"#" + sha256(secret).hexdigest().encode()


@attrs.define(eq=False)
class _Login:
    """A client's session.

    Args:
        at: the member.
        session: with it.
        user: its name.
        secret: the password that has let it in.
    """

    at: int
    session: Session
    user: bytes
    secret: bytes


class UsersAtPorts(Workload):
    """Changes of users, and commands of their sessions.

    Args:
        world: the cluster.
        ports: of its members.
        rules: judge what is answered.
    """

    def __init__(self, world: World[Service], ports: Ports, rules: RuleBook) -> None:
        super().__init__()
        self.rules = rules
        self._world = world
        self._ports = ports
        self._logins: dict[int, _Login] = {}
        self._secrets: dict[bytes, bytes] = dict.fromkeys(NAMES, b"secret-0")
        self._sessions: list[bytes] = []
        self._count = 0
        self._founded = False

    async def act(self, door: Door) -> None:
        """Change a user, or execute one command as a user."""
        self._check()
        login = self._logins.get(door.client)
        if door.rng.random() < 0.05:
            await self._be_a_stranger(door)
        elif login is None or login.session.closed or door.rng.random() < 0.03:
            await self._log_in(door)
        elif door.client == 0:
            await self._change(door, login)
        else:
            for _ in range(door.rng.randint(1, 6)):
                if not login.session.closed:
                    await self._use(door, login)
        self._check()

    async def finish(self, door: Door) -> None:  # noqa: ARG002 - see `Workload`
        """Check what was found when there were no clients."""
        self._check()

    def _check(self) -> None:
        if self.rules.trouble:
            raise ViolationError(f"Users: {self.rules.trouble[0]}")

    # --- logging in

    async def _log_in(self, door: Door) -> None:
        old = self._logins.pop(door.client, None)
        if old is not None:
            old.session.close()
        i = door.rng.choice(self._world.present)
        await self._world.hosts[i].awake()
        session = self._ports.connect(i)
        if session is None:
            return
        admin = door.client == 0
        user = ADMIN if admin else door.rng.choice(NAMES)
        secret = self._secrets.get(user, b"admin")
        login = _Login(i, session, user, secret)
        if admin and not self._founded:
            # Until this is done, everybody may do everything.
            first = (b"ACL", b"SETUSER", ADMIN, b"on", hash_of(b"admin"), b"allkeys", b"+@all")
            await self._ask(door, login, first)
        reply = await self._ask(door, login, (b"AUTH", user, secret))
        if reply != b"+OK\r\n":
            session.close()
            return
        self._logins[door.client] = login
        if admin and not self._founded:
            reply = await self._ask(door, login, (b"ACL", b"SETUSER", b"default", b"resetpass"))
            self._founded = reply == b"+OK\r\n"

    async def _be_a_stranger(self, door: Door) -> None:
        """Ask something without a login, from a machine where nobody is served without one."""
        i = door.rng.choice(self._world.present)
        await self._world.hosts[i].awake()
        session = self._ports.connect(i, remote=True)
        if session is None:
            return
        words = door.rng.choice(STRANGE)
        with trio.move_on_after(self._timeout):
            reply = await session.ask(words)
            if reply is not None:
                self.rules.strange(words, reply)
        session.close()

    # --- the administrator

    async def _change(self, door: Door, login: _Login) -> None:
        name, rng = door.rng.choice(NAMES), door.rng
        chance = rng.random()
        if chance < 0.15:
            words: tuple[bytes, ...] = (b"ACL", b"DELUSER", name)
        elif chance < 0.55:
            self._count += 1
            self._secrets[name] = secret = b"secret-%d" % self._count
            new = (b"on", b"resetpass", hash_of(secret), b"allkeys", b"+@all")
            words = (b"ACL", b"SETUSER", name, *new)
        else:
            words = (b"ACL", b"SETUSER", name, *rng.choice(RULES).encode().split())
        await self._ask(door, login, words)

    # --- users

    async def _use(self, door: Door, login: _Login) -> None:
        rng = door.rng
        self._count += 1
        if rng.random() < 0.1:
            await self._use_session(door, login)
            return
        key, token = rng.choice(KEYS), b"token-%d" % self._count
        chance = rng.random()
        if chance < 0.3:
            words: tuple[bytes, ...] = (b"SET", key, token)
            await self._write(door, login, words, [words])
        elif chance < 0.45:
            words = (b"SET", key, token)
            await self._write(door, login, words, [(b"MULTI",), words, (b"EXEC",)])
        elif chance < 0.6:
            await self._ask(door, login, (b"READONLY",))
            await self._read(door, login, (b"GET", key))
        elif chance < 0.7:
            await self._read(door, login, (b"ACL", b"WHOAMI"))
        else:
            await self._ask(door, login, (b"READWRITE",))
            await self._read(door, login, (b"GET", key))

    async def _use_session(self, door: Door, login: _Login) -> None:
        """Open a session, or use any, which may be that of another user."""
        rng = door.rng
        if not self._sessions or rng.random() < 0.2:
            reply = await self._ask(door, login, (b"QUORATE.SESSION", b"OPEN"))
            if reply is not None and reply.startswith(b":"):
                self._sessions.append(reply[1:-2])
            return
        session = rng.choice(self._sessions)
        if (chance := rng.random()) < 0.3:
            verb = b"CLOSE" if chance < 0.05 else b"KEEPALIVE"
            await self._ask(door, login, (b"QUORATE.SESSION", verb, session))
            return
        words = (b"SET", rng.choice(KEYS), b"token-%d" % self._count)
        once = (b"QUORATE.ONCE", session, b"%d" % rng.randint(1, 9), *words)
        await self._write(door, login, words, [once])

    async def _write(
        self,
        door: Door,
        login: _Login,
        words: tuple[bytes, ...],
        commands: Sequence[tuple[bytes, ...]],
    ) -> None:
        asking = Asking(login.user, hash_of(login.secret), words)
        self.rules.asks(asking)
        reply = await self._ask(door, login, *commands)
        if reply is not None and reply.startswith(_DENIALS):
            self.rules.denied(asking)

    async def _read(self, door: Door, login: _Login, words: tuple[bytes, ...]) -> None:
        reply = await self._ask(door, login, words)
        if reply is not None and not reply.startswith(b"-"):
            self.rules.answered(Asking(login.user, hash_of(login.secret), words))

    async def _ask(self, door: Door, login: _Login, *commands: Sequence[bytes]) -> bytes | None:
        """Send commands at once; return the last reply, None if the client gave up."""
        host, reply = self._world.hosts[login.at], None
        with trio.move_on_after(door.rng.choice(PATIENCE) * self._timeout):
            await trio.sleep(self._latency(door.rng))
            await host.awake()
            if not login.session.closed:
                reply = await login.session.ask(*commands)
        done = "unknown" if reply is None else "fail" if reply.startswith(b"-") else "ok"
        door.counts[done] += 1
        if reply is None:  # a session with an open question is of no use any more
            login.session.close()
            self._logins.pop(door.client, None)
        return reply

    @property
    def _timeout(self) -> float:
        return self._world.setting.timeouts.leader_heartbeat_timeout

    def _latency(self, rng: Random) -> float:
        return self._world.setting.latency * rng.random()

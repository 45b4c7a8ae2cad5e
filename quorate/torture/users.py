"""The fault `users`: users come, and lose what they may do, while other faults hit the members.

A strike makes a user by ``ACL SETUSER`` at a member chosen at random, and opens a session of it at
each member. Half of the sessions read the member's own state (READONLY), which a member could serve
without asking anybody. A moment later the user is revoked: deleted, switched off, given another
password, or forbidden all keys. The order is repeated until it is answered.

The bound: once the revocation is answered, nothing is done for the user that it sends from then on.
So each session goes on for a while, also with new connections and logins. An answer that is no
error, to something that was sent after the revocation was answered, is a violation. A user is not
judged if nobody knows how often its making was done: it could come back at any time.

The sessions touch only keys that do not exist, so they leave no trace in the state.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import trio

from ..client.resp import RespClient, RespError
from ..node.requests.status import MemberAddress

__all__ = ["Users"]

ANSWER_SECONDS: Final = 5.0
PATIENCE_SECONDS: Final = 60.0
"""How long an order is repeated. If smaller, few are answered in the middle of faults."""
BEFORE_SECONDS: Final = (0.1, 0.5, 2.0)
"""How long a user is in use before it is revoked."""
AFTER_SECONDS: Final = 6.0
"""How long a revoked user goes on trying. If smaller than the longest episode and an election, a
member that was cut off is not back by then."""
_PAUSE_SECONDS: Final = 0.02
_KEY: Final = "absent"
_READS: Final = 0.5
_FINE: Final = frozenset(
    {"NOAUTH", "NOPERM", "WRONGPASS", "CLUSTERDOWN", "UNKNOWN", "BUSY", "MOVED"}
)
"""Errors by which a command is not done, as far as the user can know."""

_LOGIN_PAUSE_SECONDS: Final = 0.5
"""Pause after a refused login, which costs a member 80 ms of a processor."""

_ONLY_KEYS: Final = "forbidden all keys"
_WAYS: Final[dict[str, tuple[str, ...]]] = {
    "deleted": (),
    "switched off": ("off",),
    "given another password": ("resetpass", ">another"),
    _ONLY_KEYS: ("resetkeys",),
}


@attrs.define(eq=False)
class _User:
    """A user.

    Args:
        name: of it.
        secret: its password.
        way: how it will be revoked.
        revoked_at: when that was answered (monotonic seconds); infinite before.
        over: its sessions are to end.
    """

    name: str
    secret: str
    way: str
    revoked_at: float = float("inf")
    over: bool = False


@attrs.define(eq=False)
class Users:
    """Makes users, and revokes them.

    Args:
        addresses: returns the members.
        rng: random numbers for this alone.
        tell: called with a line about each strike.
        violations: takes a line for each answer that should not be.

    Attributes:
        revoked: number of revocations, by kind.
        served: number of answers before a revocation.
        refused: number of refusals after one.
    """

    addresses: Callable[[], Sequence[MemberAddress]]
    rng: random.Random
    tell: Callable[[str], None]
    violations: list[str]
    revoked: Counter[str] = attrs.field(factory=Counter[str])
    served: int = 0
    refused: int = 0
    _made: int = 0
    _busy: bool = False

    def strike(self, nursery: trio.Nursery) -> bool:
        """Begin with a user, in a task; False if one is in use."""
        if self._busy:
            return False
        self._busy = True
        nursery.start_soon(self._one)
        return True

    async def settle(self) -> None:
        """Wait until no user is in use."""
        while self._busy:  # noqa: ASYNC110 - once, at the end
            await trio.sleep(_PAUSE_SECONDS)

    async def _one(self) -> None:
        try:
            self._made += 1
            secret = f"{self.rng.getrandbits(64):016x}"
            user = _User(f"u{self._made}", secret, self.rng.choice(list(_WAYS)))
            if await self._order("SETUSER", user.name, "on", f">{secret}", "~*", "+@all") == 1:
                await self._use(user)
            await self._order("DELUSER", user.name)
        finally:
            self._busy = False

    async def _use(self, user: _User) -> None:
        async with trio.open_nursery() as nursery:
            for stale in (False, True):
                for address in self.addresses():
                    nursery.start_soon(self._session, user, address, stale)
            await trio.sleep(self.rng.choice(BEFORE_SECONDS))
            self.tell(f"users: {user.name} is {user.way}")
            rules = _WAYS[user.way]
            order = ("SETUSER", user.name, *rules) if rules else ("DELUSER", user.name)
            if await self._order(*order):
                user.revoked_at = time.monotonic()
                self.revoked[user.way] += 1
                await trio.sleep(AFTER_SECONDS)
            user.over = True

    async def _order(self, *words: str) -> int:
        """Send an order to some member until it is answered.

        Returns:
            How often it may have been done or may yet be done; 0 if it was never answered.
        """
        done = 1
        with trio.move_on_after(PATIENCE_SECONDS):
            while True:
                address = self.rng.choice(self.addresses())
                try:
                    with trio.fail_after(ANSWER_SECONDS):
                        await _call(address, ("ACL", *words))
                except (OSError, trio.TooSlowError):
                    done += 1
                except RespError as error:
                    if error.code not in _FINE:
                        self.violations.append(f"error to ACL {words[0]} {words[1]}: {error}")
                        return 0
                    done += error.code == "UNKNOWN"
                else:
                    return done
                await trio.sleep(_PAUSE_SECONDS)
        return 0

    async def _session(self, user: _User, address: MemberAddress, stale: bool) -> None:  # noqa: FBT001
        while not user.over:
            try:
                with trio.fail_after(ANSWER_SECONDS):
                    client = await RespClient.connect(address.host, address.client_port)
            except (OSError, trio.TooSlowError):
                await trio.sleep(_PAUSE_SECONDS)
                continue
            try:
                await self._talk(client, user, address, stale=stale)
            finally:
                client.close()

    async def _talk(
        self, client: RespClient, user: _User, address: MemberAddress, *, stale: bool
    ) -> None:
        """Log in, and send commands until the connection is of no more use, or all is over."""
        if not await self._send(client, user, address, ("AUTH", user.name, user.secret)):
            await trio.sleep(_LOGIN_PAUSE_SECONDS)
            return
        if stale and not await self._send(client, user, address, ("READONLY",)):
            return
        while not user.over:
            command = ("GET", _KEY) if stale or self.rng.random() < _READS else ("DEL", _KEY)
            if await self._send(client, user, address, command) is None:
                return
            await trio.sleep(_PAUSE_SECONDS)

    async def _send(
        self, client: RespClient, user: _User, address: MemberAddress, command: tuple[str, ...]
    ) -> bool | None:
        """Send a command; return whether it was done, None if the connection is of no more use."""
        sent_at = time.monotonic()
        try:
            with trio.fail_after(ANSWER_SECONDS):
                await client.call(*command)
        except (OSError, trio.TooSlowError):
            return None
        except RespError as error:
            if error.code not in _FINE:
                self.violations.append(f"error to {command[0]} of {user.name}: {error}")
            self.refused += sent_at > user.revoked_at
            return None if error.code in {"NOAUTH", "WRONGPASS"} else False
        late = sent_at - user.revoked_at
        if late <= 0:
            self.served += 1
        elif user.way != _ONLY_KEYS or command[-1] == _KEY:
            words = f"was done at member {address.member_id}, {late:.3f} s after it was {user.way}"
            self.violations.append(f"{command[0]} of user {user.name} {words}")
        return True


async def _call(address: MemberAddress, command: tuple[str, ...]) -> None:
    client = await RespClient.connect(address.host, address.client_port)
    try:
        await client.call(*command)
    finally:
        client.close()

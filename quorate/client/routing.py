"""Which member a client talks to: the leader, as far as the members know it.

Any member serves any request, but a follower passes it on, which costs the way to the leader and
back. So a new connection asks ``CLUSTER SLOTS``, where the leader comes first, and goes on to it.
A connection that has asked is answered with ``-MOVED`` once another member leads.

The leader may be known under an address that we can't reach: it has just died, or there is an
address translation in between. Then a member that was given to us passes our requests on. For that
it needs a new connection, one that has not asked. After a while we look again, each time later.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import anyio

from ..errors import HandshakeError, KeyValueError, NoLeaderError, WireError
from ..keyvalue.protocol.resp import encode_command
from ..keyvalue.retry import Turns
from ..transport import Address, parse_address_untrusted
from .dialling import HangUpError, Wire
from .race import Race

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .dialling import Dialler, Value

__all__ = ["ANSWER_SECONDS", "Routes", "moved_to_untrusted"]

_SLOTS: Final = encode_command(["CLUSTER", "SLOTS"])

_FIRST_SHUN_SECONDS: Final = 0.5
"""How long the address of a leader is not tried again after it could not be reached. Smaller, and
it is tried for nothing while the members elect another one. Larger, and requests are passed on for
longer after that."""

_LONGEST_SHUN_SECONDS: Final = 300.0
"""It doubles up to this. Smaller, and a client behind an address translation waits for each attempt
more often. Larger, and it takes longer to see that the way is free."""

ANSWER_SECONDS: Final = 5.0
"""For the reply to CLUSTER SLOTS or QUORATE.MAP, which a member gives at once."""

_ASK_SECONDS: Final = 1.0
"""For another member to say who leads while one is silent. Smaller, and a busy one does not count.
Larger, and it takes longer if the one that is asked is dead, too."""

_SILENT_SECONDS: Final = 0.5
"""A dial that is cancelled after this counts as failed: requests with short times would all dial a
dead machine otherwise. Smaller, and slow members are left for nothing."""

_TRY_SECONDS: Final = 1.0
"""For a connection to the leader that a member has named. Smaller, and members have to pass on the
requests to a busy one. Larger, and a stopped machine that they still take for the leader holds up
new clients for longer."""

_MOVED_WORDS: Final = 3

_MOST_HOPS: Final = 3
"""From member to member in search of the leader. Fewer, and a change of leader meanwhile costs a
retry. More, and members that disagree send us around."""


class Routes:
    """Finds the leader from the addresses that were given.

    Args:
        dialler: opens connections.
        given: addresses of members; at least one.
    """

    def __init__(self, dialler: Dialler, given: Sequence[Address]) -> None:
        self._dialler = dialler
        self._given = tuple(given)
        self._turns = Turns(self._given)
        self._leader: Address | None = None
        self._current: Address | None = None
        self._look_again = math.inf
        self._named: Address | None = None  # as the leader, when we opened the last connection
        # Of connections that were just opened: what becomes `_named` and `_look_again`.
        self._found = WeakKeyDictionary[Wire, tuple[Address | None, float]]()
        self._dials: dict[anyio.CancelScope, Address] = {}  # under way
        self._asking = anyio.Lock()
        self._ask_again = -math.inf
        self._asked = 0
        self._shunned: dict[Address, tuple[float, float]] = {}  # until when, and for how long

    def __str__(self) -> str:
        """Return the addresses that were given."""
        return ", ".join(map(str, self._given))

    def fits(self, wire: Wire) -> bool:
        """Whether a connection leads to the member that we talk to now."""
        if wire.address != self._current:
            return False
        return self._look_again == math.inf or anyio.current_time() < self._look_again

    def serves(self, _address: Address) -> bool:
        """Whether this may be a member of the group that we talk to."""
        return True

    def follow(self, leader: Address) -> None:
        """Go to this member next: another one has said that it leads."""
        self._leader, self._current = None if self._is_shunned(leader) else leader, None

    def leave(self, address: Address, *, silent: bool = False) -> None:
        """Go to another member next: this one is lost, or has no leader.

        Args:
            address: of the member.
            silent: dialling it would take long, too, so it is not tried for a while.
        """
        if silent and address in {self._leader, self._current}:
            self._shun(address)
            for scope, dialled in self._dials.items():
                if dialled == address:
                    scope.cancel()
        if address in {self._leader, self._current}:
            self._leader = self._current = None
        if address == self._turns.current:
            self._turns.advance()

    async def is_replaced(self, address: Address) -> bool:
        """Ask another member whether a silent one was replaced; go to the leader then.

        Of those that ask at about the same time, one asks for all.
        """
        async with self._asking:
            if self._leader not in {None, address}:
                return True
            now = anyio.current_time()
            if now < self._ask_again:
                return False
            self._ask_again = now + _ASK_SECONDS
            leader = await self._leader_by_another(address)
            # A member that passes requests on, as we can't reach the leader, is not replaced.
            if leader is not None and leader not in {self._named, address}:
                self.leave(address, silent=True)
                self.follow(leader)
            return self._leader not in {None, address}

    async def _leader_by_another(self, silent: Address) -> Address | None:
        """Ask a given member, each time another one, for the leader; None if it does not say."""
        others = [address for address in self._given if address != silent]
        if not others:
            return None
        self._asked += 1
        with anyio.move_on_after(_ASK_SECONDS):
            try:
                wire = await self._dialler.open(others[self._asked % len(others)])
                try:
                    return await self._ask_leader(wire)
                finally:
                    await wire.aclose()
            except (OSError, HandshakeError, KeyValueError):
                pass
        return None

    async def open(self, deadline: float = math.inf) -> Wire:
        """Open a connection to the leader, or to a member that knows of none.

        Args:
            deadline: on anyio's clock.

        Raises:
            NoLeaderError: no member can be reached until then. Its cause is a `HangUpError` or
                a `HandshakeError` if everything that was dialled may be something else.
            HandshakeError: what answers at all addresses is no member, or TLS does not fit.
            KeyValueError: the user or its password is wrong.
        """
        at = self._given.index(self._turns.current)
        turns = [*self._given[at:], *self._given[:at]]
        if self._leader is not None:
            turns = [self._leader, *(one for one in turns if one != self._leader)]
        race = Race(self._open_or_leave)
        wire = await race.run(turns, deadline)
        if wire is not None:
            # All at once: other tasks open connections, too, and some of them go elsewhere.
            self._leader = self._current = wire.address
            self._named, self._look_again = self._found[wire]
            self._shunned.pop(wire.address, None)
            return wire
        troubles = race.troubles
        if all(isinstance(error, HandshakeError) for error in troubles.values()):
            raise next(iter(troubles.values()))
        said = "; ".join(_in_words(address, error) for address, error in troubles.items())
        kinds = HandshakeError, HangUpError
        foreign = [error for error in troubles.values() if isinstance(error, kinds)]
        cause = foreign[0] if len(foreign) == len(troubles) else None
        raise NoLeaderError(f"no member can be reached: {said}") from cause

    async def _open_or_leave(self, address: Address) -> Wire:
        """Open a connection, beginning at one address; another one has its turn if that fails."""
        try:
            return await self._open_from(address)
        except (OSError, HandshakeError):
            if address == self._leader:
                self._shun(address)
                self._leader = None
            if address == self._turns.current:
                self._turns.advance()
            raise

    async def _open_from(self, address: Address) -> Wire:
        """Open a connection, beginning at one address.

        Raises:
            OSError: this one can't be reached.
            HandshakeError: it is no member's.
            KeyValueError: the user or its password is wrong.
        """
        wire, look_again = await self._dial(address), math.inf
        leader: Address | None = None
        try:
            for _ in range(_MOST_HOPS):
                leader = await self._ask_leader(wire)
                if leader is None or leader == wire.address:
                    break
                there = None if self._is_shunned(leader) else await self._try(leader)
                await wire.aclose()
                if there is None:
                    wire = await self._dial(address)
                    # Another task may have reached it meanwhile: then we look again at once.
                    look_again = self._shunned_until(leader)
                    break
                wire = there
        except BaseException:
            await wire.aclose()
            raise
        self._found[wire] = leader, look_again
        return wire

    async def _ask_leader(self, wire: Wire) -> Address | None:
        """Ask a member for the leader; None if it does not say.

        Raises:
            OSError: the connection is lost.
        """
        await wire.send(_SLOTS)
        return _leader_untrusted(await wire.receive(ANSWER_SECONDS))

    def _replace(self, given: Sequence[Address]) -> None:
        """Dial these members from now on."""
        self._given = tuple(given)
        self._turns = Turns(self._given)

    async def _dial(self, address: Address) -> Wire:
        """Open a connection; give up early if the member turns out to be silent meanwhile."""
        began, scope = anyio.current_time(), anyio.CancelScope()
        self._dials[scope] = address
        try:
            with scope:
                return await self._dialler.open(address)
        except anyio.get_cancelled_exc_class():
            if anyio.current_time() - began >= _SILENT_SECONDS:
                self._shun(address)
                self.leave(address)
            raise
        finally:
            del self._dials[scope]
        raise TimeoutError("no answer, and others had none either")

    async def _try(self, leader: Address) -> Wire | None:
        """Open a connection to the leader; None if it can't be reached."""
        with anyio.move_on_after(_TRY_SECONDS):
            try:
                wire = await self._dial(leader)
            except (OSError, HandshakeError):
                pass
            else:
                self._shunned.pop(leader, None)
                return wire
        self._shun(leader)
        return None

    def _shun(self, address: Address) -> None:
        if self._is_shunned(address):  # by another task, that dialled it, too
            return
        _, before = self._shunned.get(address, (0.0, 0.0))
        seconds = min(2 * before, _LONGEST_SHUN_SECONDS) or _FIRST_SHUN_SECONDS
        self._shunned[address] = anyio.current_time() + seconds, seconds

    def _is_shunned(self, address: Address) -> bool:
        return anyio.current_time() < self._shunned_until(address)

    def _shunned_until(self, address: Address) -> float:
        until, _ = self._shunned.get(address, (-math.inf, 0.0))
        return until


def _leader_untrusted(reply: Value) -> Address | None:
    """Read the reply to CLUSTER SLOTS: [[first slot, last slot, [host, port, ...], ...]]."""
    # A user without the right to ask gets an error: then members pass its requests on.
    match reply:
        case [[int(), int(), [bytes(host), int(port), *_], *_], *_]:
            return _address_untrusted(host, b"%d" % port)
        case _:
            return None


def moved_to_untrusted(error: KeyValueError) -> Address | None:
    """Read ``MOVED slot host:port``; None if the error is another one."""
    words = str(error).split()
    if error.code != "MOVED" or len(words) != _MOVED_WORDS:
        return None
    host, _, port = words[2].rpartition(":")
    return _address_untrusted(host.encode(), port.encode())


def _address_untrusted(host: bytes, port: bytes) -> Address | None:
    text = host.decode("utf-8", "replace").strip("[]")
    try:
        return parse_address_untrusted(f"{Address(text, 0)}".removesuffix("0") + port.decode())
    except (WireError, UnicodeDecodeError):
        return None


def _in_words(address: Address, error: Exception) -> str:
    text = str(error)
    if isinstance(error, OSError) and error.errno:
        text = os.strerror(error.errno).lower()
    return text if text.startswith(str(address)) else f"{address}: {text}"

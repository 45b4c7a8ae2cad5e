"""Dials the addresses of one peer, until the peer answers at one of them.

The addresses
-------------
A peer may have several: the listed ones, and the one that its own hello named last. They are
dialled one after the other, then comes one pause for all of them. The address that worked last goes
first, unless the peer has named another one since: a member that has moved knows best where it is.
An address proves nothing. The answer to our hello must come from the member that was called.

A silent address
----------------
A machine that is gone does not answer at all, and only a timeout ends its dial. The naive way waits
for that end before the next address is tried. Then a peer that is at the second one is reached
seconds later, again and again. With a short timeout that is better, but a peer whose network is
slower than the timeout is never reached at its first address, however often it is dialled.

So a dial is waited for only a short while. It goes on behind while the next addresses are tried, in
this round and in later ones (RFC 8305, "Happy Eyeballs", does so for one round). Two hellos are
never under way at a time: both might reach the same peer, which would close one link for the other.
"""

import math
from collections import deque
from collections.abc import Callable
from random import Random
from typing import NamedTuple

import attrs
import trio

from .authentication import PeerSecurity
from .limits import LinkLimits
from .messages import Hello, Message
from .network import Address, Connection, Network
from .streams import CONNECTION_ERRORS, introduce
from .wire import FrameDecoder


class Reached(NamedTuple):
    """A connection over which the peer has accepted us.

    Args:
        address: where the peer is.
        connection: to it.
        decoder: of what it sends.
        rest: messages that arrived with its answer.
    """

    address: Address
    connection: Connection
    decoder: FrameDecoder
    rest: list[Message]


@attrs.frozen
class _End:
    """How a dial has ended."""

    address: Address
    result: Connection | Exception


class Dialling:
    """Dials one peer.

    Args:
        listed: where the peer is listed; the first one is dialled first.
        network: dials it.
        hello: gives our first message; its ``called_member_id`` is the peer.
        on_failure: called with each address at which the peer was not reached, and the error.
        limits: see `LinkLimits`.
        security: proves who we are to the peer, and judges whether it is the peer.
        rng: for the pauses between rounds.
    """

    def __init__(
        self,
        listed: tuple[Address, ...],
        *,
        network: Network,
        hello: Callable[[], Hello],
        on_failure: Callable[[Address, Exception], None],
        limits: LinkLimits,
        security: PeerSecurity,
        rng: Random,
    ) -> None:
        self._listed = listed
        self._network = network
        self._hello = hello
        self._on_failure = on_failure
        self._limits = limits
        self._security = security
        self._rng = rng
        self._advertised: Address | None = None  # as the peer's last hello named it
        self._preferred: Address | None = None  # dialled before the other ones
        self._untried: deque[Address] = deque()  # what is left of this round
        self._refusing: set[Address] = set()  # nobody listened there when they were dialled last
        self._under_way: set[Address] = set()
        self._ended: deque[_End] = deque()
        self._failures = 0  # rounds in a row without success, and links that broke at once
        self._nudged = False  # the peer dialled us: it is up
        self._happened = trio.Event()  # a dial has ended, or we were nudged

    # --- addresses --------------------------------------------------------------------------------

    @property
    def addresses(self) -> tuple[Address, ...]:
        """All addresses of the peer, in the order in which they are dialled."""
        known = self._listed if self._advertised is None else (*self._listed, self._advertised)
        # An address that worked may be in no list any more.
        first = [each for each in known if each == self._preferred]
        return tuple(dict.fromkeys([*first, *known]))

    @property
    def refused(self) -> bool:
        """Whether nobody listened at any of the addresses when they were dialled last."""
        # One of two addresses may be an old one, where nobody listens any more.
        return bool(self.addresses) and self._refusing.issuperset(self.addresses)

    def list_at(self, addresses: tuple[Address, ...]) -> None:
        """Replace the listed addresses; the next dial uses them."""
        if addresses != self._listed:
            self._listed = addresses
            # The new list says what is right now. Where the peer was before comes last.
            self._preferred = None
            self._begin_round()

    def advertise(self, address: Address) -> None:
        """Note the address that the peer's hello has named; the next dial tries it first."""
        # Only if it is another one than before. Otherwise a peer that advertises an address that
        # we can't reach would make us try it first after each of its dials.
        if address != self._advertised:
            is_new = address not in self.addresses
            self._advertised = self._preferred = address
            if is_new:
                self._begin_round()

    def _begin_round(self) -> None:
        """Dial all addresses, because one of them is new."""
        self._untried = deque(self.addresses)
        self._refusing.clear()
        self.nudge()

    def nudge(self) -> None:
        """Dial now: the peer has just dialled us, so it is up."""
        self._nudged = True
        self._happened.set()

    # --- dialling ---------------------------------------------------------------------------------

    async def reach(self) -> Reached:
        """Dial round after round until the peer answers."""
        reached = None
        try:
            async with trio.open_nursery() as nursery:
                reached = await self._until_answered(nursery)
                # The other dials are of no use any more.
                nursery.cancel_scope.cancel()
        except BaseException:
            if reached is not None:
                reached.connection.close()
            raise
        finally:
            for end in self._ended:
                if not isinstance(end.result, Exception):
                    end.result.close()
            self._ended.clear()
            self._under_way.clear()
        self._preferred = reached.address
        self._refusing.discard(reached.address)
        return reached

    def lost(self, seconds: float) -> None:
        """Note that the link to the peer has ended, and how long it was up."""
        # A link that breaks at once, again and again, must not be dialled without growing pauses (a
        # peer may accept and then close).
        self._failures = 1 + (self._failures if seconds <= self._limits.backoff_longest else 0)

    async def _until_answered(self, nursery: trio.Nursery) -> Reached:
        while True:
            reached = await self._pause() if self._failures else None
            if reached := reached or await self._round(nursery):
                return reached
            self._failures += 1

    async def _pause(self) -> Reached | None:
        """Wait until the next round; return what a dial has reached that is still under way."""
        # A nudge from before this failure says nothing about the peer now.
        self._nudged = False
        # Growing pauses with jitter: members that lost each other do not all dial at once.
        until = trio.current_time() + self._limits.pause(self._failures, self._rng)
        while (end := await self._next_end(until)) is not None:
            if reached := await self._say_hello(end):
                return reached
        if trio.current_time() < until:
            self._failures = 0  # nudged
        return None

    async def _round(self, nursery: trio.Nursery) -> Reached | None:
        """Dial one address after the other; return what was reached."""
        # An attribute: an address that becomes known during a dial is tried in the same round.
        self._untried = deque(self.addresses)
        while True:
            until = math.inf
            if self._untried:
                address = self._untried.popleft()
                if address in self._under_way:
                    continue  # since an earlier round
                self._under_way.add(address)
                nursery.start_soon(self._dial, address)
                until = trio.current_time() + self._limits.alternative_seconds
                awaited = {address}
            else:
                # Another round has nothing to dial as long as all dials are under way.
                awaited = {*self.addresses}
                if not awaited or not awaited <= self._under_way:
                    return None
            while awaited <= self._under_way and (end := await self._next_end(until)) is not None:
                if reached := await self._say_hello(end):
                    return reached

    async def _dial(self, address: Address) -> None:
        """Connect, or fail to."""
        result: Connection | Exception
        try:
            with trio.fail_after(self._limits.dial_seconds):
                result = await self._network.connect(address)
        except CONNECTION_ERRORS as error:
            result = error
        self._under_way.remove(address)
        self._ended.append(_End(address, result))
        self._happened.set()

    async def _next_end(self, until: float) -> _End | None:
        """Wait for the end of a dial; None if there is none until then, or we are nudged."""
        with trio.move_on_at(until):
            while not self._ended and not self._nudged:
                self._happened = trio.Event()
                await self._happened.wait()
        if self._ended:
            return self._ended.popleft()
        self._nudged = False
        return None

    async def _say_hello(self, end: _End) -> Reached | None:
        """Say hello over a connection that was made; None if the peer is not there."""
        address, result = end.address, end.result
        self._refusing.discard(address)
        try:
            if isinstance(result, Exception):
                raise result
            made = await introduce(result, address, self._hello(), self._limits, self._security)
        except CONNECTION_ERRORS as error:
            if isinstance(error, ConnectionRefusedError):
                self._refusing.add(address)
            self._on_failure(address, error)
            return None
        return Reached(address, result, *made)

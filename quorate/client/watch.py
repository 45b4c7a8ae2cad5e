"""A watch over a connection: it survives lost connections, and members that die.

One connection for each watch
    A shared connection would need a buffer for each watch: one whose program is slow must not stop
    the others. With a connection each, TCP does that, and the member keeps nothing for a slow
    reader either. No task runs between two calls of the program. A watch costs a connection to
    one of the members, chosen at random; all members push the same.

No gap, no repetition
    Every push has all changes of one log entry. So after a lost connection the watch begins again,
    at any member, after the last entry whose changes were all returned. Of an entry that was
    received in part nothing was returned. A member that is behind pushes when it has caught up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

import anyio

from ..errors import HandshakeError, KeyValueError, NoLeaderError, WatchLostError, WireError
from ..keyvalue.programs.watch import Watch
from ..keyvalue.protocol.resp import encode_command
from ..keyvalue.retry import REFUSALS, Fate, Retry, fate_of_code
from ..keyvalue.state.pushes import Changes, Ended, Lost, Progress, parse_push_untrusted
from .dialling import Push

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from ..keyvalue.state.changes import Change
    from ..transport import Address
    from .dialling import Dialler, Value, Wire

__all__ = ["SILENCE_SECONDS", "RemoteWatch", "RemoteWatches"]

SILENCE_SECONDS: Final = 15.0
"""A member reports progress every 5 s. One that is silent for this long counts as dead. Smaller,
and a busy member is left; larger, and a watch stands still for longer after a machine is lost."""

_POSITION: Final = encode_command(["QUORATE.POSITION"])


class RemoteWatches:
    """Makes watches of a cluster; see `keyvalue.programs.watch.WatchSource`.

    Args:
        dialler: opens connections.
        members: addresses of client ports; at least one.
        patience_s: how long a watch tries to reach a member.
        rng: chooses the member of each watch.
    """

    def __init__(
        self, dialler: Dialler, members: Sequence[Address], *, patience_s: float, rng: random.Random
    ) -> None:
        self._dialler, self._members = dialler, tuple(members)
        self._patience_s, self._rng = patience_s, rng

    def watch(self, prefix: bytes, after: int) -> RemoteWatch:
        """Return a watch of the changes after a position; -1 for the present."""
        members = self._rng.sample(self._members, len(self._members))
        return RemoteWatch(self._dialler, members, prefix, after, self._patience_s)


class RemoteWatch(Watch):
    """The changes of the keys with a prefix, from any member of a cluster.

    It raises :class:`~quorate.errors.NoLeaderError` if no member could serve it for `patience_s`.
    It may be asked again then, and goes on where it was. It raises
    :class:`~quorate.errors.KeyValueError` if its user may not watch these keys.

    Args:
        dialler: opens connections.
        members: in the order in which they are tried.
        prefix: of the keys.
        after: see `WatchSource`.
        patience_s: how long it tries to reach a member.
    """

    def __init__(
        self,
        dialler: Dialler,
        members: Sequence[Address],
        prefix: bytes,
        after: int,
        patience_s: float,
    ) -> None:
        super().__init__(prefix, after)
        self._dialler, self._members = dialler, members
        self._patience_s = patience_s
        self._at = 0  # the member whose turn it is
        self._wire: Wire | None = None
        self._retry: Retry | None = None  # since the last sign of life; None if there was one
        self._closed = False

    async def aclose(self) -> None:
        """Close its connection. It returns nothing any more."""
        self._closed = True
        self._next.clear()
        await self._drop()

    async def _begin(self) -> None:
        while self._wire is None:
            await self._try_member()

    async def _fetch(self) -> list[Change]:
        """Return the changes of one push, or none."""
        if self._wire is None:
            await self._try_member()
            return []
        try:
            # Nothing is lost if this is cancelled: what has arrived stays in the wire.
            value = await self._wire.receive(SILENCE_SECONDS)
            push = parse_push_untrusted(value) if isinstance(value, Push) else None
        except (OSError, WireError) as error:
            await self._give_up_member(error)
            return []
        match push:
            case Changes(changes=changes) if changes[0].position > self.position:
                self._retry = None
                return changes
            case Progress(position=position):
                self._retry = None
                self.position = max(self.position, position)
            case Lost(after=after, oldest=oldest, text=text):
                await self._drop()
                self.position = max(self.position, after)
                raise WatchLostError(text, after=after, oldest=oldest)
            case Ended(text=text):
                await self._give_up_member(KeyValueError(text))
            case _:
                await self._give_up_member(WireError(f"expected a push, found {value!r:.200}"))
        return []

    # --- members

    async def _try_member(self) -> None:
        """Begin at the member whose turn it is; if that fails, wait a moment.

        Raises:
            NoLeaderError: no member could serve it in time.
            KeyValueError: its user may not watch these keys.
        """
        if self._closed:
            raise anyio.ClosedResourceError("the watch is closed")
        wire: Wire | None = None
        try:
            wire = await self._dialler.open(self._members[self._at])
            await self._ask(wire)
        except (OSError, HandshakeError, WireError, KeyValueError) as error:
            if wire is not None:
                await wire.aclose()
            await self._give_up_member(error)
        except BaseException:  # cancelled: a late reply would be taken for a push
            if wire is not None:
                await wire.aclose()
            raise
        else:
            self._wire = wire

    async def _ask(self, wire: Wire) -> None:
        """Begin at a member.

        Raises:
            OSError: the connection is lost.
            WireError: the replies have another form.
            KeyValueError: it refuses.
        """
        if self.position < 0:
            # Asked of the leader, through any member: a watch sees every write that is acknowledged
            # after it has begun.
            await wire.send(_POSITION)
            self.position = _position_untrusted(await wire.receive(SILENCE_SECONDS))
        await wire.send(encode_command(["QUORATE.WATCH", self.prefix, "AFTER", self.position]))
        match await wire.receive(SILENCE_SECONDS):
            case [int(), int()]:
                pass
            case reply:
                _refuse_untrusted(reply)

    async def _give_up_member(self, error: Exception) -> None:
        """Turn to the next member; wait a moment unless this is the first failure.

        Raises:
            NoLeaderError: it is time to give up.
            KeyValueError: the error is one that every member would reply with.
        """
        await self._drop()
        self._at = (self._at + 1) % len(self._members)
        if isinstance(error, KeyValueError) and _is_final(error):
            raise error
        if self._retry is None:  # a member has died: the next one is likely to be well
            deadline = anyio.current_time() + self._patience_s
            self._retry = Retry(anyio.current_time, deadline)
            return
        pause = self._retry.pause_s()
        if pause is None:
            self._retry = None  # asked again, it has as much patience as before
            raise NoLeaderError(
                f"no member could serve the watch of {self.prefix!r:.60} within "
                f"{self._patience_s:g} s: {error}"
            ) from error
        await anyio.sleep(pause)

    async def _drop(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.aclose()


def _is_final(error: KeyValueError) -> bool:
    return fate_of_code(error.code) is Fate.ANSWERED or error.code in REFUSALS


def _position_untrusted(reply: Value) -> int:
    if not isinstance(reply, int) or isinstance(reply, bool) or reply < 0:
        _refuse_untrusted(reply)
    return reply


def _refuse_untrusted(reply: Value) -> NoReturn:
    """Raise what a reply says that is not the expected one."""
    if isinstance(reply, KeyValueError):
        raise reply
    raise WireError(f"unexpected reply to QUORATE.WATCH: {reply!r:.200}")

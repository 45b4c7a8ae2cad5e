"""A watch over a connection: it survives lost connections, and members that die.

One connection for each watch
    A shared connection would need a buffer for each watch: one whose program is slow must not stop
    the others. With a connection each, TCP does that, and the member keeps nothing for a slow
    reader either. No task runs between two calls of the program. A watch costs a connection to
    one of the members, chosen at random; all members push the same.

No gap, no repetition
    The changes of one log entry are returned when all of them have arrived. So after a lost
    connection the watch begins again, at any member, after the last entry that was returned. A
    member that is behind pushes when it has caught up.

Lost changes
    Members keep different snapshots, so that one has changes which another one has deleted. When a
    member says that changes are lost, each of the others is tried once. A watch that is read too
    slowly hears the same from each of them.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, NoReturn
from weakref import WeakValueDictionary

import anyio

from ..errors import (
    HandshakeError,
    KeyValueError,
    NoLeaderError,
    RefusedError,
    WatchLostError,
    WireError,
)
from ..keyvalue.programs.watch import Watch
from ..keyvalue.protocol.resp import encode_command
from ..keyvalue.retry import REFUSALS, Fate, Retry, Turns, fate_of_code
from ..keyvalue.state.pushes import (
    BEYOND,
    MAX_ENTRY_BYTES,
    Changes,
    Ended,
    Lost,
    Progress,
    parse_push_untrusted,
)
from .dialling import Push
from .lanes import CLOSED

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from ..keyvalue.state.changes import Change
    from ..transport import Address
    from .dialling import Dialler, Value, Wire

__all__ = ["SILENCE_SECONDS", "WATCH_CUT", "RemoteWatch", "RemoteWatches"]

SILENCE_SECONDS: Final = 15.0
"""A member reports progress every 5 s. One that is silent for this long counts as dead. Smaller,
and a busy member is left; larger, and a watch stands still for longer after a machine is lost."""

WATCH_CUT: Final = "the client is closed, and this watch with it"

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
        self._watches = WeakValueDictionary[int, RemoteWatch]()  # in the order of their numbers
        self._numbers = itertools.count()
        self._closed = False

    def watch(self, prefix: bytes, after: int) -> RemoteWatch:
        """Return a watch of the changes after a position; -1 for the present.

        Raises:
            RefusedError: the client is closed.
        """
        if self._closed:
            raise RefusedError(CLOSED)
        watch = self._new(prefix, after)
        self._watches[next(self._numbers)] = watch
        return watch

    def _new(self, prefix: bytes, after: int) -> RemoteWatch:
        members = self._rng.sample(self._members, len(self._members))
        return RemoteWatch(self._dialler, members, prefix, after, self._patience_s)

    async def aclose(self) -> None:
        """End all watches: their tasks get an error, as those that wait for a reply."""
        self._closed = True
        for watch in list(self._watches.values()):
            await watch.cut()


class RemoteWatch(Watch):
    """The changes of the keys with a prefix, from any member of a cluster.

    It raises :class:`~quorate.errors.NoLeaderError` if no member could serve it for `patience_s`.
    It may be asked again then, and goes on where it was. It raises
    :class:`~quorate.errors.KeyValueError` if its user may not watch these keys, and
    :class:`~quorate.errors.RefusedError` if the log ends before its position.

    It has a connection until `aclose`. Use it with ``async with``: otherwise a loop that is left by
    ``break`` keeps the connection, and the member its watch, until the object is collected.

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
        self._dialler, self._count, self._turns = dialler, len(members), Turns(members)
        self._patience_s = patience_s
        self._wire: Wire | None = None
        self._entry: list[Change] = []  # what has arrived of an entry whose rest is to come
        self._entry_bytes = 0
        self._lost: list[WatchLostError] = []  # of members, since we were up to date
        self._retry: Retry | None = None  # since the last sign of life; None if there was one
        self._closed = self._cut = False

    async def cut(self) -> None:
        """Close it, as its client is closed; its program gets an error."""
        if not self._closed:
            self._cut = True
            await self.aclose()

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
        self._check_open()
        match push:
            case Changes(changes=changes) if changes[0].position > self.position:
                self._retry = None
                return await self._gathered(changes)
            case Progress(position=position):
                self._retry = None
                if position > self.position:  # otherwise it may still wait for a replay
                    self._lost.clear()
                    self.position = position
            case Lost(after=after, oldest=oldest, text=text):
                self.position = max(self.position, after)
                await self._give_up_member(WatchLostError(text, after=after, oldest=oldest))
            case Ended(after=after, text=text):
                self.position = max(self.position, after)
                await self._give_up_member(KeyValueError(text))
            case _:
                await self._give_up_member(WireError(f"expected a push, found {value!r:.200}"))
        return []

    async def _gathered(self, changes: list[Change]) -> list[Change]:
        """Return all changes of an entry, when the last ones have arrived."""
        entry = self._entry
        entry += changes
        self._entry_bytes += sum(len(change.key) + len(change.value or b"") for change in changes)
        if entry[0].position != changes[0].position:
            await self._give_up_member(
                WireError(f"the end of entry {entry[0].position} is missing")
            )
        elif self._entry_bytes > MAX_ENTRY_BYTES:
            words = f"an entry of more than {MAX_ENTRY_BYTES} bytes: expected one of a member"
            await self._give_up_member(WireError(words))
        elif not changes[-1].more:
            self._entry, self._entry_bytes = [], 0
            return entry
        return []

    # --- members

    async def _try_member(self) -> None:
        """Begin at the member whose turn it is; if that fails, wait a moment.

        Raises:
            NoLeaderError: no member could serve it in time.
            KeyValueError: its user may not watch these keys.
            RefusedError: the log ends before its position.
            WatchLostError: its changes are lost, at all members that can be reached.
            StopAsyncIteration: it was closed.
        """
        wire: Wire | None = None
        try:
            self._check_open()
            wire = await self._dialler.open(self._turns.current)
            await self._ask(wire)
            self._check_open()  # it may have been closed meanwhile
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

    def _check_open(self) -> None:
        """Return if it is open.

        Raises:
            StopAsyncIteration: it was closed. It ends a loop over its changes.
            RefusedError: its client was closed.
        """
        if self._cut:
            raise RefusedError(WATCH_CUT)
        if self._closed:
            raise StopAsyncIteration

    async def _ask(self, wire: Wire) -> None:
        """Begin at a member.

        Raises:
            OSError: the connection is lost.
            WireError: the replies have another form.
            KeyValueError: it refuses.
        """
        await self._find_position(wire)
        words: list[bytes | str] = ["QUORATE.WATCH", self.prefix]
        if self.position >= 0:
            words += "AFTER", str(self.position)
        await wire.send(encode_command(words))
        match await wire.receive(SILENCE_SECONDS):
            case [int(), int(position)]:
                if self.position < 0:
                    self.position = position
            case reply:
                _refuse_untrusted(reply)

    async def _find_position(self, wire: Wire) -> None:
        """Find where we are, if it begins at the present."""
        if self.position < 0:
            # Asked of the leader, through any member: a watch sees every write that is acknowledged
            # after it has begun.
            await wire.send(_POSITION)
            self.position = _position_untrusted(await wire.receive(SILENCE_SECONDS))

    async def _members_after(self, _error: Exception) -> Sequence[Address] | None:
        """Return the members to try after an error; None for those that it has."""
        return None

    async def _give_up_member(self, error: Exception) -> None:
        """Turn to the next member; wait a moment unless this is the first failure.

        Raises:
            WatchLostError: changes are lost, and each member was asked.
            NoLeaderError: it is time to give up.
            KeyValueError, RefusedError: every member would reply with this error.
            StopAsyncIteration: it was closed.
        """
        await self._drop()
        self._check_open()
        self._turns.advance()
        if isinstance(error, KeyValueError):
            if error.code == BEYOND:
                raise RefusedError(str(error).removeprefix(f"{BEYOND} ")) from error
            if _is_final(error):
                raise error
        if isinstance(error, WatchLostError):
            self._lost.append(error)
            # So often that in turns each member was asked once, even if some can't be reached.
            if len(self._lost) >= self._count:
                raise self._farthest_lost()
            return
        members = await self._members_after(error)
        if members is not None:
            self._count, self._turns = len(members), Turns(members)
            self._check_open()
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

    def _farthest_lost(self) -> WatchLostError:
        """Return the error of the member that keeps the oldest changes, and forget all."""
        best = min(self._lost, key=lambda lost: lost.oldest)
        self._lost.clear()
        return WatchLostError(str(best), after=self.position, oldest=best.oldest)

    async def _drop(self) -> None:
        self._entry, self._entry_bytes = [], 0
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

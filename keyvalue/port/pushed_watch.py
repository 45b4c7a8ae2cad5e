"""One watch of one client, and its pushes.

It is a task over a :class:`~..programs.watch.Watch` of this member. It sleeps until something was
applied, encodes the changes, and sends them behind the replies of its connection.

Back-pressure
    A watch asks for changes only while its client has read everything that was sent to it. So a
    slow client costs no memory here: the changes wait where all watches find them, in the member's
    latest changes or in its log. When they are gone there, too, the client gets `lost`.

Moves
    In a partition the watch ends behind the last change there if its slot moves to another one. The
    client hears `ended`, with the address of a member that has the next changes.

Users
    The user needs the command, and the right to read all keys with the prefix. That is checked
    again before each push if the user's rules have changed. If they do not allow it any more, the
    client gets `ended`. While the users are unknown, nothing is pushed.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NoReturn

import trio

from ...errors import KeyValueError, QuorateError, RequestError, WatchLostError
from ...log_events import log_event
from ...node.protocol.signal import Signal
from ..clients.port_state import ClientConnection, PortState
from ..clients.request_errors import error_text
from ..commands.table import resolve
from ..conversation.client_command import client_line
from ..limits import AT_ONCE_BYTES
from ..programs.watch import BeyondLogError, Watch
from ..protocol import resp
from ..state.changes import Change
from ..state.pushes import BEYOND, encode_ended, encode_entries, encode_lost, encode_progress
from ..watches.tenure import SlotMovedError
from .push_turns import PushTurns

__all__ = ["PushedWatch"]

_log = logging.getLogger("quorate.keyvalue")


class _EndedError(Exception):
    """A watch must end; the text begins with an error code."""


class PushedWatch:
    """One watch of one client.

    Args:
        state: of the port.
        connection: of the client.
        arguments: the command that has begun it.
        watch_id: its id on this connection.
        watch: of this member.
        turns: shared by all watches of the port.
    """

    def __init__(
        self,
        state: PortState,
        connection: ClientConnection,
        arguments: Sequence[bytes],
        watch_id: int,
        watch: Watch,
        *,
        turns: PushTurns,
    ) -> None:
        self.place = (connection.client.client_id, watch_id)
        self._state, self._connection, self._turns = state, connection, turns
        self._arguments, self._id, self._watch = list(arguments), watch_id, watch
        self._spec = resolve(self._arguments)
        self._allowed_by = connection.client.access  # the rules that have allowed it
        self._told = watch.position  # everything up to here was pushed
        self._begun = self._waits = self._over = False
        self._reason = ""  # why it ends, if neither its client nor its changes have ended it
        self._scope = trio.CancelScope()
        self._looks = Signal()

    # --- called by its connection, and by the port

    def end(self) -> None:
        """Push nothing more."""
        self._over = True
        self._scope.cancel()

    def end_because(self, reason: str) -> None:
        """End it, and tell the client why; the text begins with an error code."""
        if not self._ends:
            self._reason = reason
            self._scope.cancel()

    def resume(self) -> None:
        """Its client has read what was sent."""
        self._looks.notify()

    def check_again(self) -> None:
        """End it if its user may not watch any more."""
        try:
            if not self._ends:
                self._is_allowed(afresh=True)
        except _EndedError as ended:
            self.end_because(str(ended))
        self._looks.notify()

    def tell_progress(self) -> None:
        """Push the position, if everything up to there was pushed."""
        if self._waits and not self._ends and self._connection.has_room:
            self._told = max(self._told, self._watch.position)
            self._connection.push(encode_progress(self._id, self._told))

    # --- its task

    async def run(self, done: Callable[[bytes], None]) -> None:
        """Begin, call `done` with the reply, and push changes until the end."""
        try:
            with self._scope:
                await self._push_all(done)
        except WatchLostError as lost:
            self._begin(done)  # so that the client hears of it in one way only
            self._send(encode_lost(self._id, lost.after, lost.oldest, str(lost)))
        except _EndedError as ended:
            self._reason = str(ended)
        except SlotMovedError as moved:
            self._reason = self._way_to(moved)
            self._told = max(self._told, self._watch.position)
        except QuorateError as error:
            self._reason = _text(error)
        except Exception:  # noqa: BLE001 - a bug in here must not end the member
            words = "client %(client)d: its watch has failed"
            client = self._connection.client.client_id
            log_event(_log, logging.ERROR, "watch_failed", words, exc_info=True, client=client)
            self._reason = "ERR internal error in 'quorate.watch', see the member's log"
        finally:
            self._waits = False
            self._connection.client.watches.remove(self._id)
        if self._reason and not self._begun:
            done(resp.error(self._reason))
        elif self._reason:
            self._send(encode_ended(self._id, self._told, self._reason))
        self._over = True

    async def _push_all(self, done: Callable[[bytes], None]) -> NoReturn:
        async with self._watch as watch:
            self._told = watch.position
            self._begin(done)
            while True:
                await self._until_ready()
                self._waits = True
                changes = await watch.entries()
                self._waits = False
                await self._push(changes)

    async def _push(self, changes: list[Change]) -> None:
        """Push changes, some at a time; between these the client must have read."""
        gathered: list[bytes] = []
        size, at = 0, self._told
        await self._turns.enter()  # before we encode, which takes about as long as to send
        for position, push in encode_entries(self._id, changes):
            if size >= AT_ONCE_BYTES:
                await self._send_entries(gathered, at)
                gathered, size = [], 0
                await trio.lowlevel.checkpoint()
                await self._turns.enter()
            gathered.append(push)
            size += len(push)
            at = at if position is None else position
        await self._send_entries(gathered, at)

    async def _send_entries(self, pushes: list[bytes], position: int) -> None:
        await self._until_ready()
        self._send(b"".join(pushes))
        self._told = position
        self._state.counters.watch_pushes += len(pushes)

    async def _until_ready(self) -> None:
        """Wait until the client has read everything, and its user may watch.

        Raises:
            _EndedError: its user may not any more.
        """
        while self._ends or not (self._is_allowed() and self._connection.has_room):
            await self._looks.wait()

    def _is_allowed(self, *, afresh: bool = False) -> bool:
        """Whether its user may watch; also False while that is unknown.

        Args:
            afresh: ask also if its rules are the same: a program may decide, not rules.

        Raises:
            _EndedError: it may not.
        """
        client, port = self._connection.client, self._state
        if client.access is self._allowed_by and not afresh:
            return True
        if not port.access.users.known:
            return False
        assert self._spec is not None, "it was resolved when the command was executed"
        denial = client.access.denial(self._spec, self._arguments)
        if denial is not None:
            text = port.access.deny(
                client, denial, line=lambda: client_line(client, port), now_ms=port.gateway.now_ms()
            )
            raise _EndedError(text.decode("utf-8", "replace"))
        self._allowed_by = client.access
        return True

    def _way_to(self, moved: SlotMovedError) -> str:
        """Return the text for a client whose slot has moved: it names a port that it can use."""
        signposts = self._state.signposts
        if signposts is None:
            return str(moved)
        reply = signposts.moved(moved.slot, tls=self._connection.client.tls)
        return reply[1:].decode("utf-8", "replace").strip()

    @property
    def _ends(self) -> bool:
        """Whether its task is about to end."""
        return self._over or bool(self._reason)

    def _begin(self, done: Callable[[bytes], None]) -> None:
        """Send the reply, unless it was sent."""
        if not self._begun:
            self._begun = True
            done(resp.array([resp.integer(self._id), resp.integer(self._told)]))

    def _send(self, data: bytes) -> None:
        if not self._over:
            self._connection.push(data)


def _text(error: QuorateError) -> str:
    """Return the text of an error for clients; it begins with a code."""
    if isinstance(error, KeyValueError):
        return str(error)
    if isinstance(error, BeyondLogError):  # by the leader's word: no other member would take it
        return f"{BEYOND} {error}"
    return error_text(error) if isinstance(error, RequestError) else f"ERR {error}"

"""One move of slots from a partition to another: the steps, and why they are safe.

The steps
    The source S owns the slots, the target D is to own them. All that follows is commands of
    ``QUORATE.SLOTS`` in the logs of S and D, under the number m of the move::

        S  TIME, D TIME     log times are close to each other; once more before FREEZE
        S, D ACL LIST       the same users guard both; once more before FREEZE
        D  PURGE            nothing stale is in the way
        D  IMPORT m         rows of these slots are let in, and hidden
        S  CHANGES -1       the position from which changes count
        S  ROWS, D CHUNK m  all rows, page by page; and the changes since, so that they stay few
        S  CHANGES, D CHUNK until a round is small and quick
        S  FREEZE m         position f: after it S neither changes nor reads these slots
        S  CHANGES, D CHUNK the rest, up to f
        D  OWN m            the moment of transfer
        S  RELEASE m        S knows, too: clients are sent to D
           the map          says so

    Instead of OWN there may be ``D DROP m`` and then ``S THAW m``: S goes on as the owner. A
    director that finds a move that it does not copy itself ends it that way (`settle`).

Why there are never two owners
    D's log has OWN m or DROP m first, and the state machine refuses the other one from then on. So
    every run of a director that asks, by DROP, gets the same answer, whatever other runs do.

    - D answers from OWN m on. At that position S has FREEZE m, since only the run that copies m
      sends OWN m, and only after the reply to FREEZE m.
    - S answers again only after THAW m, which is sent only after D's answer ``DROPPED``. Then OWN m
      is refused for ever. A FREEZE m that comes later than THAW m is refused, too.
    - S gives the slots up only by RELEASE m, which is sent only after OWN m, or the answer
      ``OWNED``.

Why no write is lost or doubled
    - Only one run copies under m. It has claimed m: a compare-and-set of the map was *answered*
      with success (`wishes.claim`). A run whose claim got no answer does not copy, whatever the map
      says. A run that finds m in the map without having claimed it ends m, and claims a new number.
    - One run sends its chunks one after the other, numbered. D takes each number once and in order,
      so a repeated chunk changes nothing, and one that comes late is no chunk any more.
    - Each page is read after the chunk before it was taken, and reads are linearizable. So for each
      key the last row that D took is at least as new as every row before it, except that pages of
      changes may be of the past. Those go on without a gap from before the first page up to f, so
      at f each key has its last row. S says ``LOST`` if it cannot vouch for there being no gap:
      after a change of leader, or when too much was changed. Then the move ends, undone.
    - After f nothing of these slots changes at S, in a log that a quorum has. So rows of S at f are
      rows of D at OWN m.
    - Revisions at D are above f from then on, and chunks keep theirs: those of one key rise.

When something fails
    Each request is repeated until it is answered (`groups.surely`), since all of them are
    idempotent under their number. A crash of the director, at any place, leaves a record in the
    map; the next one begins with `settle`. A command of the dead one that comes late is one of: a
    command of an ended move, refused; or a command that the same log has had already.

    A partition gets its first slots before it takes part in a move (`Reconciler`): one that imports
    is no new one, and a late FOUND gives it nothing.

    If S or D has no leader, a step waits. A move that is frozen for longer than `LONGEST_FREEZE_S`
    without OWN is dropped. If D is then without a quorum, S stays frozen until D has one again: S
    cannot know whether D owns the slots. That is the price of never having two owners. It is paid
    only if D loses its quorum within the few hundredths of a second between FREEZE and OWN.

    Only directors end moves, and a director reads the map. So if the metadata group loses its
    quorum in the same moment in which the director dies, the slots stay frozen until it has one
    again, too. Members do not end moves by themselves: they know no other group.

The number of a move
    Groups answer by number, so a number must never come again. Numbers are epochs of the map, which
    rise. But a map may be restored from a backup: so a claim takes a number that is also above all
    that S and D know. FREEZE carries D's number; only that partition can say whether it owns the
    slots, and a map without it decides nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ..errors import KeyValueError, NoLeaderError, RequestError, UnknownOutcomeError
from ..keyvalue.limits import MOST_SKEW_MS
from ..keyvalue.slots.cluster_map import META
from ..keyvalue.slots.ranges import parse_slots_untrusted
from ..log_events import log_event
from .groups import slots_command
from .slots_state import state_of
from .users import differing
from .wishes import set_owner

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..keyvalue.protocol.resp import Reply
    from ..keyvalue.slots.cluster_map import Move
    from .groups import Group, Groups

__all__ = ["LONGEST_FREEZE_S", "MoveError", "copy_slots", "finish", "purge", "settle"]

_log = logging.getLogger("quorate.partitions")

LONGEST_FREEZE_S: Final = 1.0
"""Seconds from FREEZE to OWN, after which the move is dropped. Shorter, and moves under load never
end. Longer, and clients wait for longer when something fails just then."""

_SMALL_BYTES: Final = 64 << 10
"""Of the last round before FREEZE. Smaller, and a busy partition never gets there. Larger, and the
pause gets longer, since about as much is left for it."""

_QUICK_S: Final = 0.05
"""Seconds that the last round before FREEZE may take, since the pause takes about twice as long."""

_SLOWEST_S: Final = 0.4
"""What is let pass in the end, when no round is quick: about half of `LONGEST_FREEZE_S`."""

_ROUNDS_EACH: Final = 10
"""Small rounds, none of which was quick, after which twice the time is let pass."""

_PAGE_ROWS: Final = 2000
"""Keys that the source looks at for a page: a few milliseconds in which clients there wait."""

_CHUNK_BYTES: Final = 256 << 10
"""Of rows in a chunk: about a page (`slot_rows.PAGE_BYTES`). A page may be much longer, since an
entry of the source's log is read whole, and a value, too; a request may not."""

_ROW_WORDS: Final = 5
_NUMBER_BYTES: Final = 20
_MOST_DIGITS: Final = 19
_MOST_PAGES: Final = 10_000_000
_MOST_PAGES_BETWEEN: Final = 1000
"""Pages of changes after a page of rows. Fewer, and the source forgets changes while many large
values are written; more, and slots that change faster than they are copied show that later."""

_MOST_ROUNDS: Final = 100_000
_MOST_SLOW_ROUNDS: Final = 100
_MOST_FROZEN_ROUNDS: Final = 1000
_PURGE_KEYS: Final = 1000
_MOST_PURGES: Final = 10_000_000
_RELEASE_S: Final = 1.0
_MOST_NAMED: Final = 5


class MoveError(Exception):
    """An attempt to copy has failed; what has become of the move is seen by `settle`."""


async def settle(groups: Groups, move: Move) -> bool:
    """End an attempt of any director; return whether the target owns the slots.

    If it does, `finish` is left to do. If not, the source owns them, and the number is used up.

    Raises:
        RequestError: a group does not answer. It may be done again.
    """
    target = groups.group(move.target)
    try:
        owns = await slots_command(target, "DROP", move.move) == b"OWNED"
    except KeyValueError as error:
        if not str(error).startswith("ENDED"):
            raise
        # The target has forgotten how it ended: many moves have ended after it. It is decided, and
        # while the record is in the map, no other move has brought these slots there.
        state = await state_of(target)
        owns = not parse_slots_untrusted(move.slots) & ~state.owned
    if not owns:
        # Only now: see the top of this file.
        await slots_command(groups.group(move.source), "THAW", move.move)
    return owns


async def finish(groups: Groups, move: Move, keys: int | None = None) -> None:
    """Have the source and the map know that the target owns the slots.

    Args:
        groups: of the cluster.
        move: its target has answered that it owns the slots.
        keys: how many keys it has there, if that is known.

    Raises:
        RequestError: a group does not answer. It may be done again.
    """
    target, meta = groups.group(move.target), groups.group(META)
    if keys is None:
        keys = await _keys_of(target, move)
    words = ("RELEASE", move.move, move.target, keys)
    source = groups.group(move.source)
    try:
        await slots_command(source, *words, within_s=_RELEASE_S)
    except (NoLeaderError, UnknownOutcomeError):
        # The source has no leader, and cannot send its clients on. The map can.
        await set_owner(meta, move, done=False)
        await slots_command(source, *words)
    await set_owner(meta, move, done=True)


async def _keys_of(target: Group, move: Move) -> int:
    """Return how many keys came with a move that the target has answered to own."""
    try:
        # A repeated OWN gives its first reply, whatever it says.
        return _integer_untrusted(await slots_command(target, "OWN", move.move, 0, 0, 0))
    except KeyValueError:
        return 0  # forgotten; it is only for a count of keys that are deleted soon


async def purge(group: Group) -> None:
    """Delete what a partition has of slots that are not its own.

    Raises:
        RequestError: the group does not answer. It may be done again.
    """
    for _ in range(_MOST_PURGES):
        if not _integer_untrusted(await slots_command(group, "PURGE", _PURGE_KEYS)):
            return


async def copy_slots(groups: Groups, move: Move) -> int:
    """Copy slots and transfer them; return how many keys the target has there.

    Args:
        groups: of the cluster.
        move: the caller has claimed its number, and calls this once.

    Raises:
        MoveError: something has failed; `settle` says who owns the slots.
    """
    source, target = groups.group(move.source), groups.group(move.target)
    try:
        await _compare_times(source, target)
        await _compare_users(source, target, move)
        await purge(target)
        await slots_command(target, "IMPORT", move.move, move.slots)
        copy = _Copy(source, target, move)
        await copy.copy_rows()
        await copy.follow()
        await _compare_times(source, target)
        await _compare_users(source, target, move)
        keys = await copy.transfer()
    except RequestError as error:
        raise MoveError(str(error)) from error
    log_event(
        _log,
        logging.INFO,
        "slots_moved",
        "partition %(target)d owns slots %(slots)s of partition %(source)d: %(keys)d keys, after "
        "%(frozen)f s without answers",
        move=move.move,
        slots=move.slots,
        source=move.source,
        target=move.target,
        keys=keys,
        frozen=round(copy.frozen_s, 3),
    )
    return keys


async def _compare_times(source: Group, target: Group) -> None:
    """Refuse to move slots between groups whose log times are far apart.

    Log time of the target must not fall behind that of the source, and a lease of any key that is
    in one of them must not end much before its time.

    Raises:
        MoveError: they are too far apart.
    """
    times = [_integer_untrusted(await slots_command(each, "TIME")) for each in (source, target)]
    if abs(ahead := times[0] - times[1]) > MOST_SKEW_MS:
        raise MoveError(
            f"log time of the source is {ahead} ms ahead of the target's: expected at most "
            f"{MOST_SKEW_MS} ms; set the clocks of the machines that lead them"
        )


async def _compare_users(source: Group, target: Group, move: Move) -> None:
    """Refuse to move slots to where other users could read and write them.

    Raises:
        MoveError: the users of the partitions differ.
        RequestError: a group does not answer.
    """
    if names := await differing(source, target):
        shown = ", ".join([*names[:_MOST_NAMED], *["..."] * (len(names) > _MOST_NAMED)])
        raise MoveError(
            f"the users of partitions {move.source} and {move.target} differ: {shown}; expected "
            "the same lines in ACL LIST of both, with the same hashes: send ACL SETUSER name reset "
            "with the words of such a line, or ACL DELUSER name, to the one that is wrong"
        )


@attrs.define
class _Copy:
    """The copying of one move, by the only run that does it."""

    source: Group
    target: Group
    move: Move
    position: int = -1
    """Changes up to this revision of the source are copied."""
    chunks: int = 0
    frozen_s: float = 0.0

    async def copy_rows(self) -> None:
        """Copy all rows, and the changes since then, lest the source forget them."""
        self.position, _ = await self._changes()
        cursor: Reply = b""
        for _ in range(_MOST_PAGES):
            words = ("ROWS", self.move.slots, _word(cursor), _PAGE_ROWS)
            cursor, rows = _page_untrusted(await slots_command(self.source, *words))
            await self._send(rows)
            for _ in range(_MOST_PAGES_BETWEEN):
                if await self._catch_up() <= _SMALL_BYTES:
                    break
            if not cursor:
                return
        raise MoveError(f"more than {_MOST_PAGES} pages of rows")

    async def follow(self) -> None:
        """Copy changes until few are left, and both groups answer quickly."""
        slow = 0
        for _ in range(_MOST_ROUNDS):
            began = trio.current_time()
            moved = await self._catch_up()
            if moved > _SMALL_BYTES:
                continue
            quick = min(_QUICK_S * 2 ** (slow // _ROUNDS_EACH), _SLOWEST_S)
            if trio.current_time() - began <= quick:
                return
            slow += 1
            if slow == _MOST_SLOW_ROUNDS:
                raise MoveError("the groups answer too slowly for a short pause")
        raise MoveError("the slots change faster than they are copied: try again with less load")

    async def transfer(self) -> int:
        """Freeze the slots at the source, copy what is left, and have the target own them."""
        began = trio.current_time()
        with trio.move_on_after(LONGEST_FREEZE_S):
            number, slots = self.move.move, self.move.slots
            words = ("FREEZE", number, slots, self.move.target)
            frozen = await slots_command(self.source, *words)
            final, now_ms, epoch = _integers_untrusted(frozen)
            for _ in range(_MOST_FROZEN_ROUNDS):
                if self.position >= final:
                    break
                await self._catch_up()
            else:
                raise MoveError(f"the changes up to {final} are not to be had")
            owned = await slots_command(self.target, "OWN", number, final, now_ms, epoch)
            keys = _integer_untrusted(owned)
            self.frozen_s = trio.current_time() - began
            return keys
        raise MoveError(f"the slots were frozen for {LONGEST_FREEZE_S:g} s")

    async def _changes(self) -> tuple[int, Sequence[Sequence[Reply]]]:
        words = ("CHANGES", self.move.slots, self.position)
        position, rows = _page_untrusted(await slots_command(self.source, *words))
        return _integer_untrusted(position), rows

    async def _catch_up(self) -> int:
        """Copy one page of changes; return its bytes."""
        position, rows = await self._changes()
        size = await self._send(rows)
        self.position = position
        return size

    async def _send(self, rows: Sequence[Sequence[Reply]]) -> int:
        """Send rows as the next chunks; return their bytes."""
        sent = 0
        for words in _chunks([[_word(word) for word in row] for row in rows]):
            # Counted before it is sent: a chunk whose reply was lost keeps its number when it is
            # repeated, and no other one ever gets it.
            self.chunks += 1
            await slots_command(self.target, "CHUNK", self.move.move, self.chunks, *words)
            sent += _size(words)
        return sent


def _chunks(rows: Sequence[list[bytes | int]]) -> Iterator[list[bytes | int]]:
    """Yield the words of chunks: as many rows as fit, or a piece of one that is too long."""
    words: list[bytes | int] = []
    size = 0
    for row in rows:
        size += _size(row)
        if words and size > _CHUNK_BYTES:
            yield words
            words, size = [], _size(row)
        key, value, *numbers, _tag = row
        if isinstance(value, bytes) and len(value) > _CHUNK_BYTES:
            yield [key, value[:_CHUNK_BYTES], *row[2:]]
            for at in range(_CHUNK_BYTES, len(value), _CHUNK_BYTES):
                yield [key, value[at : at + _CHUNK_BYTES], *numbers, b"+"]
            size = 0
        else:
            words += row
    if words:
        yield words


def _size(words: Sequence[bytes | int]) -> int:
    return sum(len(word) if isinstance(word, bytes) else _NUMBER_BYTES for word in words)


# --- replies


def _word(word: Reply) -> bytes | int:
    if isinstance(word, bytes | int):
        return word
    raise KeyValueError(f"ERR the reply has {word!r:.40}: expected strings and numbers")


def _integer_untrusted(reply: Reply) -> int:
    if isinstance(reply, int):
        return reply
    if isinstance(reply, bytes) and reply.isdigit() and len(reply) <= _MOST_DIGITS:
        return int(reply)
    raise KeyValueError(f"ERR the reply is {reply!r:.40}: expected a number")


def _integers_untrusted(reply: Reply) -> tuple[int, int, int]:
    match reply:
        case [first, second, third]:
            numbers = _integer_untrusted(first), _integer_untrusted(second)
            return (*numbers, _integer_untrusted(third))
        case _:
            raise KeyValueError(f"ERR the reply is {reply!r:.40}: expected three numbers")


def _page_untrusted(reply: Reply) -> tuple[Reply, Sequence[Sequence[Reply]]]:
    """Return the head of a page, and its rows."""
    if isinstance(reply, list) and reply:
        rows = [row for row in reply[1:] if isinstance(row, list) and len(row) == _ROW_WORDS]
        if len(rows) == len(reply) - 1:
            return reply[0], rows
    raise KeyValueError(f"ERR the reply is {reply!r:.40}: expected a page of rows")

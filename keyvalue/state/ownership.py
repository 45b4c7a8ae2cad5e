"""Which slots a partition owns: a part of its replicated state, changed by commands of its log.

The idea
    A key belongs to a slot, and a slot to one partition. Partitions are groups with logs of their
    own, so no entry of one log can change two of them. A slot therefore moves in steps, each of
    them one entry of one log::

        source    owned --FREEZE--> frozen --RELEASE--> stale --PURGE--> foreign
                               ^--- THAW ---'
        target    foreign --IMPORT--> importing --OWN--> owned
                                        '---- DROP ----> stale --PURGE--> foreign

    The target's log decides: whichever of OWN and DROP comes first there is how the move ends. The
    source thaws only after the target has dropped, and releases only after it owns. So no order of
    commands, late or repeated ones included, gives a slot two owners.

The naive way
    A service that knows all owners would have to be asked about every command, or trusted although
    its answer may be old. Here a member decides by its own state, at the place in the log at which
    the command stands. All members decide alike, at once, and need nobody else.

Rows that are not served
    Rows of slots that are importing or stale lie in the tables, and no command sees them. Neither
    they nor frozen ones expire while their move goes on: each expiry must be seen by the watches of
    exactly one partition. Stale rows expire unseen.

Revisions
    They are log positions plus `shift`. Whoever takes over a slot raises its shift, so that the
    revisions of each key rise over all moves.
"""

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias, TypeVar

from ...storage.tables.memtable import Record, stored_key
from ...storage.tables.tables import Tables
from ..limits import MAX_VALUE_BYTES, MOST_SKEW_MS
from ..protocol import resp
from ..protocol.resp import CommandError
from ..slots.hashing import SLOTS, key_slot
from ..slots.ranges import Slots, ranges_of, text_of
from .ownership_note import (
    SLOTS_NOTE,
    Ended,
    Frozen,
    Gone,
    Importing,
    Owned,
    OwnershipNote,
    as_facts,
    decode_note_untrusted,
    encode_note,
)

_OfMove = TypeVar("_OfMove", Frozen, Importing, Ended)
_OfSlots = TypeVar("_OfSlots", Owned, Gone, Frozen)

__all__ = [
    "FOREIGN",
    "FROZEN_SLOT",
    "KEPT_MOVES",
    "OWNED",
    "PIECE",
    "ImportedRow",
    "Ownership",
]

ImportedRow: TypeAlias = tuple[bytes, Record | None]
"""A key and its record; None deletes the key."""

PIECE: Final = -1
"""Tag of an imported row whose value is to be appended to that of the row that is there."""

FOREIGN: Final = 0
"""State of a slot: another partition owns it, or none."""
OWNED: Final = 1
"""State of a slot: this partition serves it."""
FROZEN_SLOT: Final = 2
"""State of a slot: this partition owns it, and serves it no more, or not yet again."""

KEPT_MOVES: Final = 256
"""Moves that have ended and are remembered. With fewer, a repeated command of a move that has ended
long ago gets no useful answer; with more, each change writes a longer note."""

_OTHER_SLOTS: Final = resp.error(
    "ERR this move has begun here with other slots, or another target; nothing was done"
)
_NOT_CLEAN: Final = resp.error(
    "NOTCLEAN some of these slots are owned here, importing or stale: wait, or send PURGE"
)
_NOT_OWNED: Final = resp.error("NOTOWNED some of these slots are not owned here, or are frozen")
_NOT_FROZEN: Final = resp.error("NOTFROZEN this move has frozen nothing here")
_GAP: Final = resp.error("GAP chunks before this one are missing; nothing was done")


def _ended(move: int, word: str) -> CommandError:
    return CommandError(resp.error(f"ENDED move {move} is {word} here; nothing was done"))


class Ownership:
    """The slots of one partition. The log's commands change it, through the methods below.

    Args:
        tables: hold the note, and the rows.

    Attributes:
        states: of each slot: `FOREIGN`, `OWNED` or `FROZEN_SLOT`. It is always the same object.
        version: rises with each change of a slot or move; in memory only.
        hides: rows lie here that no command may see.
        shift: how far revisions are above log positions; it never falls.
        now_ms: log time is never before this, whatever the batches say; it never falls.

    Raises:
        StorageError: the note is malformed.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._listeners: list[Callable[[], None]] = []
        self.states = bytearray(SLOTS)
        self.version = 0
        self.hides = False
        self.shift = 0
        self.now_ms = 0
        self._note = OwnershipNote()
        self.reload()

    def reload(self) -> None:
        """Read everything anew: the tables were replaced by those of a snapshot."""
        row = self._tables.notes.rows.get(SLOTS_NOTE)
        self._note = OwnershipNote() if row is None else decode_note_untrusted(row)
        self._changed()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call a listener after each change of slots, on the trio thread; it must not raise."""
        self._listeners.append(listener)

    # --- reading

    @property
    def founded(self) -> bool:
        """Whether the partition has got its first slots, which may be none."""
        return self._note.founded

    @property
    def importing(self) -> bool:
        """Whether slots are being copied to here."""
        return bool(self._note.importing)

    @property
    def frozen(self) -> bool:
        """Whether any slot is frozen."""
        return bool(self._note.frozen)

    @property
    def hidden_keys(self) -> int:
        """How many rows no command may see."""
        return self._note.stale_keys + sum(each.keys for each in self._note.importing)

    def epoch_of(self, slot: int) -> int:
        """Return the highest epoch of a slot that is known here; 0 for none."""
        found = _at(self._note.owned, slot) or _at(self._note.gone, slot)
        return found.epoch if found is not None else 0

    def since_of(self, slot: int) -> int:
        """Return the revision from which on this partition has a slot's changes.

        It is 0 if it founded the slot, or does not own it.
        """
        found = _at(self._note.owned, slot)
        return found.since if found is not None else 0

    def tenure_of(self, slot: int) -> tuple[int, int, int | None] | None:
        """Return when this partition has had a slot, now or the last time; None for never.

        Returns:
            The revision from which on its changes are here, that of the entry that took it over,
            and that up to which they are here; None if there may be more.
        """
        if owned := _at(self._note.owned, slot):
            frozen = _at(self._note.frozen, slot)
            return owned.since, owned.begun, frozen.revision if frozen is not None else None
        gone = _at(self._note.gone, slot)
        return (gone.since, gone.begun, gone.upto) if gone is not None else None

    def went_to(self, slot: int) -> int | None:
        """Return the partition to which this one handed a slot; None if it did not, or owns it."""
        found = _at(self._note.gone, slot)
        return found.target if found is not None else None

    def serves(self, key: bytes) -> bool:
        """Whether commands may see a key's row: its slot is owned, or frozen."""
        return self.states[key_slot(key)] != FOREIGN

    def facts(self) -> dict[str, object]:
        """Return everything for JSON."""
        note = self._note
        return {
            "founded": note.founded,
            "owned": [as_facts(each) for each in note.owned],
            "frozen": [as_facts(each) for each in note.frozen],
            "importing": [as_facts(each) for each in note.importing],
            "stale": text_of(note.stale),
            "moved": [as_facts(each) for each in note.gone],
            "ended": {str(each.move): each.word for each in note.ended},
            "ended_upto": note.ended_upto,
            "shift": note.shift,
        }

    # --- the source of a move

    def freeze(self, move: int, slots: Slots, target: int, revision: int, now_ms: int) -> Frozen:
        """Stop serving slots.

        Args:
            move: its number.
            slots: the set.
            target: the partition that is to own them: it alone can say whether it does.
            revision: of the present entry.
            now_ms: log time.

        Raises:
            CommandError: the move has ended here, or not all slots are owned.
        """
        found = _of(self._note.frozen, move)
        if found is not None:
            if (found.slots, found.target) != (slots, target):
                raise CommandError(_OTHER_SLOTS)
            return found
        self._refuse_ended(move)
        if not slots or not all(
            self.states.count(OWNED, first, last + 1) == last + 1 - first
            for first, last in ranges_of(slots)
        ):
            raise CommandError(_NOT_OWNED)
        epoch = max(each.epoch for each in self._note.owned if each.slots & slots)
        found = Frozen(move, slots, target, revision, now_ms, epoch)
        self._note.frozen.append(found)
        self._note.frozen.sort(key=_move_of)
        self._put()
        return found

    def thaw(self, move: int) -> None:
        """Serve frozen slots again; a move that has not frozen them yet never will.

        Raises:
            CommandError: they were released.
        """
        if (word := self._ending(move)) == "released":
            raise _ended(move, word)
        found = _of(self._note.frozen, move)
        if found is not None:
            self._note.frozen.remove(found)
        self._end(move, "thawed")

    def release(self, move: int, target: int, keys: int) -> Frozen | None:
        """Give up frozen slots, which another partition owns now; return what was frozen.

        Args:
            move: its number.
            target: the partition.
            keys: how many of their rows lie here.

        Returns:
            What was given up; None if that has happened already.

        Raises:
            CommandError: the move has frozen nothing, or is one to another partition.
        """
        found = _of(self._note.frozen, move)
        if found is None:
            # Only who knows that the target owns the slots sends this. So a move that is forgotten,
            # since many have ended after it, was released.
            if self._ending(move) in {"released", "forgotten"}:
                return None
            raise CommandError(_NOT_FROZEN)
        if found.target != target:
            raise CommandError(_OTHER_SLOTS)
        note = self._note
        note.frozen.remove(found)
        _take_from(note.gone, found.slots)
        note.gone += (
            Gone(slots, target, found.epoch + 1, each.since, each.begun, found.revision)
            for each in note.owned
            if (slots := each.slots & found.slots)
        )
        note.gone.sort(key=_place_of)
        _take_from(note.owned, found.slots)
        self._spoil(found.slots, keys)
        self._end(move, "released")
        return found

    # --- its target

    def found(self, slots: Slots) -> bool:
        """Own slots from the beginning; return whether this was the first time."""
        if self._note.founded:
            return False
        self._note.founded = True
        if slots:
            self._note.owned.append(Owned(slots, 1, 0))
        self._put()
        return True

    def begin(self, move: int, slots: Slots) -> None:
        """Begin to import slots.

        Raises:
            CommandError: the move has ended here, or rows of these slots may lie here.
        """
        found = _of(self._note.importing, move)
        if found is not None:
            if found.slots != slots:
                raise CommandError(_OTHER_SLOTS)
            return
        self._refuse_ended(move)
        note = self._note
        held = note.stale | _all_of(note.owned) | _all_of(note.importing)
        if not slots or held & slots:
            raise CommandError(_NOT_CLEAN)
        note.founded = True  # a late FOUND must not claim slots that have moved since
        note.importing.append(Importing(move, slots))
        note.importing.sort(key=_move_of)
        self._put()

    def chunk(self, move: int, number: int, rows: list[ImportedRow]) -> int:
        """Put rows of importing slots, or delete them (None); return how many were put or deleted.

        Raises:
            CommandError: the move is not importing, a chunk is missing, a key is of other slots, or
                a piece is of no row, or of one that would be too long.
        """
        found = _of(self._note.importing, move)
        if found is None:
            raise _ended(move, self._ending(move) or "not importing")
        if number <= found.chunk:
            return 0
        if number != found.chunk + 1:
            raise CommandError(_GAP)
        if any(not found.slots >> key_slot(key) & 1 for key, _ in rows):
            raise CommandError(resp.error("ERR a key is not in the slots of this move"))
        tables = self._tables
        rows = [self._whole(key, record) for key, record in rows]
        for key, record in rows:
            found.keys -= tables.get(key) is not None
            # Past the store: no watch here may see it, and the row keeps its revision.
            if record is None:
                tables.delete(key)
            else:
                tables.put(key, record)
                found.keys += 1
        found.chunk = number
        self._save()
        return len(rows)

    def _whole(self, key: bytes, record: Record | None) -> ImportedRow:
        """Return a row with all pieces of its value that have come."""
        if record is None or record[3] != PIECE:
            return key, record
        there = self._tables.get(key)
        if there is None or len(there[0]) + len(record[0]) > MAX_VALUE_BYTES:
            raise CommandError(resp.error("ERR a piece of a value fits no row; nothing was done"))
        return key, (there[0] + record[0], *there[1:])

    def awaits(self, move: int, number: int) -> Slots:
        """Return the slots of a move whose next chunk has this number; empty for any other."""
        found = _of(self._note.importing, move)
        return found.slots if found is not None and number == found.chunk + 1 else 0

    def own(
        self, move: int, since: int, epoch: int, position: int, *, now_ms: int, log_ms: int
    ) -> int:
        """Take importing slots over; return how many keys came with them.

        Args:
            move: its number.
            since: revision from which on the changes are this partition's.
            epoch: of the slots until now.
            position: of the present log entry, to which `shift` is not added.
            now_ms: log time of the source. Log time here is not before it from then on: what had
                expired there must not come back here.
            log_ms: log time here until now.

        Raises:
            CommandError: the move was dropped, or never began; or log time here is so far behind
                the source's that leases of other keys would end long before their time.
        """
        note = self._note
        found = _of(note.importing, move)
        if found is None:
            ended = _of(note.ended, move)
            if ended is not None and ended.word == "owned":
                return ended.keys
            raise _ended(move, self._ending(move) or "not importing")
        if now_ms > log_ms + MOST_SKEW_MS:
            raise CommandError(
                resp.error(f"EARLY log time here is {now_ms - log_ms} ms behind: nothing was done")
            )
        note.importing.remove(found)
        _take_from(note.gone, found.slots)
        note.now_ms = max(note.now_ms, now_ms)
        # So every revision is above `since`, that of the present entry's next commands too.
        note.shift = max(note.shift, since + 1 - position)
        note.owned.append(Owned(found.slots, epoch + 1, since, position + note.shift))
        note.owned.sort(key=_place_of)
        self._end(move, "owned", found.keys)
        return found.keys

    def drop(self, move: int) -> str:
        """Decide against a move; return how it has ended: "dropped", or "owned" if it was too late.

        Raises:
            CommandError: nobody remembers how it ended.
        """
        note = self._note
        found = _of(note.importing, move)
        if found is not None:
            note.importing.remove(found)
            self._spoil(found.slots, found.keys)
        elif word := self._ending(move):
            if word not in ("owned", "dropped"):
                raise _ended(move, word)
            return word
        self._end(move, "dropped")
        return "dropped"

    # --- rows that nobody serves

    def purge(self, count: int) -> int:
        """Walk over some keys, and delete those of stale slots; return how many were looked at.

        The last walk of a purge ends with nothing stale that was stale when it began.
        """
        note, tables = self._note, self._tables
        if not note.purging:
            note.purging, note.purged = note.stale, ""
        # Keys that exist are counted, not those of a page: which deleted ones are in a page depends
        # on what this member has flushed.
        place: bytes | None = bytes.fromhex(note.purged)
        left = count
        while place is not None and left:
            page, place = tables.page(place, left)
            if len(page) >= left:  # each layer may give this many
                page, place = page[:left], stored_key(page[left - 1])
            left -= len(page)
            for key in page:
                if note.purging >> key_slot(key) & 1:
                    tables.delete(key)
                    note.stale_keys -= 1
        if place is None:
            note.stale &= ~note.purging
            note.purging, note.purged = 0, ""
        else:
            note.purged = place.hex()
        note.stale_keys = max(note.stale_keys, 0) if note.stale else 0
        self._save()
        if place is None:
            self._changed()  # most purges change no slot
        return count - left

    @property
    def stale(self) -> bool:
        """Whether rows are still to be purged."""
        return bool(self._note.stale)

    def cleared(self) -> None:
        """All rows were deleted: nothing is stale any more."""
        note = self._note
        if note.stale:
            note.stale = note.stale_keys = note.purging = 0
            note.purged = ""
            self._put()

    def holds(self, key: bytes) -> bool:
        """Whether a key must not expire now: its slot is frozen or importing."""
        slot = key_slot(key)
        return self.states[slot] == FROZEN_SLOT or any(
            each.slots >> slot & 1 for each in self._note.importing
        )

    def expired(self, count: int) -> None:
        """Stale rows have expired, and were deleted."""
        self._note.stale_keys = max(self._note.stale_keys - count, 0)
        self._save()

    # --- parts

    def _ending(self, move: int) -> str | None:
        """Return how a move has ended here; None if it has not."""
        ended = _of(self._note.ended, move)
        if ended is not None:
            return ended.word
        return "forgotten" if move <= self._note.ended_upto else None

    def _refuse_ended(self, move: int) -> None:
        if word := self._ending(move):
            raise _ended(move, word)

    def _end(self, move: int, word: str, keys: int = 0) -> None:
        note = self._note
        if _of(note.ended, move) is None:
            note.ended.append(Ended(move, word, keys))
            if len(note.ended) > KEPT_MOVES:
                note.ended_upto = max(note.ended_upto, note.ended.pop(0).move)
        # What a move has held back may expire now.
        self._tables.deadlines.unpark()
        self._put()

    def _spoil(self, slots: Slots, keys: int) -> None:
        """Rows of some slots are to be purged."""
        self._note.stale |= slots
        self._note.stale_keys += keys

    def _put(self) -> None:
        self._save()
        self._changed()

    def _save(self) -> None:
        self._tables.put_note(SLOTS_NOTE, encode_note(self._note))

    def _changed(self) -> None:
        note, states = self._note, self.states
        states[:] = bytes(SLOTS)
        for some, state in ((_all_of(note.owned), OWNED), (_all_of(note.frozen), FROZEN_SLOT)):
            for first, last in ranges_of(some):
                states[first : last + 1] = bytes((state,)) * (last + 1 - first)
        self.hides = bool(note.importing or note.stale)
        self.shift, self.now_ms = note.shift, note.now_ms
        self.version += 1
        for listener in self._listeners:
            listener()


def _of(moves: list[_OfMove], move: int) -> _OfMove | None:
    return next((each for each in moves if each.move == move), None)


def _all_of(spans: Iterable[Owned | Frozen | Importing]) -> Slots:
    found = 0
    for each in spans:
        found |= each.slots
    return found


def _at(spans: list[_OfSlots], slot: int) -> _OfSlots | None:
    return next((each for each in spans if each.slots >> slot & 1), None)


def _take_from(spans: list[_OfSlots], slots: Slots) -> None:
    """Take slots out of all spans; those with none left go."""
    for each in spans:
        each.slots &= ~slots
    spans[:] = [each for each in spans if each.slots]


def _move_of(each: Frozen | Importing) -> int:
    return each.move


def _place_of(each: Owned | Gone) -> int:
    """Return the first slot of a span."""
    return each.slots & -each.slots

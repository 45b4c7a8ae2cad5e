"""What the committed logs of all groups say of slots, and what must hold.

The book knows each group's log by the first member that applies an entry. It keeps a shadow of who
owns which slot, made from the commands and their replies alone, and compares it with what the
members say. The rules:

- *OneOwner*: no two groups own a slot at the same time.
- *Proven*: each step of a move was decided where it must be: ``OWN`` after ``FREEZE``, ``THAW``
  after ``DROP``, ``RELEASE`` after ``OWN``. A move that has ended in a group stays ended there.
- *RowsMoved*: the target owns the very rows that the source had when it froze.
- *Epochs*: the owner epochs of a slot rise.
- *Shadow*: what a member says that it owns is what its log says.
- *OwnSlotsOnly*: a command with keys is executed, and a read is answered, only by the slots' owner.
- *Revisions*: the revision of a key rises, whichever group changes it.
- *KeptAnswer*: a command of a session that was told that it is in the wrong place is told so again.
- *TrueMap*: the map names as an owner only a group that owns the slot, or is about to
  release it, or has done so in a move that the map still names. After the metadata group has lost
  its map, and got an older one, this holds again once a map says so.
- *EnoughVoters*: no group ever has fewer members with a vote than replicas in the map.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Never, TypeAlias

import attrs
import trio

from ...keyvalue.commands.table import keys_of, lookup
from ...keyvalue.protocol import resp
from ...keyvalue.protocol.payload import PART, PayloadParser
from ...keyvalue.slots.cluster_map import MAP_KEY, META, decode_map_untrusted
from ...keyvalue.slots.hashing import SLOTS, key_slot
from ...keyvalue.slots.ranges import Slots, parse_slots_untrusted, text_of
from ..invariants import ViolationError
from .rows import differences, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...keyvalue.slots.cluster_map import ClusterMap
    from ...node import Command
    from ..store import Store
    from ..watching.knowledge import Knowledge
    from .rows import Rows

Words: TypeAlias = "list[bytes]"

NOT_HERE: Final = b"-NOTHERE "
REPLICAS: Final = 3
"""Replicas of each group, in each map."""


@attrs.define(eq=False)
class GroupBook:
    """What the log of one group says.

    Args:
        partition: the group's number, or `META`.
        owned: slots that it owns.
        frozen: slots of each move that it has frozen.
        importing: slots of each move that it imports.
        ended: moves that have ended here.
        applied: the last entry that a member has applied.
        spans: when which slots became its own, or were no more: seconds, and what it owns then.
        told: commands of sessions that were told that they are in the wrong place.
        stamps: commands of sessions that were executed.
        founded: it has got its first slots, or has begun to import.
        log_ms: log time, in milliseconds.
    """

    partition: int
    owned: Slots = 0
    frozen: dict[bytes, Slots] = attrs.field(factory=dict[bytes, int])
    importing: dict[bytes, Slots] = attrs.field(factory=dict[bytes, int])
    ended: set[bytes] = attrs.field(factory=set[bytes])
    applied: tuple[int, int] = (-1, -1)
    spans: list[tuple[float, Slots]] = attrs.field(factory=list[tuple[float, int]])
    told: set[tuple[int, int]] = attrs.field(factory=set[tuple[int, int]])
    stamps: set[tuple[int, int]] = attrs.field(factory=set[tuple[int, int]])
    founded: bool = False
    log_ms: int = 0

    def own(self, slots: Slots) -> None:
        """Note what it owns from now on."""
        self.owned = slots
        self.spans.append((trio.current_time(), slots))


@attrs.frozen(eq=False)
class _Freeze:
    """What the source had when it froze.

    Args:
        source: its partition.
        slots: of the move.
        revision: the last of the source.
        now_ms: log time.
        rows: of the slots.
    """

    source: int
    slots: Slots
    revision: int
    now_ms: int
    rows: Rows


class Book:
    """The logs of all groups.

    Args:
        partitions: their numbers; the metadata group is one more.

    Attributes:
        groups: by number.
        moved: moves whose target owns the slots.
        dropped: moves that a target has decided against.
        map_epoch: of the newest map.
        newest: the last map, encoded; also if the metadata group has lost it since.
        lost: how often it did.
    """

    def __init__(self, partitions: Sequence[int]) -> None:
        self.groups = {each: GroupBook(each) for each in (META, *partitions)}
        self.moved: set[bytes] = set()
        self.dropped: set[bytes] = set()
        self.map_epoch = 0
        self.newest = b""
        self.lost = 0
        self._older = False
        self._versions: dict[int, int] = {}
        self._freezes: dict[bytes, _Freeze] = {}
        self._epochs = [0] * SLOTS
        self._revisions: dict[bytes, int] = {}
        self._parse = PayloadParser().parse_untrusted
        self._map = b""
        self._trouble: list[Exception] = []
        self._found_trouble = trio.Event()

    async def watch(self) -> Never:
        """Wait for something that does not hold, and raise it.

        Raises:
            ViolationError: that.
        """
        await self._found_trouble.wait()
        raise self._trouble[0]

    # --- what clients see

    def answered(self, partition: int, payload: bytes, reply: bytes, since: float) -> None:
        """Check that a group that has answered a read owned the slots while it was asked.

        Raises:
            ViolationError: it did not.
        """
        group, wanted = self.groups[partition], self._slots_of(self._parse(payload))
        before = 0
        for at, owned in group.spans:
            if at <= since:
                before = owned
            elif not wanted & ~owned:
                return
        if wanted & ~before:
            raise ViolationError(
                f"OwnSlotsOnly: partition {partition} answered {payload[:60]!r}, "
                f"{reply[:60]!r}, asked at {since:.6f} s, "
                f"of slots {text_of(wanted & ~before)} of others"
            )

    # --- what members do

    def attend(self, partition: int, store: Store) -> None:
        """See what a store applies and answers, from now on."""
        apply, group = store.apply, self.groups[partition]

        def applied(command: Command) -> bytes:
            reply = apply(command)
            if (point := (command.position, command.index)) > group.applied:
                group.applied, group.log_ms = point, store.now_ms
                self._judge(lambda: self._note(group, store, command, reply))
            return reply

        query = store.query

        def answered(payload: bytes, flags: int) -> bytes:
            reply = query(payload, flags)
            if partition != META and not reply.startswith((b"-", PART)):
                self._judge(lambda: self._note_read(partition, store, payload))
            return reply

        setattr(store, "apply", applied)  # noqa: B010 - of this one store
        setattr(store, "query", answered)  # noqa: B010

    def _judge(self, look: Callable[[], None]) -> None:
        """Look at something that a member does; what is wrong must not be raised to the member."""
        try:
            look()
        except Exception as trouble:  # noqa: BLE001 - a defect of the book is found, too
            self._trouble.append(trouble)
            self._found_trouble.set()

    def _note_read(self, partition: int, store: Store, payload: bytes) -> None:
        states = store.slot_states()
        wrong = [slot for slot in _each(self._slots_of(self._parse(payload))) if states[slot] != 1]
        if wrong:
            raise _violated(
                "OwnSlotsOnly",
                f"partition {partition} answered {payload[:60]!r} of slots {wrong}, whose state "
                f"there is {states[wrong[0]]}",
            )

    def _note(self, group: GroupBook, store: Store, command: Command, reply: bytes) -> None:
        commands = self._parse(command.payload)
        if group.partition == META:
            self._note_map(store)
        elif not commands:
            return
        elif commands[0][0].upper() == b"QUORATE.SLOTS":
            self._note_step(group, store, commands[0], reply)
        else:
            self._note_command(group, store, command, commands, reply)

    def _slots_of(self, commands: Sequence[Words]) -> Slots:
        slots = 0
        for words in commands:
            for key in _keys(words):
                slots |= 1 << key_slot(key)
        return slots

    def _note_command(
        self,
        group: GroupBook,
        store: Store,
        command: Command,
        commands: Sequence[Words],
        reply: bytes,
    ) -> None:
        if command.session and self._is_known(group, command, reply):
            return
        slots = self._slots_of(commands)
        # Nobody may want a reply here: then nothing says whether it was executed.
        if not slots or not reply or reply.startswith((b"-", PART)):
            return
        if slots & ~group.owned:
            raise _violated(
                "OwnSlotsOnly",
                f"partition {group.partition} executed {command.payload[:60]!r} at "
                f"{group.applied} in slots {text_of(slots & ~group.owned)} that it does not own",
            )
        for words in commands:
            for key in _keys(words):
                self._note_revision(group, store, key)

    def _is_known(self, group: GroupBook, command: Command, reply: bytes) -> bool:
        """Whether a command of a session was executed before."""
        stamp = (command.session, command.sequence)
        if stamp in group.told and not reply.startswith((NOT_HERE, b"-FORGOTTEN", b"-NOSESSION")):
            raise _violated(
                "KeptAnswer",
                f"partition {group.partition} said NOTHERE to {stamp}, and then {reply[:60]!r}",
            )
        if reply.startswith(NOT_HERE):
            group.told.add(stamp)
        known = stamp in group.stamps
        if not reply.startswith((b"-", PART)):
            group.stamps.add(stamp)
        return known

    def _note_revision(self, group: GroupBook, store: Store, key: bytes) -> None:
        record = store.tables.get(key)
        if record is None:
            return
        last, now = self._revisions.get(key, 0), record[2]
        if now < last:
            raise _violated(
                "Revisions",
                f"partition {group.partition} has revision {now} of {key!r} at {group.applied}; "
                f"the last one was {last}",
            )
        self._revisions[key] = now

    # --- steps of moves

    def _note_step(self, group: GroupBook, store: Store, words: Words, reply: bytes) -> None:
        if reply.startswith(b"-"):
            return
        verb = words[1].upper()
        (value,) = resp.parse_replies_untrusted(reply) if reply else (None,)
        before = group.owned
        if verb == b"FOUND":
            self._found(group, store, words, value)
        elif verb == b"IMPORT":
            self._still(group, words[2], "IMPORT")
            group.founded = True  # a late FOUND has no effect
            group.importing[words[2]] = parse_slots_untrusted(words[3].decode())
        elif verb == b"FREEZE":
            self._freeze(group, store, words, value)
        elif verb == b"OWN":
            self._own(group, store, words)
        elif verb == b"DROP":
            self._drop(group, words[2], value)
        elif verb == b"THAW":
            self._thaw(group, words[2])
        elif verb == b"RELEASE":
            self._release(group, words[2])
        if group.owned != before:
            self._check_alone(group)
        self._check_shadow(group, store)

    def _still(self, group: GroupBook, move: bytes, verb: str) -> None:
        if move in group.ended:
            raise _violated(
                "Proven", f"partition {group.partition}: {verb} of move {move!r}, which has ended"
            )

    def _found(self, group: GroupBook, store: Store, words: Words, value: resp.Reply) -> None:
        if not group.founded and value != b"FOUNDED":
            slots = parse_slots_untrusted(words[2].decode())
            group.founded = True
            self._raise_epochs(group, store, slots)
            group.own(group.owned | slots)

    def _freeze(self, group: GroupBook, store: Store, words: Words, value: resp.Reply) -> None:
        move = words[2]
        if move in group.frozen or (move in self._freezes and move in self.moved):
            return
        self._still(group, move, "FREEZE")
        slots = parse_slots_untrusted(words[3].decode())
        if slots & ~group.owned:
            raise _violated("Proven", f"{group.partition} froze {words[3]!r}, not its own")
        group.frozen[move] = slots
        group.own(group.owned & ~slots)
        assert isinstance(value, list)
        revision, now_ms = value[0], value[1]
        assert isinstance(revision, int)
        assert isinstance(now_ms, int)
        rows = rows_of(store, slots)
        self._freezes[move] = _Freeze(group.partition, slots, revision, now_ms, rows)

    def _own(self, group: GroupBook, store: Store, words: Words) -> None:
        move = words[2]
        if move in self.moved:
            return
        self._still(group, move, "OWN")
        freeze = self._freezes.get(move)
        if freeze is None or move not in group.importing:
            raise _violated("Proven", f"OWN of move {move!r} before its FREEZE, or its IMPORT")
        slots = group.importing.pop(move)
        wrong = differences(freeze.rows, rows_of(store, slots), max(freeze.now_ms, store.now_ms))
        if slots != freeze.slots or wrong:
            raise _violated(
                "RowsMoved",
                f"move {move!r} from {freeze.source} to {group.partition}: of slots "
                f"{text_of(slots):.60} (frozen: {text_of(freeze.slots):.60}) {wrong[:3]}",
            )
        self.moved.add(move)
        self._raise_epochs(group, store, slots)
        group.own(group.owned | slots)

    def _drop(self, group: GroupBook, move: bytes, value: resp.Reply) -> None:
        if value == b"OWNED":
            if move not in self.moved:
                raise _violated("Proven", f"move {move!r} is said to be OWNED; it never was")
            return
        if move in self.moved:
            raise _violated("Proven", f"move {move!r} was dropped after its OWN")
        group.importing.pop(move, None)
        group.ended.add(move)
        self.dropped.add(move)

    def _thaw(self, group: GroupBook, move: bytes) -> None:
        if move not in self.dropped:
            raise _violated("Proven", f"THAW of move {move!r} before its target has dropped it")
        group.ended.add(move)
        group.own(group.owned | group.frozen.pop(move, 0))

    def _release(self, group: GroupBook, move: bytes) -> None:
        if move not in self.moved:
            raise _violated("Proven", f"RELEASE of move {move!r} before its target owns the slots")
        group.ended.add(move)
        group.frozen.pop(move, None)

    # --- rules of slots

    def _raise_epochs(self, group: GroupBook, store: Store, slots: Slots) -> None:
        """Note the owner epochs of slots that have a new owner."""
        for slot in _each(slots):
            epoch = store.owner_epoch(slot)
            if epoch <= self._epochs[slot]:
                raise _violated(
                    "Epochs",
                    f"partition {group.partition} owns slot {slot} at epoch {epoch}; "
                    f"the last one was {self._epochs[slot]}",
                )
            self._epochs[slot] = epoch

    def _check_alone(self, group: GroupBook) -> None:
        for other in self.groups.values():
            if other is not group and (both := other.owned & group.owned):
                raise _violated(
                    "OneOwner",
                    f"partitions {group.partition} and {other.partition} own {text_of(both):.80}",
                )

    def _check_shadow(self, group: GroupBook, store: Store) -> None:
        states = bytearray(SLOTS)
        for slot in _each(group.owned):
            states[slot] = 1
        for slots in group.frozen.values():
            for slot in _each(slots):
                states[slot] = 2
        found = store.slot_states()
        if found != bytes(states):
            wrong = [slot for slot in range(SLOTS) if found[slot] != states[slot]]
            raise _violated(
                "Shadow",
                f"partition {group.partition} says {found[wrong[0]]} of slot {wrong[0]} and "
                f"{len(wrong) - 1} more; its log says {states[wrong[0]]}",
            )

    def _note_map(self, store: Store) -> None:
        record = store.tables.get(MAP_KEY)
        if record is None and self._map:
            self._map, self._older = b"", True
            self.lost += 1
        if record is None or record[0] == self._map:
            return
        # A request of a director that is late may bring back a map that is older than the one that
        # was lost since: it finds no map, and the group has forgotten the last epoch. So only the
        # first map after a loss may have a lower one. Owners do not depend on it. Machines take it
        # once its epoch has passed the one that they know: a director's machine that knows a higher
        # one raises it (`metadata.found`), and so does each change.
        brought_back = not self._map
        self._map = self.newest = record[0]
        found = decode_map_untrusted(self._map)
        if found.epoch <= self.map_epoch and not brought_back:
            raise _violated("TrueMap", f"epoch {found.epoch} after {self.map_epoch}")
        self.map_epoch = found.epoch
        others = self._untrue(found)
        if others and not self._older:
            raise _violated("TrueMap", f"epoch {found.epoch} says that {others}")
        # A move that is in the older map may yet have the map say what was true then.
        self._older = self._older and bool(others or found.moves)

    def _untrue(self, found: ClusterMap) -> str:
        """Say which slots a partition owns by the map alone; empty if there are none."""
        for each in found.partitions:
            group = self.groups[each.partition]
            mine = group.owned
            for slots in group.frozen.values():
                mine |= slots
            for move in found.moves:
                # Its source may have released the slots already, and so redirects clients.
                if move.source == each.partition:
                    mine |= parse_slots_untrusted(move.slots)
            if not group.founded:
                mine |= parse_slots_untrusted(each.founded)
            if others := parse_slots_untrusted(each.slots) & ~mine:
                return f"partition {each.partition} owns {text_of(others):.80}"
        return ""

    @property
    def cluster_map(self) -> bytes:
        """The newest map, encoded; empty before the first, and while the group has lost it."""
        return self._map

    # --- members

    def note_members(self, partition: int, known: Knowledge, _member: int) -> None:
        """Look at the members of a group, after an event."""
        latest = known.latest
        if latest.version == self._versions.get(partition, 0):
            return
        self._versions[partition] = latest.version
        voters = [each.member_id for each in latest.voters]
        if len(voters) < REPLICAS:
            words = f"EnoughVoters: partition {partition} has voters {voters}: too few"
            self._judge(lambda: _raise(ViolationError(words)))


def _keys(words: Words) -> Sequence[bytes]:
    if words[0].upper() == b"WATCH":
        # As a query it has keys alone; as a condition, a revision behind each.
        return [each for each in words[1:] if not each.rstrip(b"?").isdigit()]
    spec = lookup(words[0])
    return () if spec is None else keys_of(spec, words)


def _each(slots: Slots) -> list[int]:
    return [slot for slot, bit in enumerate(reversed(f"{slots:b}")) if bit == "1"]


def _raise(error: ViolationError) -> Never:
    raise error


def _violated(rule: str, words: str) -> ViolationError:
    return ViolationError(f"{rule}: {words}")

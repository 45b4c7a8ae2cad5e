"""Moves of slots with one rule removed; storms over several groups must find each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import pytest

from quorate.keyvalue.commands.slot_checks import SlotChecks
from quorate.keyvalue.service import KeyValueService
from quorate.keyvalue.slots.cluster_map import META
from quorate.keyvalue.slots.hashing import key_slot
from quorate.keyvalue.state.ownership import FROZEN_SLOT, OWNED, Ownership
from quorate.keyvalue.state.sessions import Sessions
from quorate.partitions import director, reconcile, replicas
from quorate.partitions import move as moves
from quorate.partitions.groups import slots_command
from quorate.partitions.wishes import set_owner
from quorate.simulation import Plan, simulate
from tests.simulation.mutants.hunt import Found

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quorate.keyvalue.commands.strings import Handler
    from quorate.keyvalue.programs.client import Argument
    from quorate.keyvalue.protocol.resp import Reply
    from quorate.keyvalue.slots.cluster_map import ClusterMap, Move
    from quorate.keyvalue.state.store import KeyStore
    from quorate.partitions.groups import Group, Groups
    from quorate.partitions.replicas import MemberList
    from quorate.storage.tables.memtable import Record

HOURS: Final = 0.004
Copy = moves._Copy  # pyright: ignore[reportPrivateUsage]


@attrs.frozen
class PartitionMutant:
    """A move with one rule removed.

    Args:
        change: removes the rule.
        seeds: it must be found within this many seeds, from 0 on.
        by: the rules that find it.
        first: the seed that is tried first: that which found it last.
    """

    change: Callable[[pytest.MonkeyPatch], None]
    seeds: int
    by: Sequence[str]
    first: int = 0

    @property
    def name(self) -> str:
        """Return its name."""
        return self.change.__name__


# --- the director


def own_before_the_freeze(patch: pytest.MonkeyPatch) -> None:
    """Transfer the slots, and freeze them at the source after that."""

    async def transfer(self: Copy) -> int:
        number = self.move.move
        await slots_command(self.target, "OWN", number, self.position, 0, number)
        return await original(self)

    original = Copy.transfer
    patch.setattr(Copy, "transfer", transfer)


def thaw_before_the_drop(patch: pytest.MonkeyPatch) -> None:
    """Thaw at the source before the target has decided."""

    async def settle(groups: Groups, move: Move) -> bool:
        await slots_command(groups.group(move.source), "THAW", move.move)
        return await original(groups, move)

    original = moves.settle
    for module in USERS:
        patch.setattr(module, "settle", settle)


def release_before_the_target_owns(patch: pytest.MonkeyPatch) -> None:
    """Release the slots at the source before the target owns them."""

    async def transfer(self: Copy) -> int:
        move = self.move
        await slots_command(self.source, "FREEZE", move.move, move.slots, move.target)
        await slots_command(self.source, "RELEASE", move.move, move.target, 0)
        return await original(self)

    original = Copy.transfer
    patch.setattr(Copy, "transfer", transfer)


def skip_the_last_changes(patch: pytest.MonkeyPatch) -> None:
    """Copy nothing between the freeze and the transfer."""

    async def transfer(self: Copy) -> int:
        self.position = 1 << 60
        return await original(self)

    original = Copy.transfer
    patch.setattr(Copy, "transfer", transfer)


def show_the_owner_too_early(patch: pytest.MonkeyPatch) -> None:
    """Have the map name the target as the owner before it is one."""

    async def copy_slots(groups: Groups, move: Move) -> int:
        await set_owner(groups.group(META), move, done=False)
        return await original(groups, move)

    original = moves.copy_slots
    patch.setattr(director, "copy_slots", copy_slots)


def found_each_by_its_share(patch: pytest.MonkeyPatch) -> None:
    """Give a partition that a split has made slots as if the cluster began with it."""

    async def command(group: Group, *words: Argument, **options: float) -> Reply:
        if words[:2] == ("FOUND", ""):
            words = ("FOUND", "12288-16383", *words[2:])
        return await slots_command(group, *words, **options)

    patch.setattr(reconcile, "slots_command", command)


def remove_before_there_is_another(patch: pytest.MonkeyPatch) -> None:
    """Remove the members that a plan does not name before the new ones have a vote."""

    def next_order(cluster_map: ClusterMap, partition: int, now: MemberList) -> str | None:
        wanted = cluster_map.replicas_of(partition)
        surplus = [each for each in now.members if each.member_id not in wanted]
        if surplus and not now.joint:
            return f"member remove {surplus[0].member_id}"
        return original(cluster_map, partition, now)

    original = replicas.next_order
    patch.setattr(replicas, "next_order", next_order)


def correct_no_map(patch: pytest.MonkeyPatch) -> None:
    """Leave a map that is older than the groups as it is."""

    async def correct(*_: object) -> bool:
        return False

    patch.setattr(reconcile, "correct", correct)


# --- the target


def _change_rows(patch: pytest.MonkeyPatch, change: Callable[[Record], Record]) -> None:
    """Have the target take other rows than those that it was sent."""

    def chunk(
        self: Ownership, move: int, number: int, rows: list[tuple[bytes, Record | None]]
    ) -> int:
        changed = [(key, None if row is None else change(row)) for key, row in rows]
        return original(self, move, number, changed)

    original = Ownership.chunk
    patch.setattr(Ownership, "chunk", chunk)


def count_lifetimes_anew(patch: pytest.MonkeyPatch) -> None:
    """Count what is left of a row's life from when it comes, which is later."""
    _change_rows(patch, lambda row: (row[0], row[1] and row[1] + 20, *row[2:]))


def give_rows_new_revisions(patch: pytest.MonkeyPatch) -> None:
    """Take rows as if they were written now, in the target's own log."""
    _change_rows(patch, lambda row: (*row[:2], 1, row[3]))


def take_a_chunk_twice(patch: pytest.MonkeyPatch) -> None:
    """Take a chunk whenever it comes."""

    def chunk(
        self: Ownership, move: int, number: int, rows: list[tuple[bytes, Record | None]]
    ) -> int:
        for each in self._note.importing:  # pyright: ignore[reportPrivateUsage]
            if each.move == move and number <= each.chunk:
                last, each.chunk = each.chunk, number - 1
                done = original(self, move, number, rows)
                each.chunk = last
                return done
        return original(self, move, number, rows)

    original = Ownership.chunk
    patch.setattr(Ownership, "chunk", chunk)


def keep_the_epoch(patch: pytest.MonkeyPatch) -> None:
    """Own slots at the epoch that they had."""

    def own(self: Ownership, move: int, since: int, epoch: int, position: int, **times: int) -> int:
        return original(self, move, since, epoch - 1, position, **times)

    original = Ownership.own
    patch.setattr(Ownership, "own", own)


def go_on_with_own_revisions(patch: pytest.MonkeyPatch) -> None:
    """Write slots that were taken over by the revisions of one's own log."""

    def own(self: Ownership, move: int, since: int, epoch: int, position: int, **times: int) -> int:
        note = self._note  # pyright: ignore[reportPrivateUsage]
        before = note.shift
        keys = original(self, move, since, epoch, position, **times)
        note.shift = before
        return keys

    original = Ownership.own
    patch.setattr(Ownership, "own", own)


# --- the source


def read_what_is_frozen(patch: pytest.MonkeyPatch) -> None:
    """Answer reads of slots that are frozen."""

    def query(self: KeyValueService, payload: bytes, flags: int) -> bytes:
        if (states := self._states) is None:  # pyright: ignore[reportPrivateUsage]
            return original(self, payload, flags)
        try:
            self._states = states.replace(bytes((FROZEN_SLOT,)), bytes((OWNED,)))  # pyright: ignore[reportPrivateUsage]
            return original(self, payload, flags)
        finally:
            self._states = states  # pyright: ignore[reportPrivateUsage]

    original = KeyValueService.query
    patch.setattr(KeyValueService, "query", query)


def check_at_the_port_only(patch: pytest.MonkeyPatch) -> None:
    """Execute a command in a frozen slot: when it was let in, the slot was not frozen yet."""

    def around(self: SlotChecks, handler: Handler) -> Handler:
        states = self._ownership.states  # pyright: ignore[reportPrivateUsage]

        def checked(store: KeyStore, arguments: list[bytes]) -> bytes:
            if states[key_slot(arguments[1])] == FROZEN_SLOT:
                return handler(store, arguments)
            return wrapped(store, arguments)

        wrapped = original(self, handler)
        return checked

    original = SlotChecks._around_one_key  # pyright: ignore[reportPrivateUsage]
    patch.setattr(SlotChecks, "_around_one_key", around)


def begin_what_has_ended(patch: pytest.MonkeyPatch) -> None:
    """Freeze and import slots of a move that has ended."""

    def refuse_nothing(_self: Ownership, _move: int) -> None:
        pass

    patch.setattr(Ownership, "_refuse_ended", refuse_nothing)


def forget_the_wrong_place(patch: pytest.MonkeyPatch) -> None:
    """Keep no reply to a command that came to the wrong partition."""

    def keep(self: Sessions, session: int, sequence: int, reply: bytes) -> None:
        if not reply.startswith(b"-NOTHERE "):
            original(self, session, sequence, reply)

    original = Sessions.keep
    patch.setattr(Sessions, "keep", keep)


USERS: Final = (moves, director)
"""Modules with a name for `settle`."""

PARTITION_MUTANTS: Final = (
    PartitionMutant(own_before_the_freeze, 5, ("Proven",)),
    PartitionMutant(thaw_before_the_drop, 5, ("Proven",)),
    PartitionMutant(release_before_the_target_owns, 5, ("Proven",)),
    PartitionMutant(show_the_owner_too_early, 5, ("TrueMap",)),
    PartitionMutant(skip_the_last_changes, 10, ("RowsMoved",)),
    PartitionMutant(count_lifetimes_anew, 10, ("RowsMoved",)),
    PartitionMutant(give_rows_new_revisions, 5, ("RowsMoved",)),
    PartitionMutant(take_a_chunk_twice, 40, ("RowsMoved",), first=23),
    PartitionMutant(keep_the_epoch, 5, ("Epochs",)),
    PartitionMutant(go_on_with_own_revisions, 10, ("Revisions",)),
    PartitionMutant(read_what_is_frozen, 10, ("OwnSlotsOnly", "Linearizability"), first=4),
    PartitionMutant(check_at_the_port_only, 10, ("OwnSlotsOnly", "Linearizability")),
    PartitionMutant(begin_what_has_ended, 20, ("Proven",)),
    PartitionMutant(forget_the_wrong_place, 20, ("KeptAnswer",)),
    PartitionMutant(found_each_by_its_share, 10, ("OneOwner", "Epochs"), first=3),
    PartitionMutant(remove_before_there_is_another, 20, ("EnoughVoters",), first=7),
    PartitionMutant(correct_no_map, 20, ("Settled",), first=15),
)


def hunt_partition(mutant: PartitionMutant) -> Found | None:
    """Hunt a mutant; None if it survives."""
    with pytest.MonkeyPatch.context() as patch:
        mutant.change(patch)
        for seed in sorted(range(mutant.seeds), key=lambda seed: seed != mutant.first):
            outcome = simulate(Plan(seed, 3, HOURS, "partitions"))
            if outcome.violation is not None:
                kind = outcome.violation.partition(":")[0]
                assert kind not in {"TypeError", "AttributeError"}, f"{mutant.name} is broken"
                return Found(seed, outcome.violation)
    return None

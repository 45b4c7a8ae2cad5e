"""Slots move between two partitions while clients write, commands get lost or late, and movers die.

Nothing is lost, no slot ever has two owners, and whoever replays a log gets the same state.
"""

import random
import tempfile
from pathlib import Path
from typing import Any

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate.keyvalue.protocol.payload import FROZEN
from quorate.keyvalue.service import KeyValueService
from quorate.keyvalue.slots.ranges import parse_slots_untrusted, slots_of, text_of
from quorate.keyvalue.state.ownership import OWNED
from quorate.node.state_machine.service import Command
from tests.support.service_world import START_MS, open_service
from tests.support.slots_world import ALL, KEYS, Mover, PartitionFed, slot_of

SOME = text_of(slots_of((slot, slot) for slot in {slot_of("a"), slot_of("c")}))

key = st.sampled_from(KEYS)
write = st.one_of(
    st.builds("SET {} {}".format, key, st.integers(0, 99)),
    st.builds("SET {} {} PX {}".format, key, st.integers(0, 99), st.sampled_from([10, 3000])),
    st.builds("DEL {}".format, key),
    st.builds("APPEND {} x".format, key),
    st.builds("GET {}".format, key),
)
fate = st.sampled_from(["done"] * 30 + ["lost", "late", "unheard"])
write_step = st.tuples(st.just("write"), write)
mover_step = st.tuples(st.just("step"), fate)
other_step = st.one_of(
    st.tuples(st.just("end"), fate),
    st.tuples(st.just("late"), st.integers(0, 10_000)),
    st.tuples(st.just("late"), st.integers(0, 10_000)),
    st.tuples(st.just("purge"), st.integers(0, 1)),
    st.tuples(st.just("time"), st.tuples(st.integers(0, 1), st.sampled_from([5, 2000]))),
    st.tuples(st.just("restart"), st.integers(0, 1)),
    st.tuples(st.just("flush"), st.none()),
)
count_step = st.tuples(st.just("count"), st.sampled_from(["heard", "heard", "lost", "unheard"]))
move_step = st.tuples(st.just("move"), st.sampled_from([str(slot_of("a")), SOME, ALL]))
kinds = [write_step] * 4 + [count_step] * 3 + [mover_step] * 10 + [move_step] * 2 + [other_step]
step = st.sampled_from(kinds).flatmap(lambda kind: kind)


class UnheardError(Exception):
    """The sender of a command does not know what has become of it."""


class Group(PartitionFed):
    """A partition that may not hear a command, and whose log is kept."""

    def __init__(self, directory: Path, found: str) -> None:
        self.batches: list[tuple[Command | None, int, int]] = []
        self.sent: list[tuple[object, ...]] = []
        self.late: list[tuple[object, ...]] = []
        self.fate = "done"
        super().__init__(directory, found)

    def slots(self, *words: object) -> Any:
        fate, self.fate = self.fate, "done"
        if fate == "late":
            self.late.append(words)
        if fate in ("lost", "late"):
            raise UnheardError
        self.sent.append(words)
        reply = super().slots(*words)
        if fate == "unheard":
            raise UnheardError
        return reply

    def replay(self, command: Command) -> bytes:
        reply = super().replay(command)
        self.batches.append((command, self.position, command.timestamp_ms))
        return reply

    def pass_time(self, milliseconds: int) -> None:
        super().pass_time(milliseconds)
        self.batches.append((None, self.position, self.now))

    def now_ms(self) -> int:
        """Return log time as commands see it."""
        return self.service._store.now  # pyright: ignore[reportPrivateUsage]


class Counter:
    """A client that counts in a session, repeats what it has not heard of, and follows its slot."""

    KEY = "{a}count"

    def __init__(self, groups: list[Group]) -> None:
        self.groups, self.counted = groups, 0
        self._sessions = [int(group.apply("QUORATE.SESSION OPEN")[1:]) for group in groups]
        self._at, self._sequence = 0, 0
        self.pending = False
        self._sent: list[tuple[int, int]] = []

    def count(self, fate: str) -> None:
        """Send a command, or the last one again until its outcome is known."""
        if not self.pending:
            self._sequence += 1
            self.pending = True
        if fate == "lost":
            return
        self._sent.append((self._at, self._sequence))
        reply = self._send(self._at, self._sequence)
        if fate == "unheard" or reply == FROZEN:
            return
        self.pending = False
        if reply.startswith(b"-NOTHERE"):
            self._at = 1 - self._at
        else:
            self.counted += 1
            assert reply == b":%d\r\n" % self.counted, "once, whatever was repeated"

    def repeat(self, rng: random.Random) -> None:
        """Send again what was sent at any time before."""
        if self._sent:
            self._send(*rng.choice(self._sent))

    def _send(self, at: int, sequence: int) -> bytes:
        return self.groups[at].once(self._sessions[at], sequence, f"INCR {self.KEY}")


@attrs.define
class World:
    """Two partitions, and what their clients know."""

    groups: list[Group]
    counter: Counter
    values: dict[str, tuple[bytes, int]] = attrs.field(factory=dict[str, tuple[bytes, int]])
    revisions: dict[str, int] = attrs.field(factory=dict[str, int])
    movers: list[Mover] = attrs.field(factory=list[Mover])
    mover: Mover | None = None

    def owner_of(self, key: str) -> Group | None:
        owners = [each for each in self.groups if each.ownership.states[slot_of(key)] == OWNED]
        assert len(owners) < 2, f"{key} has two owners"
        return owners[0] if owners else None

    def do(self, name: str, argument: Any) -> None:
        begun = {"write": self.write, "count": self.counter.count, "move": self.begin}
        match name:
            case "write" | "count" | "move":
                begun[name](argument)
            case "step" if self.mover is not None:
                self.advance(self.mover.step, argument)
            case "end" if self.movers:
                self.advance(self.movers[-1].drop, argument)
            case "late":
                self.repeat(random.Random(argument))
            case "flush" if not self.counter.pending:
                self.flush()
            case "time":
                number, milliseconds = argument
                self.groups[int(number)].pass_time(milliseconds)
            case "purge" | "restart":
                group = self.groups[int(argument)]
                group.restart() if name == "restart" else group.slots("PURGE", 2)
            case _:
                pass
        for each in KEYS:
            self.owner_of(each)

    def write(self, line: str) -> None:
        name, one, *rest = line.split(" ")
        owner = self.owner_of(one)
        for each in self.groups:
            if each is not owner:
                assert each.apply(line) in (FROZEN, b"-CLUSTERDOWN Hash slot not served\r\n")
        if owner is not None:
            reply, alive = owner.apply(line), self.alive(one, owner)
            match name:
                case "SET":
                    expires_at_ms = owner.now_ms() + int(rest[2]) if rest[1:] else 0
                    self.values[one] = (rest[0].encode(), expires_at_ms)
                case "DEL":
                    assert reply == b":%d\r\n" % (alive is not None)
                    self.values.pop(one, None)
                case "APPEND":
                    value, expires_at_ms = alive or (b"", 0)
                    self.values[one] = (value + b"x", expires_at_ms)
                case _:
                    pass
            self.check(one, owner, wrote=name in ("SET", "APPEND"))

    def alive(self, one: str, owner: Group) -> tuple[bytes, int] | None:
        held = self.values.get(one)
        return held if held and not 0 < held[1] <= owner.now_ms() else None

    def check(self, one: str, owner: Group, *, wrote: bool = False) -> None:
        """Compare a key with what it should be; its revision rises with each write."""
        alive = self.alive(one, owner)
        reply = owner.query(f"QUORATE.RECORDS {one}")
        if alive is None:
            assert reply == b"*1\r\n$-1\r\n"
            return
        value, expires_at_ms = alive
        *_, shown, revision, expires, _ = reply.split(b"\r\n")
        assert (shown, expires) == (value, b":%d" % expires_at_ms)
        before = self.revisions.get(one, 0)
        assert int(revision[1:]) > before if wrote else int(revision[1:]) == before
        self.revisions[one] = int(revision[1:])

    def begin(self, slots: str) -> None:
        """Begin a move to the other partition, from who owns the first key; end dead ones first."""
        if self.mover is not None:
            return
        facts = [group.facts() for group in self.groups]
        for each in [one for fact in facts for one in fact["frozen"] + fact["importing"]]:
            self.movers[int(each["move"]) - 1].drop()
        owner = self.owner_of("a")
        if owner is None:
            return
        other = self.groups[owner is self.groups[0]]
        wanted = parse_slots_untrusted(slots)
        there = slots_of((at, at) for at in range(16384) if owner.ownership.states[at] == OWNED)
        self.mover = Mover(len(self.movers) + 1, text_of(wanted & there), owner, other)
        self.movers.append(self.mover)

    def advance(self, step: Any, fate: str) -> None:
        for each in self.groups:
            each.fate = fate
        try:
            going = step()
        except UnheardError:
            going = False  # nobody else may copy under this number
        for each in self.groups:
            each.fate = "done"
        if not going:
            self.mover = None

    def repeat(self, rng: random.Random) -> None:
        """Apply a command that is late, or one that was applied before."""
        group = rng.choice(self.groups)
        self.counter.repeat(rng)
        if group.late and rng.random() < 0.5:
            group.slots(*group.late.pop(rng.randrange(len(group.late))))
        elif group.sent:
            group.slots(*rng.choice(group.sent))

    def flush(self) -> None:
        """FLUSHALL deletes the keys of one partition, or nothing."""
        group = self.groups[0]
        mine = [one for one in KEYS if self.owner_of(one) is group]
        if group.apply("FLUSHALL") == b"+OK\r\n":
            for one in mine:
                self.values.pop(one, None)
            if self.owner_of(Counter.KEY) is group:
                self.counter.counted = 0

    def finish(self) -> None:
        """End all moves; then everything has one owner, and is there."""
        for move in self.movers:
            move.drop()
        for group in self.groups:
            while group.late:
                group.slots(*group.late.pop())
            while group.slots("PURGE", 5):
                pass
            facts = group.facts()
            assert (facts["frozen"], facts["importing"], facts["stale"]) == ([], [], "")
        for _ in range(3):  # to hear of the last one, to be sent on, and one more
            self.counter.count("heard")
        there = {id(each): 0 for each in self.groups}
        there[id(self.owner_of(Counter.KEY))] += 1
        for one in KEYS:
            owner = self.owner_of(one)
            assert owner is not None, f"{one} has no owner"
            self.check(one, owner)
            there[id(owner)] += self.alive(one, owner) is not None
        for group in self.groups:
            assert group.query("DBSIZE") == b":%d\r\n" % there[id(group)]


def contents(service: KeyValueService) -> object:
    tables = service._tables  # pyright: ignore[reportPrivateUsage]
    notes = tables.notes.rows
    return sorted(notes.items()), tables.scan(None, 100), service.changes.position


def check_replay(group: Group, directory: Path) -> None:
    """Apply the log of a partition to another member."""
    with_log = open_service(directory, partition=True)
    for command, position, timestamp_ms in group.batches:
        if command is not None:
            with_log.apply(command)
        with_log.advance(position, timestamp_ms)
    assert contents(with_log) == contents(group.service)
    with_log.close()


@settings(max_examples=10, deadline=None)
@given(st.lists(step, min_size=80, max_size=160))
def test_moves_lose_nothing_and_no_slot_has_two_owners(steps: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        groups = [Group(home / "0", ALL), Group(home / "1", "")]
        groups[0].position += 1_000_000  # revisions would fall if the target did not raise them
        groups[1].now = START_MS + 700
        world = World(groups, Counter(groups))
        for name, argument in steps:
            world.do(name, argument)
        world.finish()
        for number, group in enumerate(groups):
            check_replay(group, home / f"replica-{number}")
            group.close()

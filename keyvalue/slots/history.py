"""Checks that the logs of all partitions agree on who owned which slot, and since when.

Each partition decides by its own log. Here the logs are read side by side: the commands
QUORATE.SLOTS that are committed, in the order of each log. What is to hold?

- A slot has one owner at each epoch.
- A partition takes slots over (OWN) only where another one has frozen them in the same move, up to
  the same revision, with the same epoch.
- A partition gives slots up (RELEASE) only after its target owns them, and serves them again (THAW)
  only if the target does not.

It has a model of its own of what the commands do, simpler than the state machine, so that a mistake
there does not hide itself. It knows no rows: a move whose IMPORT was refused because old rows were
not deleted yet counts as begun. Its OWN, which no director sends then, would be reported.

Logs that are read from running members end at different times. A step that seems to miss another
one is only reported if the other log goes on behind its time.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import attrs

from ...errors import ConfigurationError
from ..limits import MOST_SKEW_MS
from .ranges import Slots, parse_slots_untrusted, text_of

__all__ = ["SLOTS_COMMAND", "PartitionLog", "Step", "WrongMove", "wrong_moves"]

SLOTS_COMMAND: Final = b"QUORATE.SLOTS"

Kind: TypeAlias = Literal["found", "freeze", "own", "thaw", "release"]

_WORDS: Final = {
    b"IMPORT": 2,
    b"FREEZE": 3,
    b"OWN": 4,
    b"DROP": 1,
    b"THAW": 1,
    b"RELEASE": 3,
}


@attrs.frozen
class Step:
    """A step that a partition has taken.

    Args:
        partition: its number.
        kind: the command.
        move: number of the move; 0 with "found".
        slots: which ones.
        epoch: theirs in this partition.
        revision: the last one at the source, with "freeze" and "own"; else 0.
        target: the next owner, with "freeze" and "release"; else -1.
        position: of the log entry.
        timestamp_ms: log time.
    """

    partition: int
    kind: Kind
    move: int
    slots: Slots
    epoch: int
    revision: int
    target: int
    position: int
    timestamp_ms: int


@attrs.frozen
class WrongMove:
    """Something that the logs of partitions must not say together.

    Args:
        kind: two-owners, own-without-freeze, release-without-own or thaw-of-owned.
        step: where it was seen.
        text: what is wrong.
    """

    kind: str
    step: Step
    text: str


@attrs.define
class _Span:
    """Owned slots: where they came from is the latest step."""

    slots: Slots
    epoch: int
    step: Step


class PartitionLog:
    """What one partition's log says of its slots.

    Args:
        partition: its number.
        facts: its state where the log begins, as the note of the slots has it; None if that is
            position 0.

    Attributes:
        steps: those it has taken, in order.
        earlier: those that its state at the beginning tells of.
        complete: whether the log is known from its beginning.
        until_ms: log time up to which it is known; unlimited at first, for a log that has ended.
    """

    def __init__(self, partition: int, facts: Mapping[str, Any] | None = None) -> None:
        self.partition = partition
        self.steps: list[Step] = []
        self.earlier: list[Step] = []
        self.complete = facts is None
        self.until_ms: float = math.inf
        self._owned: list[_Span] = []
        self._frozen: dict[int, Step] = {}
        self._importing: dict[int, Slots] = {}
        self._ended: dict[int, str] = {}
        self._founded = False
        self._shift = 0
        self._now_ms = 0
        if facts is not None:
            self._load(facts)

    def _load(self, facts: Mapping[str, Any]) -> None:
        self._founded, self._shift = bool(facts["founded"]), int(facts["shift"])
        self._now_ms = int(facts["now_ms"])
        for each in facts["owned"]:
            slots = parse_slots_untrusted(each["slots"])
            step = self._step("own", 0, slots, each["epoch"], each["since"])
            self._owned.append(_Span(slots, each["epoch"], step))
        for each in facts["frozen"]:
            slots = parse_slots_untrusted(each["slots"])
            move, epoch, target = each["move"], each["epoch"], each["target"]
            step = self._step("freeze", move, slots, epoch, each["revision"], target=target)
            self._frozen[move] = step
        for each in facts["importing"]:
            self._importing[each["move"]] = parse_slots_untrusted(each["slots"])
        self._ended = {int(each["move"]): str(each["word"]) for each in facts["ended"]}
        self.earlier = [*self._frozen.values(), *(span.step for span in self._owned)]

    def _step(
        self,
        kind: Kind,
        move: int,
        slots: Slots,
        epoch: int,
        revision: int = 0,
        *,
        target: int = -1,
        at: tuple[int, int] = (0, 0),
    ) -> Step:
        return Step(self.partition, kind, move, slots, epoch, revision, target, *at)

    @property
    def served(self) -> list[tuple[Slots, int, Step]]:
        """Slots that it serves in the end: those that are owned, and not frozen."""
        frozen = 0
        for step in self._frozen.values():
            frozen |= step.slots
        return [
            (slots, each.epoch, each.step)
            for each in self._owned
            if (slots := each.slots & ~frozen)
        ]

    def apply_untrusted(
        self, words: Sequence[bytes], position: int, index: int = 0, timestamp_ms: int = 0
    ) -> None:
        """Take note of a command of the log; others than QUORATE.SLOTS change nothing.

        Args:
            words: the command.
            position: of its batch.
            index: of its entry in the batch.
            timestamp_ms: log time.
        """
        if len(words) < 2 or words[0].upper() != SLOTS_COMMAND:  # noqa: PLR2004 - a container
            return
        self._now_ms = max(self._now_ms, timestamp_ms)
        name, rest = words[1].upper(), words[2:]
        if len(rest) != _WORDS.get(name, -1) and not (rest and name == b"FOUND"):
            return  # users may come with FOUND
        try:
            self._apply(name, rest, position + index + 1, (position, timestamp_ms))
        except (ValueError, ConfigurationError):
            return  # the state machine has refused it, too

    def _apply(self, name: bytes, words: Sequence[bytes], place: int, at: tuple[int, int]) -> None:
        if name == b"FOUND":
            self._found(_slots_untrusted(words[0]), at)
            return
        move = int(words[0])
        match name:
            case b"IMPORT":
                self._import(move, _slots_untrusted(words[1]))
            case b"FREEZE":
                self._freeze(move, words[1:], place + self._shift, at)
            case b"OWN":
                since, now_ms, epoch = map(int, words[1:])
                if now_ms <= self._now_ms + MOST_SKEW_MS:
                    self._now_ms = max(self._now_ms, now_ms)
                    self._own(move, since, epoch, place, at)
            case b"DROP":
                self._importing.pop(move, None)
                self._ended.setdefault(move, "dropped")
            case b"THAW":
                self._thaw(move, at)
            case _:
                self._release(move, int(words[1]), at)

    def _found(self, slots: Slots, at: tuple[int, int]) -> None:
        if self._founded:
            return
        self._founded = True
        step = self._step("found", 0, slots, 1, at=at)
        self._owned.append(_Span(slots, 1, step))
        self.steps.append(step)

    def _import(self, move: int, slots: Slots) -> None:
        held = 0
        for each in (*(span.slots for span in self._owned), *self._importing.values()):
            held |= each
        if move not in self._ended and move not in self._importing and slots and not held & slots:
            self._founded = True
            self._importing[move] = slots

    def _freeze(
        self, move: int, words: Sequence[bytes], revision: int, at: tuple[int, int]
    ) -> None:
        slots, target = _slots_untrusted(words[0]), int(words[1])
        held = 0
        for each, _, _ in self.served:
            held |= each
        if move in self._ended or move in self._frozen or not slots or slots & ~held:
            return
        epoch = max(each.epoch for each in self._owned if each.slots & slots)
        step = self._step("freeze", move, slots, epoch, revision, target=target, at=at)
        self._frozen[move] = step
        self.steps.append(step)

    def _own(self, move: int, since: int, epoch: int, place: int, at: tuple[int, int]) -> None:
        slots = self._importing.pop(move, None)
        if slots is None:
            return
        self._ended.setdefault(move, "owned")
        self._shift = max(self._shift, since + 1 - place)
        step = self._step("own", move, slots, epoch + 1, since, at=at)
        self._owned.append(_Span(slots, epoch + 1, step))
        self.steps.append(step)

    def _thaw(self, move: int, at: tuple[int, int]) -> None:
        if self._ended.get(move) == "released":
            return
        self._ended.setdefault(move, "thawed")
        frozen = self._frozen.pop(move, None)
        if frozen is not None:
            self.steps.append(self._step("thaw", move, frozen.slots, frozen.epoch, at=at))

    def _release(self, move: int, target: int, at: tuple[int, int]) -> None:
        frozen = self._frozen.get(move)
        if frozen is None or frozen.target != target:
            return
        del self._frozen[move]
        self._ended.setdefault(move, "released")
        for each in self._owned:
            each.slots &= ~frozen.slots
        self._owned = [each for each in self._owned if each.slots]
        step = self._step("release", move, frozen.slots, frozen.epoch, target=target, at=at)
        self.steps.append(step)


def _slots_untrusted(text: bytes) -> Slots:
    return parse_slots_untrusted(text.decode("ascii", "replace"))


def wrong_moves(logs: Iterable[PartitionLog]) -> list[WrongMove]:
    """Return what the logs of partitions must not say together; nothing if all is well.

    Args:
        logs: one for each partition that is known.
    """
    by_number = {log.partition: log for log in logs}
    found = _two_owners(by_number.values())
    for log in by_number.values():
        for step in log.steps:
            wrong = _wrong_step(step, by_number)
            if wrong is not None:
                found.append(wrong)
    return sorted(found, key=lambda wrong: (wrong.step.timestamp_ms, wrong.step.position))


def _two_owners(logs: Iterable[PartitionLog]) -> list[WrongMove]:
    """Find slots with two owners at one epoch, or two partitions that serve them in the end."""
    logs = [*logs]
    found: list[WrongMove] = []
    takings = [
        (step.slots, step.epoch, step)
        for log in logs
        for step in (*log.earlier, *log.steps)
        if step.kind in ("found", "own")
    ]
    for at, (slots, epoch, step) in enumerate(takings):
        for others, other_epoch, other in takings[:at]:
            if epoch == other_epoch and (both := slots & others):
                words = f"{text_of(both)}: partitions {other.partition} and {step.partition} "
                found.append(
                    WrongMove("two-owners", step, f"{words}both took them over at epoch {epoch}")
                )
    if found:
        return found
    serving = [(log, *each) for log in logs for each in log.served]
    for at, (log, slots, _, step) in enumerate(serving):
        for rival, others, _, _ in serving[:at]:
            if rival is not log and (both := slots & others):
                words = f"{text_of(both)}: partitions {rival.partition} and {log.partition} "
                found.append(WrongMove("two-owners", step, f"{words}both serve them in the end"))
    return found


def _wrong_step(step: Step, logs: Mapping[int, PartitionLog]) -> WrongMove | None:
    """Return what is wrong with a step, by the logs of the other partitions."""
    others = [log for log in logs.values() if log.partition != step.partition]
    same = [
        each
        for log in others
        for each in (*log.earlier, *log.steps)
        if each.move == step.move and each.move
    ]
    slots = text_of(step.slots)
    match step.kind:
        case "own":
            for each in same:
                if each.kind == "freeze" and _fits(each, step):
                    return None
            if not all(_is_known(log, step) for log in others):
                return None
            words = f"{slots}: no partition froze them in move {step.move} at revision "
            return WrongMove(
                "own-without-freeze", step, f"{words}{step.revision}, epoch {step.epoch - 1}"
            )
        case "release":
            target = logs.get(step.target)
            if target is None or not _is_known(target, step):
                return None
            if any(each.kind == "own" and each.partition == step.target for each in same):
                return None
            words = f"{slots}: partition {step.target} never took them over in move {step.move}"
            return WrongMove("release-without-own", step, words)
        case "thaw":
            owner = next((each for each in same if each.kind == "own"), None)
            if owner is None:
                return None
            words = f"{slots}: partition {owner.partition} took them over in move {step.move}"
            return WrongMove("thaw-of-owned", step, words)
        case _:
            return None


def _fits(freeze: Step, own: Step) -> bool:
    return (freeze.slots, freeze.revision, freeze.epoch + 1) == (
        own.slots,
        own.revision,
        own.epoch,
    )


def _is_known(log: PartitionLog, step: Step) -> bool:
    """Whether a log would have the step that another one needs."""
    return log.complete and log.until_ms >= step.timestamp_ms

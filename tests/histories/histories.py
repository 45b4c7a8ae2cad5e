"""Histories to check: short to write, made at random, and explained by brute force."""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING

from quorate.histories.history import Operation
from quorate.histories.specification import Strings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from random import Random

    from quorate.histories.history import Status, Value

STRINGS = Strings()
KEY = b"k"
NEVER = 1 << 40


def op(
    client: int,
    span: tuple[int, int],
    name: str,
    *args: Value,
    result: Value = None,
    status: Status = "ok",
) -> Operation:
    """An operation on one key; a set that is ok gets its result."""
    told = b"OK" if name == "set" and status == "ok" else result
    return Operation(client, name, KEY, args, told, *span, status)


def explained(history: Iterable[Operation]) -> bool:
    """Whether some order of some choice of the unknown operations explains all results."""
    history = list(history)
    known = [one for one in history if one.status == "ok"]
    unknown = [one for one in history if one.status == "unknown"]
    return any(
        _in_order(None, [*known, *chosen])
        for count in range(len(unknown) + 1)
        for chosen in itertools.combinations(unknown, count)
    )


def _in_order(state: bytes | None, left: list[Operation]) -> bool:
    first_end = min([one.end_ns for one in left if one.status == "ok"], default=NEVER)
    for i, one in enumerate(left):
        if one.start_ns > first_end:
            continue
        new, result = STRINGS.apply(state, one.op, one.args)
        fits = one.status == "unknown" or result == one.result
        if fits and _in_order(new, [*left[:i], *left[i + 1 :]]):
            return True
    return not left


def lived(planned: Sequence[tuple[float, Operation]]) -> list[Operation]:
    """Give operations the results they get if each happens at its moment; NEVER is one."""
    states: dict[bytes, bytes | None] = {}
    history: list[Operation] = []
    for at, one in sorted(planned, key=lambda pair: pair[0]):
        result: Value = None
        if at < NEVER and one.status != "fail":
            state = states.get(one.key)
            states[one.key], result = STRINGS.apply(state, one.op, one.args)
        told = result if one.status == "ok" else None
        history.append(
            Operation(
                one.client, one.op, one.key, one.args, told, one.start_ns, one.end_ns, one.status
            )
        )
    return history


def busy_history(
    rng: Random, *, operations: int, keys: int, clients: int, names: Sequence[str], unknown: float
) -> list[Operation]:
    """What clients of a linearizable store see that always have an operation under way."""
    free = [(0, client) for client in range(clients)]
    planned: list[tuple[float, Operation]] = []
    for serial in range(operations):
        begin, client = heapq.heappop(free)
        start = begin + rng.randrange(1, 50)
        at = start + rng.randrange(1, 500)
        end = at + rng.randrange(1, 500)
        heapq.heappush(free, (end, client))
        name = rng.choice(names)
        status: Status = "unknown" if rng.random() < unknown else "ok"
        moment = NEVER if status == "unknown" and rng.random() < 0.5 else at
        args: tuple[Value, ...] = (b"%d" % serial,) if name in {"set", "append"} else ()
        key = b"k%d" % rng.randrange(keys)
        planned.append((moment, Operation(client, name, key, args, None, start, end, status)))
    return lived(planned)

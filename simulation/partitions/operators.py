"""Who asks for moves of slots, and what arrives late: commands that were sent long ago, once more.

A network may deliver a request late, or twice, and a director that stood still goes on where it
was. So every command about slots, and every command of a session, may come again at any time.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import trio

from ...errors import ConfigurationError, ConflictError, RequestError
from ...keyvalue.programs.client import KeyValue
from ...keyvalue.slots.cluster_map import META
from ...keyvalue.slots.hashing import SLOTS, key_slot
from ...keyvalue.slots.ranges import parse_slots_untrusted, slots_of
from ...partitions.metadata import load
from ...partitions.wishes import abort_move, plan_move, request_moves
from .groups import PlainGroup, doors_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from ...keyvalue.programs.client import Argument
    from ...keyvalue.slots.ranges import Slots
    from ..door import Door
    from .groups import Cluster
    from .sessions import Stamped

OPERATOR: Final = 900
PAUSE_TIMEOUTS: Final = 4.0
"""Longest time between two orders, in heartbeat timeouts."""
MOST_MOVES: Final = 2
ABORTS: Final = 0.3
"""Part of the orders that end a move."""
PATIENCE_TIMEOUTS: Final = 20.0
"""How long an operator waits for the metadata group, in heartbeat timeouts."""
LATE_TIMEOUTS: Final = 0.4
"""Longest time between two commands that come again, in heartbeat timeouts."""
RECENT: Final = 4
"""Half of them are of the last few: those of a move that is under way."""
REPEATED: Final = 200
"""Of so many commands that were sent last, any may come again."""


class Operators:
    """Operators of a cluster.

    Args:
        cluster: the groups.
        rng: chooses what they want.
        stamped: commands of sessions that were sent.

    Attributes:
        counts: what they did.
        keys: in whose slots clients work; these move more often.
    """

    def __init__(self, cluster: Cluster, rng: Random, stamped: list[Stamped]) -> None:
        self._cluster = cluster
        self._rng = rng
        self._stamped = stamped
        self._doors = doors_of(cluster, OPERATOR, rng)
        # A session belongs to its client, so a late command comes under that one's number.
        self._late: dict[int, dict[int, Door]] = {}
        self.counts = {"a move": 0, "an abort": 0, "a late step": 0, "a late command": 0}
        self.keys: list[bytes] = []

    async def run(self) -> None:
        """Order one thing after the other, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._order)
            nursery.start_soon(self._repeat)

    async def _order(self) -> None:
        while True:
            await trio.sleep(self._cluster.unit * PAUSE_TIMEOUTS * self._rng.random())
            with contextlib.suppress(RequestError, ConfigurationError, ConflictError):
                await self.order_move()

    async def order_move(self) -> None:
        """Ask for a move of some slots.

        Raises:
            RequestError: the metadata group does not answer.
            ConfigurationError: there is no map yet.
            ConflictError: others were faster, each time.
        """
        meta = PlainGroup(self._doors[META])
        with trio.move_on_after(self._cluster.unit * PATIENCE_TIMEOUTS):
            now = await load(meta)
            if now is None:
                return
            if now.moves and self._rng.random() < ABORTS:
                self.counts["an abort"] += 1
                await abort_move(meta, self._rng.choice(now.moves).move)
            elif len(now.moves) < MOST_MOVES:
                slots = self._some()
                for move in now.moves:
                    slots &= ~parse_slots_untrusted(move.slots)
                target = self._rng.choice(now.partitions).partition
                self.counts["a move"] += 1
                await request_moves(meta, plan_move(now, slots, target))

    def _some(self) -> Slots:
        """Draw some slots: those of a few keys, and a range."""
        first = self._rng.randrange(SLOTS)
        slots = slots_of([(first, min(SLOTS - 1, first + self._rng.choice((0, 500, 8000))))])
        for key in self._rng.sample(self.keys, (len(self.keys) + 1) // 2):
            slots |= 1 << key_slot(key)
        return slots

    async def _repeat(self) -> None:
        """Let a command arrive once more."""
        while True:
            await trio.sleep(self._cluster.unit * LATE_TIMEOUTS * self._rng.random())
            # Shorter lists than this are of the run's beginning.
            del self._cluster.sent[:-REPEATED], self._stamped[:-REPEATED]
            with contextlib.suppress(RequestError):
                if self._rng.random() < 0.7:
                    recent = self._rng.choice((RECENT, REPEATED))
                    await self._repeat_step(self._cluster.sent[-recent:])
                else:
                    await self._repeat_command(self._stamped)

    async def _repeat_step(self, sent: Sequence[tuple[int, tuple[Argument, ...]]]) -> None:
        if sent:
            partition, words = self._rng.choice(sent)
            self.counts["a late step"] += 1
            await KeyValue(self._doors[partition]).execute(*words)

    async def _repeat_command(self, sent: Sequence[Stamped]) -> None:
        if sent:
            old = self._rng.choice(sent)
            self.counts["a late command"] += 1
            if old.client not in self._late:
                self._late[old.client] = doors_of(self._cluster, old.client, self._rng)
            await self._late[old.client][old.partition].command(old.payload, stamp=old.stamp)

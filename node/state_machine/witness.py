"""The service of a witness: it votes and keeps the log, and has no tables.

A witness is the cheap third member of two sites. It records what it gets and votes like any voter.
It keeps no keys, so it needs little memory and hardly any processor, and it answers no reads.

How it fits into the member
    It takes the place of the state machine, whichever the cluster has, so the member itself is the
    same. What is committed runs through it without effect.

Snapshots
    At the positions at which members with tables take snapshots, it writes a file of a few hundred
    bytes that has only the head: position, terms and configuration. So the log is pruned, restarts
    and begins anew by the same rules as everywhere. Such a file is never sent to another member,
    and a member with tables never loads one: its head names the kind `NO_STATE`.

Leading
    A witness may have the longest log, so it may win an election. Then it takes no requests, brings
    a member with tables up to date, and hands over (:mod:`..leader.members.reconfiguration`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Never

import trio

from ...errors import ConfigurationError, RefusedError
from ..protocol.membership import MemberRole
from .service import kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...storage import Store
    from ..config.config import NodeConfig
    from ..protocol.membership import Membership
    from .service import Command, Service

_WITHOUT_TABLES: Final = frozenset({MemberRole.WITNESS, MemberRole.LEAVING})

LEAST_KEPT: Final = 2
"""Heads that a witness keeps, at least. With one, its log would begin at a snapshot that the
members with tables are still writing; after a crash they need the log from the one before."""


class WitnessService:
    """Takes what is committed, and keeps nothing of it.

    Args:
        kind: of the cluster's state machine; members compare it when they connect.
        position: of the log from which on it is called.
    """

    def __init__(self, kind: str, position: int = 0) -> None:
        self.kind = kind
        self._position = position

    @classmethod
    def in_place_of(cls, service: Service, store: Store) -> WitnessService:
        """Make the one that takes the place of a state machine, and begins where the log is known.

        It need not see again what was committed before: nothing of it would be kept.
        """
        known = max(store.start_position, store.last_commit_position)
        return cls(kind_of(service), min(known, store.append_position))

    @property
    def position(self) -> int:
        """Where it began."""
        return self._position

    def apply(self, command: Command) -> bytes:  # noqa: ARG002 - nothing is done with it
        """Do nothing."""
        return b""

    def advance(self, position: int, timestamp_ms: int) -> None:
        """Do nothing: the applier knows the position."""

    def query(self, payload: bytes, flags: int) -> bytes:  # noqa: ARG002 - see `apply`
        """Refuse to answer.

        Raises:
            RefusedError: always.
        """
        raise RefusedError("a witness has no tables to answer from")

    def next_deadline_ms(self) -> int | None:
        """Return None: it waits for nothing."""
        return None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Do nothing until cancelled."""
        task_status.started()
        await trio.sleep_forever()
        raise AssertionError("it sleeps for ever")  # pragma: no cover - never reached

    async def save(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> Iterator[bytes]:
        """Return a state without any piece."""
        await trio.lowlevel.checkpoint()
        task_status.started()
        return iter(())

    async def load(
        self,
        pieces: Iterator[bytes],  # noqa: ARG002 - see `apply`
        position: int,  # noqa: ARG002 - see `apply`
        timestamp_ms: int,  # noqa: ARG002 - see `apply`
    ) -> None:
        """Ignore a state; it may be that of the member before it became a witness."""
        await trio.lowlevel.checkpoint()


def check_role(config: NodeConfig, membership: Membership) -> None:
    """Refuse a file that makes a witness of a member that is to have tables.

    Args:
        config: of the member.
        membership: a configuration that is committed. One that is not may give the id to another
            member than the one that got it in the end.

    Raises:
        ConfigurationError: it has a seat of another role for it.
    """
    seat = membership.seat(config.member_id)
    # Members would hand the leadership to it, for reads that it can't answer. The other way round
    # is harmless: a witness whose file does not say so fetches the tables, and hands over as well.
    if config.own.witness and seat is not None and seat.role not in _WITHOUT_TABLES:
        raise ConfigurationError(
            f"member {config.member_id}: witness = true, but by configuration version "
            f"{membership.version} it is a {seat.role.value}. Remove it, and add a witness: "
            "quorate member add --role witness"
        )

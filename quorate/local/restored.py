"""A first start of members that were just restored, before users depend on them.

Sound bytes do not prove that the members can elect a leader. So all members of a new cluster start
together, on a network in memory. They found the cluster and elect a leader. The leader opens a term
above all terms of the restored log, and commits its entry everywhere. Then they stop in order. If
some members are restored elsewhere, those that are here are opened and stopped again.

The state machine does nothing: it starts with everything restored applied, and ignores entries. So
this works for every service, and makes no tables. It leaves one more entry in the log, as each
start does.
"""

import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

import attrs
import trio

from ..errors import StorageError, leaves
from ..node import Command, NodeConfig
from ..node.config.config import Security, Timeouts
from ..node.member import Member, open_member
from ..node.state_machine.service import KEY_VALUE
from ..state_machine import StateMachine
from ..storage import ExecutorFactory, ThreadExecutor, Write, open_readonly
from ..transport.testing import MemoryNetwork

PATIENCE_SECONDS: Final = 30.0
"""How long the first election may take; usually less than a second. Shorter, and a restore fails on
a busy machine. Longer, and a defect shows later."""

LOOK_SECONDS: Final = 0.02


class _Still(StateMachine):
    """A state machine that has applied everything up to a position, and does nothing more."""

    def __init__(self, position: int, kind: str) -> None:
        self.position = position
        self.kind = kind

    def apply(self, command: Command) -> bytes:
        """Do nothing."""
        del command
        return b""

    def advance(self, position: int, timestamp_ms: int) -> None:
        """Note the position."""
        del timestamp_ms
        self.position = position


async def start_once(
    configs: Sequence[NodeConfig],
    position: int,
    rng: random.Random,
    *,
    elect: bool,
    executor: ExecutorFactory[Write] = ThreadExecutor,
) -> None:
    """Start the members that were made together, and stop them again.

    Args:
        configs: of the members.
        position: up to where they were restored.
        rng: the only source of randomness.
        elect: they are all members of their cluster, and elect a leader.
        executor: writes to disk on a thread unless given.

    Raises:
        StorageError: one of them fails, or they elect no leader.
    """
    names = ", ".join(str(config.directory) for config in configs)
    try:
        with trio.fail_after(PATIENCE_SECONDS):
            await _start(configs, position, rng, executor, elect=elect)
    except Exception as failure:  # any error at all is a reason not to use these directories
        raise StorageError(
            f"{names}: restored and sound, but the first start fails: {next(leaves(failure))!r}. "
            "Do not use it, and report this"
        ) from failure


async def _start(
    configs: Sequence[NodeConfig],
    position: int,
    rng: random.Random,
    executor: ExecutorFactory[Write],
    *,
    elect: bool,
) -> None:
    network = MemoryNetwork(random.Random(rng.getrandbits(64)))  # noqa: S311 - not for secrets
    async with AsyncExitStack() as stack:
        members: list[Member] = []
        for config in configs:
            name = f"member-{config.member_id}"
            opened = open_member(
                _alone(config),
                _Still(position, _kind_in(config)),
                rng=random.Random(rng.getrandbits(64)),  # noqa: S311 - as above
                clock_ms=lambda: time.time_ns() // 1_000_000,
                network=network.host(name),
                executor=executor,
            )
            members.append(await stack.enter_async_context(opened))
        while elect and not _agreed(members):  # noqa: ASYNC110 - no event stands for all members
            await trio.sleep(LOOK_SECONDS)
        async with trio.open_nursery() as nursery:
            for member in members:
                nursery.start_soon(member.close)


def _kind_in(config: NodeConfig) -> str:
    """Return the kind of service that a store is of; an old store is of the key-value store."""
    with open_readonly(config.directory / "log") as store:
        return store.recorded.service or KEY_VALUE


def _alone(config: NodeConfig) -> NodeConfig:
    """Return the configuration for a network in memory, where nobody proves who it is."""
    members = tuple(
        attrs.evolve(member, host=f"member-{member.member_id}") for member in config.members
    )
    own = f"member-{config.member_id}"
    return attrs.evolve(
        config,
        members=members,
        timeouts=Timeouts.of("lan"),
        member_listen_host=own,
        client_listen_host=own,
        security=Security(),
    )


def _agreed(members: Sequence[Member]) -> bool:
    """Whether a leader has committed an entry of its own, and all members have applied it."""
    statuses = [member.status() for member in members]
    ends = {(each.append_position, each.applied_position, each.term) for each in statuses}
    leads = any(each.role == "leader" for each in statuses)
    closed = all(each.state == "CLOSED" for each in statuses)
    (append, applied, _term) = next(iter(ends))
    return leads and closed and len(ends) == 1 and append == applied

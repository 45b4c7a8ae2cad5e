"""A first start of members that were just restored, before anybody relies on them.

That their bytes are sound does not say that they can elect a leader. So the members of a new
cluster are started together, on a network in memory: they found the cluster, elect a leader, which
opens a term above all in the restored log, and have its entry everywhere. Then they stop in order.
Members that can't do that alone, since others are missing, are opened and stopped again.

The state machine stands still: it is taken to have applied all that was restored, and it takes no
entry. So this works for every service, and makes no tables. What it leaves is one more entry in the
log, as each start does.
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
from ..node.config.config import Timeouts
from ..node.member import Member, open_member
from ..node.state_machine.service import KEY_VALUE
from ..storage import ExecutorFactory, ThreadExecutor, Write, open_readonly
from ..transport.testing import MemoryNetwork

PATIENCE_SECONDS: Final = 30.0
"""How long the first election may take. It takes less than a second, unless the machine is busy:
if this is shorter, a restore fails on such a machine; if it is longer, a defect shows later."""

LOOK_SECONDS: Final = 0.02


class _Still:
    """A service that has applied everything up to a position, and does nothing more."""

    def __init__(self, position: int, kind: str) -> None:
        self.position = position
        self.kind = kind

    def apply(self, command: Command) -> bytes:
        """Do nothing."""
        del command
        return b""

    def query(self, payload: bytes, flags: int) -> bytes:
        """Answer nothing."""
        del payload, flags
        return b""

    def advance(self, position: int, timestamp_ms: int) -> None:
        """Note the position."""
        del timestamp_ms
        self.position = position

    def next_deadline_ms(self) -> int | None:
        """Wait for nothing."""
        return None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Do nothing in the background."""
        task_status.started()
        await trio.sleep_forever()


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
    except Exception as failure:  # whatever it is, it is why these directories must not be used
        raise StorageError(
            f"{names}: restored and sound, but a first start fails: {next(leaves(failure))!r}; do "
            "not use it, and report this"
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
        while elect and not _agreed(members):  # noqa: ASYNC110 - nothing tells of all of it
            await trio.sleep(LOOK_SECONDS)
        async with trio.open_nursery() as nursery:
            for member in members:
                nursery.start_soon(member.close)


def _kind_in(config: NodeConfig) -> str:
    """Say whose service a store is; `quorate run` will serve an older one, which does not know."""
    with open_readonly(config.directory / "log") as store:
        return store.recorded.service or KEY_VALUE


def _alone(config: NodeConfig) -> NodeConfig:
    """Give a configuration with hosts and timeouts for a network in memory."""
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
    )


def _agreed(members: Sequence[Member]) -> bool:
    """Whether there is a leader that has committed an entry of its own, and all have applied it."""
    statuses = [member.status() for member in members]
    ends = {(each.append_position, each.applied_position, each.term) for each in statuses}
    leads = any(each.role == "leader" for each in statuses)
    closed = all(each.state == "CLOSED" for each in statuses)
    (append, applied, _term) = next(iter(ends))
    return leads and closed and len(ends) == 1 and append == applied

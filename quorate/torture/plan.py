"""Real members under real faults, and what must hold at the end.

Members run as child processes, clients work on them all the time, and the nemesis kills, pauses,
cuts off and slows down members. What clients asked and were told is written down as a history.
When the faults are over, all members must agree. Then:

- the history, with a last read of every key, is linearizable, key by key: no acknowledged write is
  lost, none is applied twice, none that was refused has an effect, no read is stale;
- of what clients did in sessions each sequence that was answered was done once, however often it
  was sent;
- every member's own state is what that last read found, and it holds no other key;
- the recordings of all members are equal up to the commit position, batch by batch;
- `verify` finds each of them sound;
- no member ended by itself, and clients got on with their work after every fault.

The choice of faults and the clients' choices come from the seed; when things happen does not,
since these are real processes.
"""

import random
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import trio

from ..client.resp import RespError
from ..errors import leaves
from ..histories.history import HistoryWriter, read_history_untrusted
from ..histories.linearizability import Budget, Report, check
from ..local.cluster import HOST, LocalCluster, free_client_port, lay_out
from ..local.survey import StuckError, agreed_and_applied, until
from ..node.requests.status import NodeStatus
from . import disk
from .checks import check_recordings, check_state
from .clients import Clients
from .faults import Fault, Nemesis, NoProgressError
from .network import Namespaces, open_namespaces
from .sessions import SessionClients

__all__ = ["Outcome", "Plan", "check_history", "check_states", "torture"]

RECOVERY_SECONDS: Final = 60.0
CHECK_SECONDS: Final = 600.0
"""How long the check of the history may take; what is not decided then counts as a violation."""


@attrs.frozen
class Plan:
    """What to do.

    Args:
        directory: where the members live.
        history: the file that takes the history.
        seconds: how long the trouble lasts at least.
        kills: how many members are killed at least, if kills are one of the faults.
        members: how many.
        seed: of the faults and of the clients' choices.
        faults: which ones.
        slow_library: what makes disks slow, if that is one of them.
    """

    directory: Path
    history: Path
    seconds: float
    kills: int
    members: int
    seed: int
    faults: Sequence[Fault]
    slow_library: Path | None = None


@attrs.frozen
class Outcome:
    """What happened. It held if there are no violations.

    Args:
        faults: how often each fault hit a member.
        operations: how many operations ended ok, failed, unknown; the last reads are among them.
        elections: how many terms there were.
        longest_pause: the longest time in which no operation was ok; seconds.
        answered: how many commands of sessions were answered, in `operations` too.
        sent: how often those were sent.
        keys: how many keys were used.
        commit_position: of the log, in the end.
        violations: all that did not hold.
    """

    faults: dict[Fault, int]
    operations: dict[str, int]
    elections: int
    longest_pause: float
    answered: int
    sent: int
    keys: int
    commit_position: int
    violations: tuple[str, ...]


async def torture(plan: Plan, tell: Callable[[str], None]) -> Outcome:
    """Do it.

    Args:
        plan: what to do.
        tell: takes a line about each fault, and about each part of the check.

    Raises:
        NamespaceError: there are partitions in the plan, which this process may not make.
        OSError: the history can't be written.
    """
    with plan.history.open("wb") as file:
        async with _open_members(plan) as (cluster, network):
            clients = Clients(cluster.addresses, HistoryWriter(file), plan.seed)
            sessions = SessionClients(clients, plan.seed)
            rng = random.Random(f"{plan.seed}/nemesis")  # noqa: S311 - no secret
            nemesis = Nemesis(cluster, clients, rng, tell, plan.faults, network)
            elections = await _make_trouble(plan, nemesis, sessions)
    tell("checking the recordings")
    commit, found = check_recordings([member.config.directory for member in cluster.members])
    tell(f"checking the history of {clients.outcomes.total():,} operations")
    report = check_history(plan.history)
    return Outcome(
        faults={fault: nemesis.counts[fault] for fault in plan.faults},
        operations={status: clients.outcomes[status] for status in ("ok", "fail", "unknown")},
        elections=elections,
        longest_pause=clients.longest_pause,
        answered=sessions.answered,
        sent=sessions.sent,
        keys=len(report.keys),
        commit_position=commit,
        violations=(*clients.violations, *found, *map(str, report.trouble)),
    )


@asynccontextmanager
async def _open_members(plan: Plan) -> AsyncGenerator[tuple[LocalCluster, Namespaces | None]]:
    """Run members that can be hit by the faults of the plan."""
    async with AsyncExitStack() as stack:
        network: Namespaces | None = None
        if "partition" in plan.faults:
            network = await stack.enter_async_context(open_namespaces(plan.members))
        configs = lay_out(
            plan.directory,
            members=plan.members,
            client_port=free_client_port(plan.members),
            cluster="torture",
            hosts=network.hosts if network else [HOST] * plan.members,
        )
        cluster = LocalCluster(configs)
        for member in cluster.members:
            if network:
                member.launcher = network.launcher(member.member_id)
            if plan.slow_library:
                member.environment = disk.environment(plan.slow_library, member)
        try:
            await cluster.start()
            yield cluster, network
            await cluster.stop()
        finally:
            await cluster.kill()


async def _make_trouble(plan: Plan, nemesis: Nemesis, sessions: SessionClients) -> int:
    """Let clients work and faults happen; then see that all is well. Returns the number of terms.

    What is not as it should be is told to the clients' violations.
    """
    clients = nemesis.clients
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clients.run)
            nursery.start_soon(sessions.run)
            await nemesis.run(plan.seconds, plan.kills)
            nursery.cancel_scope.cancel()
        terms = await check_states(nemesis, sessions)
    except* (NoProgressError, StuckError, OSError, RespError) as group:
        clients.violations += list(map(str, leaves(group)))
        terms = -1
    return terms


async def check_states(nemesis: Nemesis, sessions: SessionClients | None = None) -> int:
    """Read every key once more, and at every member; return the number of terms.

    What was under way in sessions is brought to its end before.

    Raises:
        StuckError: the members do not agree.
        NoProgressError: they never agree for long enough.
        OSError, RespError: a member does not answer.
    """
    clients, cluster = nemesis.clients, nemesis.cluster
    with trio.move_on_after(RECOVERY_SECONDS):
        while True:
            leader = await _agreed(cluster)
            if sessions is not None:
                await sessions.finish()
                leader = await _agreed(cluster)
            nemesis.tell("all members agree; reading every key, and then at every member")
            last = await clients.read_all()
            found = sessions.check(dict(zip(clients.keys, last, strict=True))) if sessions else []
            for address in cluster.addresses:
                found += await check_state(list(clients.keys), last, address)
            # a request without a client any more may still have come in between
            if (await _agreed(cluster)).commit_position == leader.commit_position:
                clients.violations += found
                return leader.term + 1
    raise NoProgressError(f"the log still grows {RECOVERY_SECONDS:g} s after the last request")


async def _agreed(cluster: LocalCluster) -> NodeStatus:
    """Wait until all members agree and have applied everything; return the leader's status.

    Raises:
        StuckError: that takes too long.
    """
    leader = (await until(cluster.addresses, agreed_and_applied, RECOVERY_SECONDS)).leader
    assert leader is not None
    return leader


def check_history(file: Path) -> Report:
    """Check a history that was written down.

    Raises:
        HistoryError: it is not one.
    """
    budget = Budget(clock=time.monotonic, deadline=time.monotonic() + CHECK_SECONDS)
    with file.open("rb") as lines:
        return check(read_history_untrusted(lines), budget)

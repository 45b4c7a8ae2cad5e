"""Runs real members under real faults, and checks what must hold at the end.

Members run as child processes with clients that work all the time. The nemesis kills, pauses, cuts
off and slows down members. The clients' requests and replies are recorded as a history. When the
faults are over, all members must agree. Then:

- the history, with a last read of every key, is linearizable for each key: no acknowledged write is
  lost or applied twice, no refused write has an effect, and no read is stale;
- each answered sequence of a session was applied once, however often it was sent;
- locks, queues and other recipes kept their promises, by the log;
- the watches of etcd's clients saw the same at all members, and every answer fits to it;
- every member's own state equals that last read, and holds no other key;
- the recordings of all members are equal up to the commit position, batch by batch, also those of
  members that were removed, as far as they go;
- `verify` finds no damage in any recording;
- no member ended by itself, and clients made progress after every fault;
- no change of the members is under way, and the processes of all removed members have ended;
- no rotation has kept a link down for long, and all members use their present certificates;
- nothing was done for a user that it sent after its revocation was answered.

The seed determines the choice of faults and the clients' choices. It does not determine the timing,
since these are real processes.
"""

import random
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Final

import attrs
import trio

from ..client.resp import RespError
from ..errors import RequestError, leaves
from ..histories.history import HistoryWriter, read_history_untrusted
from ..histories.linearizability import Budget, KeyReport, Report, check
from ..local.cluster import LocalCluster, MemberProcess
from ..local.stores import has_store
from ..local.survey import StuckError, agreed_and_applied, survey, until
from ..node.requests.status import NodeStatus
from . import disk
from .checks import check_recordings, check_state
from .clients import Clients
from .etcd.clients import EtcdClients
from .faults import Fault, Nemesis, NoProgressError
from .machines import CLUSTER, Machines
from .network import Namespaces, open_namespaces
from .recipes import RecipeClients
from .rotations import SECURITY, Certifier
from .sessions import SessionClients
from .tape import Tape, Violation

__all__ = ["Outcome", "Plan", "check_history", "check_states", "torture"]

RECOVERY_SECONDS: Final = 60.0
CHECK_SECONDS: Final = 600.0
"""Time limit of the history's check; a key that is undecided then counts as a violation."""


@attrs.frozen
class Plan:
    """The plan of a run.

    Args:
        directory: the directory for the members' data.
        history: the file for the history.
        seconds: minimum duration of the faults.
        kills: minimum number of kills, if kills are among the faults.
        members: number of members.
        seed: seed of the choice of faults and of the clients' choices.
        faults: the kinds of faults.
        slow_library: the library for slow disks, if these are among the faults.
        spares: number of further machines, for members that come.
        tls: whether members have certificates.
        command: the command line that does it again.
    """

    directory: Path
    history: Path
    seconds: float
    kills: int
    members: int
    seed: int
    faults: Sequence[Fault]
    slow_library: Path | None = None
    spares: int = 0
    tls: bool = False
    command: str = ""


@attrs.frozen
class Outcome:
    """The outcome of a run. The run passed if there are no violations.

    Args:
        faults: number of members hit by each fault.
        operations: number of operations by outcome (ok, failed, unknown), with the last reads.
        elections: number of terms.
        longest_pause: the longest time without an operation that was ok, in seconds.
        answered: number of answered commands of sessions; `operations` includes them.
        sent: number of times that these commands were sent.
        blocks: number of blocks of recipes that were judged.
        keys: number of keys used.
        commit_position: final commit position.
        changes: number of completed changes of the members, by kind.
        aside: number of snapshots that were asked for, and of starts of removed members.
        refused: orders about members that were refused for good.
        killed_in_change: members killed in the middle of a change.
        version: final version of the configuration.
        revoked: number of users by how they were revoked.
        refused_users: number of refusals of revoked users.
        etcd: numbers of what clients of etcd were answered and shown, by what it is.
        links_measured: number of links whose time without a connection was measured in rotations.
        longest_outage: the longest of these times, in seconds.
        violations: descriptions of all violations.
        recording: the file that shows what led to them; empty without violations.
    """

    faults: dict[Fault, int]
    operations: dict[str, int]
    elections: int
    longest_pause: float
    answered: int
    sent: int
    blocks: int
    keys: int
    commit_position: int
    changes: dict[str, int]
    aside: dict[str, int]
    refused: tuple[str, ...]
    killed_in_change: int
    version: int
    revoked: dict[str, int]
    refused_users: int
    etcd: dict[str, int]
    links_measured: int
    longest_outage: float
    violations: tuple[str, ...]
    recording: str = ""


@attrs.frozen
class _Loads:
    """The clients apart from those that show progress."""

    sessions: SessionClients
    recipes: RecipeClients
    etcd: EtcdClients


async def torture(plan: Plan, tell: Callable[[str], None]) -> Outcome:
    """Run a plan.

    Args:
        plan: the plan.
        tell: called with a line about each fault, and about each part of the check.

    Raises:
        NamespaceError: the plan has partitions, which this process is not permitted to make.
        OSError: the history cannot be written.
    """
    tape = Tape(CLUSTER, plan.seed, plan.command)
    tell = tape.noting(tell)
    with plan.history.open("wb") as file:
        certifier = _authority(plan.directory / "ca") if plan.tls else None
        async with _open_members(plan, certifier) as (cluster, machines, network):
            clients = Clients(cluster.addresses, HistoryWriter(file), plan.seed)
            loads = _loads(plan, clients, cluster)
            rng = random.Random(f"{plan.seed}/nemesis")  # noqa: S311 - no secret
            nemesis = Nemesis(
                cluster, clients, rng, tell, plan.faults, network, machines, certifier, tape.fault
            )
            elections = await _make_trouble(plan, nemesis, loads)
    outcome = attrs.evolve(_outcome(plan, nemesis, loads), elections=elections)
    return _checked(plan, nemesis, loads, tape, outcome)


def _loads(plan: Plan, clients: Clients, cluster: LocalCluster) -> _Loads:
    recipes = RecipeClients(
        lambda: cluster.addresses,  # by the end all of the first members may be gone
        plan.seed,
        plan.directory / "replay",
        lambda: _directories(cluster.members),
    )
    etcd = EtcdClients(lambda: _etcd_urls(cluster.members), plan.seed)
    return _Loads(SessionClients(clients, plan.seed), recipes, etcd)


def _checked(plan: Plan, nemesis: Nemesis, loads: _Loads, tape: Tape, outcome: Outcome) -> Outcome:
    """Check what is left when the members have ended; return the outcome with all findings."""
    clients, cluster, tell = nemesis.clients, nemesis.cluster, nemesis.tell
    tell("checking the recordings")
    commit, found = check_recordings(
        _directories(cluster.members), _directories(nemesis.keeper.former)
    )
    tell("checking what programs did with recipes")
    with closing(loads.recipes):
        loads.recipes.judge()
    tell("checking the answers to clients of etcd")
    untrue = loads.etcd.judge()
    tell(f"checking the history of {clients.outcomes.total():,} operations")
    report = check_history(plan.history)
    violations = [
        *(Violation("member or reply", each) for each in clients.violations),
        *(Violation("equal and sound logs", each) for each in found),
        *(Violation("recipes", each) for each in loads.recipes.violations),
        *(Violation("etcd", each) for each in untrue),
        *map(_not_linearizable, report.trouble),
    ]
    recording = plan.directory / f"torture-{plan.seed}.qtrace"
    if violations:
        processes = [*cluster.members, *nemesis.keeper.former]
        directories = [each.config.directory for each in processes]
        tape.write(recording, directories, plan.history, violations)
    return attrs.evolve(
        outcome,
        blocks=loads.recipes.judged,
        keys=len(report.keys),
        commit_position=commit,
        violations=tuple(each.text for each in violations),
        recording=str(recording) if violations else "",
    )


def _not_linearizable(report: KeyReport) -> Violation:
    """Return what is wrong with a key, and the end of the last operation that shows it."""
    shown = report.window.operations if report.window else ()
    ends = [one.end_ns for one in shown if one.status == "ok"]
    return Violation("linearizability", str(report), max(ends, default=None))


def _outcome(plan: Plan, nemesis: Nemesis, loads: _Loads) -> Outcome:
    """Return what was done, with nothing of the checks."""
    clients, members, rotations = nemesis.clients, nemesis.members, nemesis.rotations
    return Outcome(
        faults={fault: nemesis.counts[fault] for fault in plan.faults},
        operations={status: clients.outcomes[status] for status in ("ok", "fail", "unknown")},
        elections=-1,
        longest_pause=clients.longest_pause,
        answered=loads.sessions.answered,
        sent=loads.sessions.sent,
        blocks=0,
        keys=0,
        commit_position=-1,
        changes=dict(members.picture.completed) if members else {},
        aside=dict(members.aside) if members else {},
        refused=tuple(members.refused) if members else (),
        killed_in_change=members.killed if members else 0,
        version=members.picture.version if members else 0,
        revoked=dict(nemesis.users.revoked),
        refused_users=nemesis.users.refused,
        etcd=loads.etcd.records.counts,
        links_measured=rotations.measured if rotations else 0,
        longest_outage=rotations.longest if rotations else 0.0,
        violations=(),
    )


def _authority(folder: Path) -> Certifier:
    from .certifier import OwnAuthority  # noqa: PLC0415 - an extra

    return OwnAuthority(folder)


def _directories(processes: Sequence[MemberProcess]) -> list[Path]:
    """Return where the recordings are; a member that was just added may have none yet."""
    return [each.config.directory for each in processes if has_store(each.config.directory)]


def _etcd_urls(processes: Sequence[MemberProcess]) -> dict[int, str]:
    """Return where each member serves clients of etcd; a witness does not."""
    return {
        each.member_id: each.config.etcd.url(each.config.own.host)
        for each in processes
        if each.config.etcd.port
    }


@asynccontextmanager
async def _open_members(
    plan: Plan, certifier: Certifier | None
) -> AsyncGenerator[tuple[LocalCluster, Machines, Namespaces | None]]:
    """Run members, prepared for the faults of the plan."""
    count = plan.members + plan.spares
    async with AsyncExitStack() as stack:
        network: Namespaces | None = None
        if "partition" in plan.faults:
            network = await stack.enter_async_context(open_namespaces(count))

        def prepare(process: MemberProcess, machine: int) -> None:
            process.options = ("--log-level", "DEBUG")  # their lines say how long links were down
            if network:
                process.launcher = network.launcher(machine)
            if plan.slow_library:
                process.environment = disk.environment(plan.slow_library, process)

        hosts = network.hosts if network else ()
        machines = Machines(
            plan.directory,
            count,
            hosts=hosts,
            prepare=prepare,
            security=SECURITY if certifier else None,
            equip=certifier.equip if certifier else lambda _directory, _member_id: None,
        )
        cluster = LocalCluster(machines.founders(plan.members))
        for member in cluster.members:
            machines.prepare(member)
        try:
            await cluster.start()
            yield cluster, machines, network
            await cluster.stop()
        finally:
            await cluster.kill()


async def _make_trouble(plan: Plan, nemesis: Nemesis, loads: _Loads) -> int:
    """Run clients and faults, then check the members. Return the number of terms.

    Violations are added to the clients' list.
    """
    clients = nemesis.clients
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clients.run)
            nursery.start_soon(loads.sessions.run)
            nursery.start_soon(loads.recipes.run)
            nursery.start_soon(loads.etcd.run)
            await nemesis.run(plan.seconds, plan.kills)
            nursery.cancel_scope.cancel()
        await loads.recipes.finish()
        await loads.etcd.finish()
        terms = await check_states(nemesis, loads.sessions)
        clients.violations += await _certificate_trouble(nemesis)
    except* (NoProgressError, StuckError, OSError, RespError, RequestError) as group:
        clients.violations += list(map(str, leaves(group)))
        terms = -1
    return terms


async def _certificate_trouble(nemesis: Nemesis) -> list[str]:
    """Return why members do not use the certificates that they have, if any do not."""
    seen = await survey(nemesis.cluster.addresses)
    return [
        f"member {one.member_id} does not use its files: {one.certificate_trouble}"
        for one in seen.said
        if one.certificate_trouble
    ]


async def check_states(nemesis: Nemesis, sessions: SessionClients | None = None) -> int:
    """Read every key once more, also at every member; return the number of terms.

    Unanswered commands of sessions are finished first.

    Raises:
        StuckError: the members do not agree.
        NoProgressError: the log does not stop growing.
        OSError, RespError: a member does not answer.
    """
    clients, cluster = nemesis.clients, nemesis.cluster
    with trio.move_on_after(RECOVERY_SECONDS):
        while True:
            leader = await _agreed(cluster)
            if sessions is not None:
                await sessions.finish()
                leader = await _agreed(cluster)
            nemesis.tell("all members agree; reading every key, then at every member")
            last = await clients.read_all()
            found = sessions.check(dict(zip(clients.keys, last, strict=True))) if sessions else []
            for member in cluster.members:
                # A witness has no state.
                if not member.config.own.witness:
                    found += await check_state(list(clients.keys), last, member.address)
            # a request whose client is gone may still have changed a key during the reads
            if (await _agreed(cluster)).commit_position == leader.commit_position:
                clients.violations += found
                return leader.term + 1
    raise NoProgressError(f"the log still grows {RECOVERY_SECONDS:g} s after the last request")


async def _agreed(cluster: LocalCluster) -> NodeStatus:
    """Wait until all members agree and have applied everything; return the leader's status.

    Raises:
        StuckError: the wait takes too long.
    """
    leader = (await until(cluster.addresses, agreed_and_applied, RECOVERY_SECONDS)).leader
    assert leader is not None
    return leader


def check_history(file: Path) -> Report:
    """Check a recorded history.

    Raises:
        HistoryError: the file is not a history.
    """
    budget = Budget(clock=time.monotonic, deadline=time.monotonic() + CHECK_SECONDS)
    with file.open("rb") as lines:
        return check(read_history_untrusted(lines), budget)

"""A simulated run from its seed to its verdict."""

from __future__ import annotations

import importlib
import random
import tempfile
import traceback
from contextlib import ExitStack, closing
from hashlib import sha256
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, cast

import attrs
import trio

from quorate._version import __version__  # not of a room, so it has no other path

from ..errors import ConfigurationError
from ..etcd.state.machine import EtcdState
from ..recordings import Source
from ..recordings.head import VIRTUAL, Head, RecordedMember
from .etcd.book import Book
from .etcd.members import EtcdMembers
from .invariants import ViolationError
from .machines import scheduler
from .observer import Observer
from .partitions.run import run_partitions
from .ports.machine import Ports
from .ports.rulebook import RuleBook
from .recipes.replay import Replay
from .scenarios import SCENARIOS
from .store import stores
from .storm import Storm
from .watching.trace import Trace
from .watching.watched import watch
from .workloads import (
    Bank,
    Etcd,
    Expiry,
    Programs,
    Samples,
    Sampling,
    Sessions,
    Strings,
    UsersAtPorts,
    Workload,
)
from .world import open_world

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..node import Service
    from .machines.host import ServiceFactory
    from .machines.setting import Setting
    from .partitions.run import Run
    from .world import World

RAM_DISK: Final = Path("/dev/shm")  # noqa: S108 - used for a new folder
SECONDS_PER_HOUR: Final = 3600.0

BOUND_TIMEOUTS: Final = 3
"""A command may be executed by rules that were changed so many heartbeat timeouts ago: the promise
of docs/users.md."""

SESSIONS_IN: Final = 3
"""One run in this many has a client with sessions. Smaller: that client never lets the cluster
rest, which delays the discovery of some defects. Larger: sessions are tested less."""


@attrs.frozen
class Plan:
    """The plan of a run; equal plans give equal runs.

    Args:
        seed: seed of all random choices.
        members: number of voters.
        hours: minimum virtual hours.
        scenario: a name in `scenarios.SCENARIOS`.
        service: a user's state machine as ``package.module:Class``; without it the key-value store.
    """

    seed: int
    members: int = 3
    hours: float = 0.1
    scenario: str = "storm"
    service: str = ""

    @property
    def command(self) -> str:
        """Return the command line that repeats the run."""
        words = (
            f"quorate simulate --seed {self.seed} --members {self.members} --hours {self.hours:g}"
        )
        words += f" --scenario {self.scenario}"
        return words + (f" --service {self.service}" if self.service else "")


@attrs.frozen
class Outcome:
    """The result of a run.

    Args:
        plan: the plan.
        digest: digest of all events; the same in every run of this plan.
        virtual_seconds: duration in virtual time.
        events: number of events.
        facts: number of facts that the invariants have checked.
        elections: number of canvasses begun.
        terms: number of terms.
        operations: number of clients' operations that were checked.
        acknowledged: number of acknowledged operations.
        undecided: number of keys with an undecided history.
        healed_seconds: duration of the longest recovery.
        faults: number of injections of each fault.
        configurations: number of configurations that were committed.
        judged: number of users' commands that were executed after they were forbidden.
        latest_timeouts: how long after that, at most, in heartbeat timeouts.
        violation: the invariant that was violated, None if all held.
        story: the last transitions of each member, and the place of the violation.
    """

    plan: Plan
    digest: str
    virtual_seconds: float
    events: int
    facts: int
    elections: int
    terms: int
    operations: int
    acknowledged: int
    undecided: int
    healed_seconds: float
    faults: Mapping[str, int]
    configurations: int = 0
    judged: int = 0
    latest_timeouts: float = 0.0
    violation: str | None = None
    story: str = ""


def simulate(plan: Plan, trace_file: IO[str] | None = None) -> Outcome:
    """Run a plan; a violation is part of the outcome, not an error.

    Args:
        plan: the plan.
        trace_file: a file for a recording, see :mod:`quorate.recordings`.

    Raises:
        ConfigurationError: the scenario or the service does not exist.
    """
    if plan.scenario not in SCENARIOS:
        raise ConfigurationError(
            f"scenario {plan.scenario!r}: expected one of {', '.join(SCENARIOS)}"
        )
    if plan.service and SCENARIOS[plan.scenario].partitions:
        raise ConfigurationError(
            f"service {plan.service!r}: slots of keys move in scenario {plan.scenario!r}: expected "
            "another scenario, or no service"
        )
    parent = RAM_DISK if RAM_DISK.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="quorate-", dir=parent) as directory:
        place = Path(directory)
        if SCENARIOS[plan.scenario].partitions:
            return scheduler.run(_run_partitions, plan, place, trace_file, seed=plan.seed)
        with ExitStack() as stack:
            make, workloads = _what(plan, place, stack)
            return scheduler.run(_run, plan, place, trace_file, make, workloads, seed=plan.seed)


async def _run(
    plan: Plan,
    directory: Path,
    trace_file: IO[str] | None,
    make: ServiceFactory[Service],
    workloads: Sequence[Workload],
) -> Outcome:
    scenario = SCENARIOS[plan.scenario].of(plan.seed)
    rng = random.Random(f"{plan.seed}/setting")
    setting = scenario.setting(plan.seed, plan.members, rng, plan.hours * SECONDS_PER_HOUR)
    slow = rng.choice((0.0, 0.0, 0.0, 0.002))
    standbys = range(len(setting.voters), setting.members)
    observer = Observer(list(range(setting.members)), standbys=standbys)
    trace = Trace(trace_file, _head(plan, setting))
    observer.on_violation = lambda violation: trace.end(*_parted(violation))
    book = Book()
    if scenario.etcd:
        make = book.attending(stores(random.Random(f"{plan.seed}/flushes"), keyspace=EtcdState))
    probes = [probe for workload in workloads for probe in workload.probes]
    service = watch(make, observer.tell, observer, probes=probes, seconds=slow)
    violation, where = None, ""
    storms: list[Storm] = []
    try:
        async with open_world(directory, service, setting, trace=trace, observer=observer) as world:
            if scenario.users:
                workloads = [_users(world, observer, plan.seed)]
            if scenario.etcd:
                workloads = [*workloads, _etcd(world, observer, book, plan.seed)]
            storms.append(Storm(world, observer, workloads, scenario, plan.seed))
            try:
                await storms[0].run(plan.hours * SECONDS_PER_HOUR)
            except Exception as failure:
                trace.end(*_parted(_first_leaf(failure)))  # before all members end
                raise
            trace.close()
    except Exception as failure:  # noqa: BLE001 - any error is a finding
        leaf = _first_leaf(failure)
        trace.end(*_parted(leaf))
        violation = f"{type(leaf).__name__}: {leaf}"
        where = "".join(traceback.format_exception(leaf))
    return _outcome(plan, storms[0], trace, violation, where)


async def _run_partitions(plan: Plan, directory: Path, trace_file: IO[str] | None) -> Outcome:
    scenario, rng = SCENARIOS[plan.scenario], random.Random(f"{plan.seed}/setting")
    # Directors have time limits of their own, which suit short timeouts.
    setting = attrs.evolve(scenario.setting(plan.seed, plan.members, rng, 0.0), founded=True)
    trace = Trace(trace_file, _head(plan, setting))
    runs: list[Run] = []
    violation, where = None, ""
    seconds = plan.hours * SECONDS_PER_HOUR
    try:
        await run_partitions(seconds, directory, setting, scenario, trace=trace, runs=runs)
    except Exception as failure:  # noqa: BLE001 - any error is a finding
        leaf = _first_leaf(failure)
        trace.end(*_parted(leaf))
        violation = f"{type(leaf).__name__}: {leaf}"
        where = "".join(traceback.format_exception(leaf))
    return _sum(plan, runs[0], violation, where)


def _sum(plan: Plan, run: Run, violation: str | None, where: str) -> Outcome:
    """Return what several groups did together."""
    groups = run.cluster.groups.values()
    counts = [door.counts for door in run.doors]
    every = [each for group in groups for each in group.world.transitions]
    stories = [f"group {group.partition}:\n{_story(group.world)}" for group in groups]
    return Outcome(
        plan=plan,
        digest=sha256(" ".join(group.trace.digest for group in groups).encode()).hexdigest()[:16],
        virtual_seconds=trio.current_time(),
        events=sum(group.trace.count for group in groups),
        facts=sum(group.observer.facts for group in groups),
        elections=sum(each.after.name == "CANVASS" for each in every),
        terms=max((each.term for each in every), default=-1) + 1,
        operations=sum(sum(each.values()) for each in counts),
        acknowledged=sum(each["ok"] for each in counts),
        undecided=run.strings.undecided,
        healed_seconds=max(group.storm.healed for group in groups),
        faults=dict(sorted(run.counts.items())),
        configurations=sum(len(group.observer.known.configurations) for group in groups),
        violation=violation,
        story="" if violation is None else "".join(stories) + where,
    )


def _head(plan: Plan, setting: Setting) -> Head:
    """Return the first line of a recording of this run."""
    roles = dict.fromkeys(range(setting.members), "standby")
    roles |= dict.fromkeys(setting.voters, "voter")
    roles |= dict.fromkeys(setting.without_tables, "witness")
    members = tuple(RecordedMember(i, role) for i, role in roles.items())
    return Head(
        Source.SIMULATION,
        __version__,
        "simulated",
        VIRTUAL,
        members=members,
        seed=plan.seed,
        command=plan.command,
    )


def _parted(failure: BaseException) -> tuple[str, str]:
    """Return the name of what did not hold, and the rest of the words."""
    if not isinstance(failure, ViolationError):
        return type(failure).__name__, str(failure)
    name, _, text = str(failure).partition(": ")
    return name, text


def _users(world: World[Service], observer: Observer, seed: int) -> UsersAtPorts:
    """Give each member a client port, and return the workload of clients with users."""
    timeout = world.setting.timeouts.leader_heartbeat_timeout
    rules = RuleBook(BOUND_TIMEOUTS * timeout)
    ports = Ports(random.Random(f"{seed}/ports"), observer.tell, rules)
    world.accompany = ports.accompany
    return UsersAtPorts(world, ports, rules)


def _etcd(world: World[Service], observer: Observer, book: Book, seed: int) -> Etcd:
    """Give each member the API of etcd, and return the workload of its clients."""
    members = EtcdMembers(random.Random(f"{seed}/etcd"), observer.tell)
    world.accompany = members.accompany
    return Etcd(world, members, book)


def _outcome(plan: Plan, storm: Storm, trace: Trace, violation: str | None, where: str) -> Outcome:
    world = storm.world
    counts = [door.counts for door in storm.doors]
    users = [each for each in storm.workloads if isinstance(each, UsersAtPorts)]
    unit = world.setting.timeouts.leader_heartbeat_timeout
    return Outcome(
        plan=plan,
        digest=trace.digest,
        virtual_seconds=trio.current_time(),
        events=trace.count,
        facts=storm.observer.facts,
        elections=sum(each.after.name == "CANVASS" for each in world.transitions),
        terms=max((each.term for each in world.transitions), default=-1) + 1,
        operations=sum(sum(each.values()) for each in counts),
        acknowledged=sum(each["ok"] for each in counts),
        undecided=sum(each.undecided for each in storm.workloads if isinstance(each, Strings)),
        healed_seconds=storm.healed,
        faults=dict(sorted(storm.nemesis.context.counts.items())),
        configurations=len(storm.observer.known.configurations),
        judged=sum(each.rules.judged for each in users),
        latest_timeouts=max((each.rules.latest for each in users), default=0.0) / unit,
        violation=violation,
        story="" if violation is None else _story(world) + where,
    )


def _story(world: World[Service]) -> str:
    """Return the last transitions of each member."""
    lines: list[str] = []
    for i in world.hosts:
        lines.append(f"member {i}:")
        lines += [
            f"  {each.at:12.6f} {each.before.name} -> {each.after.name}: {each.reason} "
            f"(term {each.term}, log {each.log_end.term}/{each.log_end.position}, "
            f"commit {each.commit_position})"
            for each in [t for t in world.transitions if t.member_id == i][-8:]
        ]
    return "\n".join(lines) + "\n"


def _first_leaf(failure: BaseException) -> BaseException:
    while isinstance(failure, BaseExceptionGroup):
        failure = cast("BaseExceptionGroup[BaseException]", failure).exceptions[0]
    return failure


# --- what is run ----------------------------------------------------------------------------------


def _what(
    plan: Plan, directory: Path, stack: ExitStack
) -> tuple[ServiceFactory[Service], Sequence[Workload]]:
    """Return a factory of the members' state machines, and the clients' workloads."""
    if not plan.service:
        make = stores(random.Random(f"{plan.seed}/flushes"))
        if SCENARIOS[plan.scenario].programs:
            replay = stack.enter_context(closing(Replay(directory / "replay")))
            return replay.attending(make), [Programs(replay)]
        if SCENARIOS[plan.scenario].etcd:
            return make, [Strings()]
        workloads: list[Workload] = [Strings(), Bank(), Expiry()]
        if plan.seed % SESSIONS_IN == 1:
            workloads.append(Sessions())
        return make, workloads
    module_name, colon, name = plan.service.partition(":")
    try:
        found: object = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"service {plan.service!r}: {error}") from error
    if not (colon and isinstance(found, type) and hasattr(found, "sample")):
        raise ConfigurationError(
            f"service {plan.service!r}: expected package.module:Class, a class with a static "
            "method sample(rng) that draws a Sample"
        )
    kind = cast("type[Service]", found)
    probes = cast("Sequence[bytes]", getattr(found, "probes", ()))
    samples = Samples(cast("Sampling", found).sample, probes)
    return lambda _place: kind(), [samples]

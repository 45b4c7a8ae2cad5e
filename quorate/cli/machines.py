"""`quorate cluster --partitions`: the machines of a cluster with partitions, for trying it out."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import trio
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..keyvalue.slots.cluster_map import META
from ..local.log_lines import unblocked_console
from ..local.show import print_table
from ..local.words import counted
from ..machine.layout import LOG_FILE, lay_out_machines, supervisor_of
from ..machine.maps import newest_map
from ..machine.partition_survey import GroupSeen, survey_groups
from .app import EX_NOPERM
from .params import needing_certs
from .partition_status import slots_in_words

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from ..keyvalue.slots.cluster_map import ClusterMap
    from ..local.child import ChildProcess
    from ..machine.config import MachineConfig
    from ..node.config.config import Profile

__all__ = ["run_machines", "waits_in_words"]

LOOK_SECONDS: Final = 0.3
LONGEST_LOOK_SECONDS: Final = 5.0
"""Pauses between two questions for the leaders; they grow while nothing changes."""

FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 10.0
"""Pauses before a supervisor is started again. Shorter, and the members of the one before have not
ended. Longer, and the machine is missing for longer than needed."""


async def run_machines(
    directory: Path,
    *,
    machines: int,
    partitions: int,
    client_port: int,
    profile: Profile | None,
    tls: bool,
) -> int:
    """Run the supervisors of all machines until a signal; return the exit status.

    Raises:
        UsageError: a number is out of range.
        ConfigurationError: an existing file disagrees.
    """
    lay_out = partial(lay_out_machines, directory, machines=machines, partitions=partitions)
    if tls:
        with needing_certs():
            from ..local.secured import certify, security_of  # noqa: PLC0415 - an extra
        configs = lay_out(client_port=client_port, profile=profile, security=security_of)
        certify(directory, configs[0].cluster, [config.machine_id for config in configs])
    else:
        configs = lay_out(client_port=client_port, profile=profile)
    console = Console(highlight=False, soft_wrap=True)
    supervisors = [(config, supervisor_of(config)) for config in configs]
    with (
        trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received,
        unblocked_console(console),
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_kill_at_second, received, nursery, console, supervisors)
            nursery.start_soon(_print_groups, console, configs)
            for config, child in supervisors:
                nursery.start_soon(_keep, console, config, child)
    console.print("All members have ended.")
    return 0


async def _kill_at_second(
    received: AsyncIterator[int],
    nursery: trio.Nursery,
    console: Console,
    supervisors: Sequence[tuple[MachineConfig, ChildProcess]],
) -> None:
    """Stop all in order at the first signal; kill them at the second."""
    await anext(received)
    console.print("Stopping all members in order.")
    nursery.cancel_scope.cancel()
    with trio.CancelScope(shield=True) as scope:
        async with trio.open_nursery() as waiting:
            waiting.start_soon(_kill_all, received, supervisors)
            for _, child in supervisors:
                if child.pid is not None:
                    await child.wait()
            scope.cancel()


async def _kill_all(
    received: AsyncIterator[int], supervisors: Sequence[tuple[MachineConfig, ChildProcess]]
) -> None:
    await anext(received)
    for _, child in supervisors:
        if (pid := child.pid) is not None:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # with all members of its machine


async def _keep(console: Console, config: MachineConfig, child: ChildProcess) -> None:
    """Run the supervisor of a machine, and start it again when it ends."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        began = trio.current_time()
        try:
            await child.start()
            status = await child.wait()
        finally:
            with trio.CancelScope(shield=True):
                await child.stop()
        if status == EX_NOPERM:
            console.print(
                f"machine {config.machine_id} was removed from the cluster, and is not started; "
                f"its folder {escape(str(config.directory))} is not needed any more"
            )
            return
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        if trio.current_time() - began > LONGEST_PAUSE_SECONDS:
            pause = FIRST_PAUSE_SECONDS
        console.print(
            f"the supervisor of machine {config.machine_id} has ended with {how}, and is started "
            f"again in {pause:g} s; see {escape(str(config.directory / LOG_FILE))}"
        )
        await trio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


async def _print_groups(console: Console, configs: Sequence[MachineConfig]) -> None:
    """Print which groups serve already, a table once all do, and then each change of a leader."""
    said: dict[int, int | None] = {}
    pause, shown, waits = LOOK_SECONDS, False, ""
    for config in configs:
        log = escape(str(config.directory / LOG_FILE))
        console.print(f"machine {config.machine_id}  {config.own.host}:{config.own.port}  {log}")
    while True:
        cluster_map = newest_map(configs)
        seen = await survey_groups(cluster_map, figures=False)
        leaders = {each.partition: _leader_of(each) for each in seen}
        if not shown and all(each.is_ready for each in seen):
            _print_table(console, cluster_map, seen)
            _introduce(console, configs)
            shown, said = True, leaders
        elif not shown:
            before, waits = waits, waits_in_words(seen)
            if waits != before:
                console.print(waits)
        elif leaders != said:
            for each in seen:
                if leaders[each.partition] != said.get(each.partition):
                    console.print(_line_of(each))
            said, pause = leaders, LOOK_SECONDS
        await trio.sleep(pause)
        pause = min(1.3 * pause, LONGEST_LOOK_SECONDS) if shown else LOOK_SECONDS


def waits_in_words(seen: Sequence[GroupSeen]) -> str:
    """Say how many groups serve, and what the first one that does not serve waits for."""
    ready = sum(each.is_ready for each in seen)
    line = f"{ready} of {counted(len(seen), 'group serves', 'groups serve')}"
    first = next((each for each in seen if not each.is_ready), None)
    if first is None:
        return line
    if not first.survey.said:
        what = "no member answers yet"
    elif first.survey.leader is None:
        what = "no leader yet"
    else:
        what = "it waits for its first slots"
    return f"{line}; {first.name}: {what}"


def _leader_of(seen: GroupSeen) -> int | None:
    leader = seen.survey.leader
    return None if leader is None else leader.member_id


def _line_of(seen: GroupSeen) -> str:
    leader = seen.survey.leader
    if leader is None:
        return f"{seen.name}: no leader"
    return f"{seen.name}: machine {leader.member_id} leads term {leader.term}"


def _print_table(console: Console, cluster_map: ClusterMap, seen: Sequence[GroupSeen]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("group", "leader", "client ports", "slots"):
        table.add_column(column)
    for each in seen:
        leader = _leader_of(each)
        ids = sorted(cluster_map.replicas_of(each.partition), key=lambda one: one != leader)
        machines = [found for one in ids if (found := cluster_map.machine(one)) is not None]
        ports = " ".join(str(one.client_port(each.partition)) for one in machines)
        slots = "" if each.partition == META else slots_in_words(each.slots)
        table.add_row(each.name, f"machine {leader}", ports, slots)
    print_table(console, table)


def _introduce(console: Console, configs: Sequence[MachineConfig]) -> None:
    folder = configs[0].directory
    port = configs[0].own.as_machine().client_port(0)
    console.print(
        f"\nAny Redis cluster client will do:  redis-cli -c -p {port} SET name value\n"
        f"Check the cluster:                 quorate status {escape(str(folder.parent))}\n"
        f"See a member fail:                 "
        f"kill -9 $(cat {escape(str(folder / 'partition-0' / 'pid'))})\n"
        f"See a machine fail:                kill -9 -- -$(cat {escape(str(folder / 'pid'))})\n"
        "Ctrl-C stops all members in order.\n"
    )

"""The demo from beginning to end."""

import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import trio
from cyclopts import App, Parameter

from ...errors import UsageError
from ...local.cluster import free_client_port, open_cluster
from ...local.show import make_console, print_verdict
from ...local.survey import StuckError
from ...local.words import span
from ...storage.lmdb.environment import content_of
from ..ending import exit_status
from .member_steps import (
    kill_the_leader,
    lose_the_quorum,
    lose_the_quorum_in_failsafe_mode,
    restart_all_members,
    stop_the_leader_for_a_while,
)
from .members import COUNT, add_user, lay_out_members, lay_out_nodes
from .node_steps import (
    change_the_configuration,
    check_all_rows,
    come_up,
    kill_the_primary,
    pause_and_resume,
    reinitialize_a_replica,
    switch_over,
)
from .nodes import Node
from .operator_steps import fail_over, look_around, reload_and_restart
from .programs import Programs, find_programs
from .world import World

__all__ = ["main"]

STEPS: Final = (
    change_the_configuration,
    look_around,
    reload_and_restart,
    switch_over,
    kill_the_leader,
    stop_the_leader_for_a_while,
    restart_all_members,
    kill_the_primary,
    lose_the_quorum,
    lose_the_quorum_in_failsafe_mode,
    pause_and_resume,
    reinitialize_a_replica,
    fail_over,
)


async def demo(
    *,
    directory: Annotated[Path | None, Parameter(name=("--dir", "-d"), show_default=False)] = None,
    patroni: Annotated[Path | None, Parameter(show_default=False)] = None,
    postgres: Annotated[Path | None, Parameter(show_default=False)] = None,
    secure: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Run PostgreSQL under Patroni on three members of quorate, and break one thing after another.

    Parameters
    ----------
    directory
        Keeps all data and logs; a new temporary directory if left out.
    patroni
        The program patroni, if it is not in the PATH; patronictl lies next to it.
    postgres
        The folder with initdb and psql; the newest one of Debian if left out.
    secure
        Patroni talks to the members with TLS, and logs in as a user that may use its keys only.
        Debian's Patroni also needs python3-idna for that.
    """
    programs = find_programs(patroni, postgres)
    if directory and directory.exists() and content_of(directory):
        raise UsageError(f"--dir {directory}: expected a new or an empty directory")
    place = directory or Path(tempfile.mkdtemp(prefix="quorate-patroni-"))
    place.mkdir(parents=True, exist_ok=True)
    place.chmod(0o711)  # PostgreSQL's user goes through it to the folder of its node
    place = place.resolve()
    versions = await programs.versions(place)
    return await exit_status(partial(_run, place, programs, versions, secure=secure))


async def _run(place: Path, programs: Programs, versions: Sequence[str], *, secure: bool) -> bool:
    """Run the members and the nodes; return whether every check passed."""
    console = make_console()
    began = trio.current_time()
    configs = lay_out_members(place, free_client_port(3 * COUNT), secure=secure)
    kind = "with TLS and a user for Patroni" if secure else "that are open to all"
    console.print(f"Programs: {', '.join(versions)}", markup=False, soft_wrap=True)
    console.print(f"Starting {COUNT} members of quorate in {place}, {kind}.")
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(open_cluster(configs))
        nodes = lay_out_nodes(place, programs, configs)
        stack.push_async_callback(_end, nodes)
        world = World(console, cluster, nodes, programs.postgres / "psql")
        await world.agreement()
        if secure:
            await add_user(cluster.addresses[0])
        try:
            await _tell(world)
        except* (OSError, StuckError, trio.TooSlowError) as group:
            words = f"nothing goes on: {group.exceptions[0]!r}"
            world.check("progress", words, right=False)
        console.print("\nStopping all nodes and members in order.")
    world.results.append(("in all", span(trio.current_time() - began)))
    print_verdict(console, world.results, held=world.held)
    return world.held


async def _tell(world: World) -> None:
    await come_up(world)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.rows.run)
        for step in STEPS:
            await step(world)
        nursery.cancel_scope.cancel()
    await check_all_rows(world)


async def _end(nodes: Sequence[Node]) -> None:
    """Stop all nodes at the same time; they need the members for it."""
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(node.stop)


def main() -> None:
    """Run the demo, and exit."""
    app = App(name="patroni-demo", backend="trio", result_action="return_value", version_flags=[])
    app.default(demo)
    try:
        status = app()
    except UsageError as error:
        print(error, file=sys.stderr)
        status = 2
    sys.exit(status)

"""`quorate demo`: real files, a killed leader, and a check of everything.

Three members run as child processes. Clients write every file of Python's standard library into
them. In the middle the leader is killed like in a crash (kill -9). The other members elect a new
leader, and the clients continue. The dead member is started again, catches up and follows. At the
end every value on every member is compared with its file. Then the members stop, and every record
of their recordings is verified. The exit status is 0 only if every check passed.
"""

import sysconfig
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Final

import trio
from cyclopts import Parameter

from ..errors import UsageError
from ..local.cluster import LocalCluster, MemberProcess, free_client_port, lay_out, open_cluster
from ..local.log_lines import unblocked_console
from ..local.show import make_console, print_verdict
from ..local.stores import store_of
from ..local.survey import SETTLED, StuckError, Survey, agreed, agreed_and_applied, until
from ..local.words import size, span
from ..node.requests.status import NodeStatus
from ..storage.lmdb.environment import content_of
from ..storage.tools.verify import verify
from .ending import exit_status
from .load import Loader, compare, library_files
from .tell import LogPrinter, show_progress

__all__ = ["demo"]

MEMBERS: Final = 3
KILL_AT: Final = 0.4
"""The leader is killed when this share of the files has been acknowledged."""
RESTART_AT: Final = 0.7
PATIENCE_SECONDS: Final = 30.0


async def demo(
    *, directory: Annotated[Path | None, Parameter(name=("--dir", "-d"), show_default=False)] = None
) -> int:
    """Load files into three members, kill their leader in the middle, and check everything.

    The exit status is 0 only if every value is right on every member and every recording is sound.

    Parameters
    ----------
    directory
        Keeps the members' data, also afterwards; a temporary directory if left out.
    """
    if directory and directory.exists() and content_of(directory):
        raise UsageError(f"--dir {directory}: expected a new or an empty directory")
    with ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quorate-")))
        story = _Story(directory)
        with unblocked_console(story.console):
            return await exit_status(story.run)


class _Story:
    """The demo from beginning to end, with its results."""

    def __init__(self, directory: Path) -> None:
        self.console = make_console()
        self._directory = directory
        self._root = Path(sysconfig.get_path("stdlib"))
        self._files = library_files(self._root)
        self._rows: list[tuple[str, str]] = []
        self._trouble: list[str] = []

    async def run(self) -> bool:
        """Run the demo; return whether every check passed."""
        configs = lay_out(
            self._directory,
            members=MEMBERS,
            client_port=free_client_port(MEMBERS),
            cluster="demo",
        )
        async with open_cluster(configs) as cluster:
            try:
                await self._begin(cluster)
                await self._load(cluster, Loader(self._root, self._files, cluster.addresses))
                await self._compare(cluster)
            except* (StuckError, OSError) as group:
                self._fail(f"The cluster makes no progress: {group.exceptions[0]}")
            self._say("Stopping all members in order.")
        self._verify(cluster)
        print_verdict(self.console, self._rows, held=not self._trouble)
        return not self._trouble

    def _say(self, text: str) -> None:
        self.console.print(text)

    def _fail(self, text: str) -> None:
        self._trouble.append(text)
        self.console.print(text, style="bold red")

    async def _begin(self, cluster: LocalCluster) -> None:
        began = trio.current_time()
        self._say(f"Starting {MEMBERS} members in {self._directory}.")
        leader = await _next_leader(cluster, after=-1)
        self._say(
            f"Member {leader.member_id} leads term {leader.term}, "
            f"{span(trio.current_time() - began)} after the start.\n"
            f"Writing {len(self._files):,} files from {self._root}."
        )

    async def _load(self, cluster: LocalCluster, loader: Loader) -> None:
        """Write all files; in the middle, kill the leader and start it again."""
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(loader.run)
            nursery.start_soon(show_progress, self.console, loader)
            await loader.reached(int(loader.files * KILL_AT))
            async with trio.open_nursery() as telling:
                old = await _next_leader(cluster, after=-1)
                logs = LogPrinter(self.console, cluster.members)
                killed_at = trio.current_time()
                telling.start_soon(logs.run)
                dead = await self._kill_leader(cluster, old, logs)
                await loader.reached(int(loader.files * RESTART_AT))
                await self._restart(cluster, dead, logs)
                telling.cancel_scope.cancel()
        seconds = trio.current_time() - began
        stalled = loader.longest_gap(killed_at)
        self._say(f"For {span(stalled)} no write was acknowledged; then the clients went on.")
        self._rows[:0] = [
            ("files", f"{loader.files:,} ({size(loader.bytes)}), all acknowledged"),
            ("writes", f"{loader.files / seconds:,.0f} a second, the outage included"),
            ("retried", f"{loader.retried:,} writes with an unknown outcome"),
            ("no write acknowledged for", f"at most {span(stalled)}"),
        ]

    async def _kill_leader(
        self, cluster: LocalCluster, old: NodeStatus, logs: LogPrinter
    ) -> MemberProcess:
        dead = cluster.members[old.member_id]
        self._say(
            f"\nkill -9 {dead.pid}: member {old.member_id}, the leader of term {old.term}. "
            "What the members log, in seconds since then:"
        )
        killed_at = trio.current_time()
        await dead.kill()
        new = await _next_leader(cluster, after=old.term)
        gone = trio.current_time() - killed_at
        logs.print_new()
        self._say(f"Member {new.member_id} leads term {new.term}, {span(gone)} after the kill.\n")
        self._rows.append(("no leader for", f"{span(gone)}, until the new one was ready"))
        return dead

    async def _restart(self, cluster: LocalCluster, dead: MemberProcess, logs: LogPrinter) -> None:
        self._say(f"\nStarting member {dead.member_id} again.")
        began = trio.current_time()
        await dead.start()
        seen = await until(cluster.addresses, agreed, PATIENCE_SECONDS)
        logs.print_new()
        back = next(one for one in seen.said if one.member_id == dead.member_id)
        self._say(
            f"Member {dead.member_id} has caught up and follows, at position "
            f"{back.append_position:,}, {span(trio.current_time() - began)} after its start.\n"
        )
        self._rows.append(("back after", span(trio.current_time() - began)))

    async def _compare(self, cluster: LocalCluster) -> None:
        seen = await until(cluster.addresses, agreed_and_applied, PATIENCE_SECONDS)
        positions = {one.member_id: one.applied_position for one in seen.said}
        self._rows.append(("positions", ", ".join(f"{at:,}" for at in positions.values())))
        for address in cluster.addresses:
            different = await compare(self._root, self._files, address)
            for name in different[:3]:
                self._fail(f"Member {address.member_id} has a different {name}.")
            right = len(self._files) - len(different)
            text = f"member {address.member_id}: {right:,} of {len(self._files):,} values are right"
            self._say(text.capitalize() + ".")
            self._rows.append((f"values on member {address.member_id}", text.partition(": ")[2]))

    def _verify(self, cluster: LocalCluster) -> None:
        for member in cluster.members:
            report = verify(store_of(member.config.directory))
            for finding in report.findings:
                self._fail(f"Member {member.member_id}: {finding}")
            words = f"{report.batches:,} batches, {size(report.bytes)}"
            words += ", every record sound" if report.ok else ", DAMAGED"
            self._say(f"Recording of member {member.member_id}: {words}.")
            self._rows.append((f"recording {member.member_id}", words))


async def _next_leader(cluster: LocalCluster, *, after: int) -> NodeStatus:
    """Wait for a member that leads a term above `after`."""

    def leads(seen: Survey) -> bool:
        leader = seen.leader
        return leader is not None and leader.term > after and leader.state == SETTLED

    leader = (await until(cluster.addresses, leads, PATIENCE_SECONDS)).leader
    assert leader is not None
    return leader

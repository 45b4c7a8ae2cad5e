"""`make pipeline-demo`: a cluster under load loses its leader, while Spark follows its log.

Three members run as child processes, with the clients of `quorate torture`. A Spark stream writes
the log of one member to Parquet, and in the middle the leader is killed. Then the members stop, and
all five jobs run on their directories. The jobs' counts are compared with those of the cluster and
its clients. The exit status is 0 only if all of them agree.

Spark's calls block, so each one runs in its own thread.
"""

import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, ParamSpec, TypeVar

import attrs
import trio
from cyclopts import App, Parameter

from ..client.resp import Reply
from ..errors import UsageError
from ..histories.history import HistoryWriter
from ..local.cluster import LocalCluster, free_client_port, lay_out, open_cluster
from ..local.show import make_console, print_verdict
from ..local.survey import Survey, agreed, agreed_and_applied, until
from ..local.words import span
from ..node.requests.status import NodeStatus
from ..pipeline.jobs.audit import audit
from ..pipeline.jobs.check import check_history
from ..pipeline.jobs.export import export, exported_tables
from ..pipeline.jobs.page import render
from ..pipeline.jobs.report import report
from ..pipeline.jobs.versions import moment_at, state
from ..pipeline.session import open_session
from ..storage.lmdb.environment import content_of
from ..torture.clients import Clients

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["main"]

MEMBERS: Final = 3
PATIENCE_SECONDS: Final = 60.0

P = ParamSpec("P")
T = TypeVar("T")


@attrs.frozen
class _Left:
    """The final state, as the cluster and its clients report it."""

    leader: NodeStatus
    values: dict[bytes, Reply]
    operations: int


async def demo(
    *,
    directory: Annotated[Path | None, Parameter(name=("--dir", "-d"), show_default=False)] = None,
    seconds: float = 20.0,
) -> int:
    """Follow a cluster's log with Spark while its leader is killed, then run all five jobs.

    Parameters
    ----------
    directory
        Keeps the members, tables and the report; a new temporary directory if left out.
    seconds
        How long the clients work.
    """
    if directory and directory.exists() and content_of(directory):
        raise UsageError(f"--dir {directory}: expected a new or an empty directory")
    place = directory or Path(tempfile.mkdtemp(prefix="quorate-pipeline-"))
    with ExitStack() as stack:
        story = _Story(place, seconds)
        story.say("Starting Spark.")
        session = open_session(master="local[2]")
        spark = await trio.to_thread.run_sync(stack.enter_context, session)
        return 0 if await story.run(spark) else 1


class _Story:
    """The demo from beginning to end, with its results."""

    def __init__(self, directory: Path, seconds: float) -> None:
        self._console = make_console()
        self._directory = directory
        self._seconds = seconds
        self._rows: list[tuple[str, str]] = []
        self._held = True

    def say(self, text: str) -> None:
        """Print a line for the user."""
        self._console.print(text, markup=False, soft_wrap=True)

    def _compare(self, what: str, found: object, expected: object, unit: str = "") -> None:
        """Record a count, and whether it equals the one from another source."""
        same = found == expected
        self._held &= same
        words = "as expected" if same else f"expected {expected:,}"
        self._rows.append((what, f"{found:,}{unit}, {words}"))

    async def run(self, spark: "SparkSession") -> bool:
        """Run the demo; return whether every check passed."""
        configs = lay_out(
            self._directory,
            members=MEMBERS,
            client_port=free_client_port(MEMBERS),
            cluster="demo",
        )
        async with open_cluster(configs) as cluster:
            left, query = await self._load(spark, cluster)
            self.say("Stopping all members in order.")
        self.say("The stream catches up with the rest of the log.")
        await _in_thread(query.processAllAvailable)
        await _in_thread(query.stop)
        await _in_thread(self._ask, spark, left)
        print_verdict(self._console, self._rows, held=self._held)
        return self._held

    async def _load(
        self, spark: "SparkSession", cluster: LocalCluster
    ) -> "tuple[_Left, StreamingQuery]":
        leader = (await _settled(cluster)).leader
        assert leader is not None
        followed = (leader.member_id + 1) % MEMBERS
        self.say(f"Member {leader.member_id} leads; Spark follows the log of member {followed}.")
        query = await _in_thread(self._follow, spark, f"member-{followed}")
        with (self._directory / "history.jsonl").open("wb") as file:
            clients = Clients(cluster.addresses, HistoryWriter(file), seed=1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(clients.run)
                await trio.sleep(self._seconds / 2)
                dead = cluster.members[leader.member_id]
                self.say(f"kill -9 {dead.pid}: member {dead.member_id}, the leader.")
                await dead.kill()
                await trio.sleep(self._seconds / 4)
                self.say(f"Starting member {dead.member_id} again.")
                await dead.start()
                await trio.sleep(self._seconds / 4)
                nursery.cancel_scope.cancel()
            await _settled(cluster, applied=True)
            values = dict(zip(clients.keys, await clients.read_all(), strict=True))
        last = (await _settled(cluster, applied=True)).leader
        assert last is not None
        operations = clients.outcomes.total()
        pause = span(clients.longest_pause)
        self.say(f"{operations:,} operations; longest time without one: {pause}.")
        return _Left(last, values, operations), query

    def _follow(self, spark: "SparkSession", member: str) -> "StreamingQuery":
        stream = spark.readStream.format("quorate").option("maxBytesPerTrigger", 1 << 20)
        return (
            stream.load(str(self._directory / member))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self._directory / "checkpoint"))
            .trigger(processingTime="1 second")
            .start(str(self._directory / "stream"))
        )

    def _ask(self, spark: "SparkSession", left: _Left) -> None:
        """Run all five jobs and compare their results."""
        there = {key: value for key, value in left.values.items() if value is not None}
        places = [self._directory / f"member-{at}" for at in range(MEMBERS)]
        place, tables = places[0], self._directory / "tables"
        self.say("export")
        done = export(spark, place, tables)
        self._compare("log position", done.end, left.leader.commit_position)
        streamed = spark.read.parquet(str(self._directory / "stream"))
        self._compare("commands streamed", streamed.count(), done.commands)
        once = streamed.select("position", "entry", "number", "key").distinct().count()
        self._compare("different commands streamed", once, done.commands)
        self._compare("keys in kv_current", done.current, len(there))
        history = exported_tables(spark, tables)["kv_history"].orderBy("key", "valid_from")
        names = "string(key)", "string(value)", "revision", "valid_from_time", "valid_to"
        history.selectExpr(*names).show(5, truncate=30)
        self.say("state")
        found = state(spark, place, moment_at(place))
        held = {bytes(row[0]): bytes(row[1]) for row in found.select("key", "value").collect()}
        right = sum(held.get(key) == value for key, value in there.items())
        self._compare("values of the state that are right", right, len(there))
        self._jobs(spark, places, left)

    def _jobs(self, spark: "SparkSession", places: list[Path], left: _Left) -> None:
        self.say("audit")
        audited = audit(spark, places)
        for finding in audited.findings:
            self.say(str(finding))
        self._compare("findings of the audit", len(audited.findings), 0)
        self.say("report")
        told = report(spark, places[0], separator="-")
        page = self._directory / "report.html"
        page.write_text(render(told), encoding="utf-8")
        told.terms.select("term", "leader", "reason", "election_seconds", "pause_seconds").show(
            truncate=60
        )
        told.operations.show()
        self._compare(
            "last term of the report",
            max(row["term"] for row in told.terms.collect()),
            left.leader.term,
        )
        self.say("check")
        verdicts = check_history(spark, self._directory / "history.jsonl").collect()
        fine = sum(row["operations"] for row in verdicts if row["verdict"] == "linearizable")
        self._compare("operations that are linearizable", fine, left.operations)
        self._rows.append(("report", str(page)))


async def _in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return await trio.to_thread.run_sync(lambda: call(*args, **kwargs))


async def _settled(cluster: LocalCluster, *, applied: bool = False) -> Survey:
    """Wait until all members agree; with `applied`, until they have also applied the whole log.

    Raises:
        StuckError: the wait takes too long.
    """
    wanted = agreed_and_applied if applied else agreed
    return await until(cluster.addresses, wanted, PATIENCE_SECONDS)


def main() -> None:
    """Run the demo, and exit."""
    app = App(name="pipeline-demo", backend="trio", result_action="return_value", version_flags=[])
    app.default(demo)
    sys.exit(app())


if __name__ == "__main__":
    main()

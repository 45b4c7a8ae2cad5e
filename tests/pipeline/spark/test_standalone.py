"""A Spark cluster of several processes on this machine, whose executor and driver are killed.

A master and two workers are started by this test and stopped by their process ids. Executors are
processes of their own with working directories of their own, so what only the driver has is missed
here. Starting them is most of what the test takes, so one driver streams and exports side by side.
"""

# pyright: basic, reportMissingTypeStubs=false
# (those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pyspark
import pytest

from quorate.pipeline.jobs.export import export, exported_tables, read_manifest
from quorate.pipeline.session import open_session
from quorate.pipeline.spark.home import find_spark_home
from quorate.pipeline.spark.java import find_java_home
from tests.pipeline.jobs.quick import QUICK, QUICK_JAVA
from tests.pipeline.pipeline_world import one_each, write_log

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from pyspark.sql import DataFrame, SparkSession

COMMANDS = 5_000
KEYS = 700
TRIGGER_BYTES = 128 << 10
PATIENCE_SECONDS = 300.0
INSTALLED = Path(pyspark.__file__).parent
SPARK_CLASS = INSTALLED / "bin" / "spark-class"
SETTINGS = QUICK | {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "600m",
    "spark.executor.memory": "600m",
    "spark.executor.defaultJavaOptions": QUICK_JAVA,
    "spark.scheduler.mode": "FAIR",
}


@attrs.frozen
class Cluster:
    """Where the master listens, and the workers' process ids."""

    master: str
    workers: tuple[int, ...]

    def kill_executor(self) -> None:
        """Kill an executor of the first worker that has one."""
        tasks = [one for pid in self.workers for one in Path(f"/proc/{pid}/task").iterdir()]
        found = " ".join((one / "children").read_text() for one in tasks).split()
        os.kill(int(found[0]), signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def listens(port: int) -> bool:
    with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def wait_until(done: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait for something, while a process runs."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not done():
        assert process.poll() is None, "it was done before it could be killed"
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def cluster(tmp_path: Path) -> Generator[Cluster]:
    with ExitStack() as stack:
        out = stack.enter_context((tmp_path / "out").open("wb"))

        def start(kind: str, *words: str) -> subprocess.Popen[bytes]:
            # spark-class becomes the JVM, so this process id is the JVM's
            child = subprocess.Popen(
                [str(SPARK_CLASS), f"org.apache.spark.deploy.{kind}", *words],
                stdout=out,
                stderr=out,
                env=environment(tmp_path),
            )
            stack.callback(child.wait)
            stack.callback(child.kill)
            return child

        port, *web = (free_port() for _ in range(4))
        place = ("-h", "127.0.0.1", "--webui-port")
        master = start("master.Master", *place, str(web[0]), "-p", str(port))
        # a worker that asks a master that is not there yet asks again after ten seconds
        wait_until(lambda: listens(port), master)
        url = f"spark://127.0.0.1:{port}"
        size = ("-c", "1", "-m", "1g", url)
        workers = [start("worker.Worker", *place, str(one), *size).pid for one in web[1:]]
        yield Cluster(url, tuple(workers))


def environment(place: Path) -> dict[str, str]:
    return {
        **os.environ,
        "JAVA_HOME": str(find_java_home()),
        "SPARK_HOME": str(find_spark_home() or INSTALLED),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(place / "work"),
        "TMPDIR": str(place),
    }


@contextmanager
def driver(cluster: Cluster, place: Path, *, executors: int) -> Generator[subprocess.Popen[bytes]]:
    """Run :func:`work` as a driver for the length of a block; kill it and its JVM at the end."""
    words = (cluster.master, str(place), str(executors))
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.pipeline.spark.test_standalone", *words],
        env=environment(place),
        start_new_session=True,
    )
    try:
        yield child
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def work(master: str, place: Path, executors: str) -> None:
    """Be a driver that streams a log into Parquet, to its end, and exports it meanwhile."""
    settings = SETTINGS | {"spark.cores.max": executors}  # of one core each
    with open_session(master=master, settings=settings) as spark:
        log = spark.readStream.format("quorate").option("maxBytesPerTrigger", TRIGGER_BYTES)
        query = (
            log.option("partitions", 2)
            .load(str(place / "member"))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(place / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(place / "sink"))
        )
        export(spark, place / "member", place / "tables")
        query.awaitTermination()


def counted(frame: DataFrame) -> tuple[int, int, int]:
    """How many commands there are, how many at different places, and of how many values."""
    found = frame.where("operation is not null")
    places = found.select("position", "entry", "number").distinct()
    return found.count(), places.count(), found.select("value").distinct().count()


@pytest.mark.slow
@pytest.mark.spark
def test_executors_and_drivers_that_are_killed_lose_and_double_nothing(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    commands = [f"SET k{i % KEYS} {'v' * 100}{i}" for i in range(COMMANDS + 10)]
    write_log(tmp_path / "member", one_each(commands))  # the last batch is not committed
    tables = tmp_path / "tables"

    def under_way() -> int:
        """The micro-batch that has begun and has not ended; -1 without one."""
        begun, ended = (
            max(
                (int(one.name) for one in (tmp_path / "checkpoint" / name).glob("[0-9]*")),
                default=-1,
            )
            for name in ("offsets", "commits")
        )
        return begun if begun > ended else -1

    with driver(cluster, tmp_path, executors=1) as running:
        wait_until(lambda: under_way() >= 1 and (tables / "log").exists(), running)
    assert read_manifest(tables) is None
    killed_at = under_way()
    with driver(cluster, tmp_path, executors=2) as running:
        wait_until(lambda: under_way() > killed_at, running)
        cluster.kill_executor()
        assert read_manifest(tables) is None
        assert running.wait(PATIENCE_SECONDS) == 0
    found = exported_tables(spark, tables)
    assert counted(found["log"]) == (COMMANDS,) * 3
    assert counted(spark.read.parquet(str(tmp_path / "sink"))) == (COMMANDS,) * 3
    assert (found["kv_history"].count(), found["kv_current"].count()) == (COMMANDS, KEYS)


if __name__ == "__main__":
    work(sys.argv[1], Path(sys.argv[2]), sys.argv[3])

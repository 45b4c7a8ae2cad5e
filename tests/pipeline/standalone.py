"""A Spark cluster of several processes on this machine, whose executor and driver are killed.

Not a part of ``make test``, for it takes minutes: ``make standalone``. A master and two workers are
started by this test and stopped by their process ids. Executors are processes of their own with
working directories of their own, so what only the driver has is missed here.
"""

# pyright: basic, reportMissingTypeStubs=false
# (those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pyspark
import pytest

from quorate.pipeline.export import exported_tables, read_manifest
from quorate.pipeline.java import find_java_home
from quorate.pipeline.session import open_session

from .pipeline_world import one_each, write_log

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from pyspark.sql import DataFrame, SparkSession

COMMANDS = 30_000
PATIENCE_SECONDS = 300.0
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "4",
}


@attrs.frozen
class Cluster:
    """Where the master listens, and the workers' process ids."""

    master: str
    workers: tuple[int, ...]

    def executors(self) -> list[int]:
        """The process ids of the executors that run now."""
        found: list[int] = []
        for worker in self.workers:
            children = Path(f"/proc/{worker}/task/{worker}/children").read_text()
            threads = [Path(f"/proc/{worker}/task/{t}/children") for t in _threads(worker)]
            text = " ".join([children, *(one.read_text() for one in threads if one.exists())])
            found += sorted({int(one) for one in text.split()})
        return found


def _threads(pid: int) -> list[str]:
    return [one.name for one in Path(f"/proc/{pid}/task").iterdir()]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def wait_until(done: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait for something, while a process runs."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not done():
        assert process is None or process.poll() is None, "it was done before it could be killed"
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[Cluster]:
    place = tmp_path_factory.mktemp("spark")
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        out = stack.enter_context((place / "out").open("wb"))

        def start(kind: str, *words: str) -> int:
            # spark-class becomes the JVM, so this process id is the JVM's
            child = subprocess.Popen(
                [str(SPARK_CLASS), f"org.apache.spark.deploy.{kind}", *words],
                stdout=out,
                stderr=out,
                env=environment() | {"SPARK_WORKER_DIR": str(place / "work")},
            )
            stack.callback(child.wait)
            stack.callback(child.kill)
            return child.pid

        web = ("--webui-port", str(free_port()))
        start("master.Master", "-h", "127.0.0.1", "-p", str(port), *web)
        workers = [
            start("worker.Worker", "-h", "127.0.0.1", "-c", "1", "-m", "1g", "--webui-port",
                  str(free_port()), master)
            for _ in range(2)
        ]  # fmt: skip
        wait_until(
            lambda: (place / "out").read_text().count("Successfully registered with master") == 2
        )
        yield Cluster(master, tuple(workers))


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "JAVA_HOME": str(find_java_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A member's directory with some megabytes of log, of which the last batch is not committed."""
    place = tmp_path_factory.mktemp("member-0")
    commands = [f"SET k{i % 700} {'v' * 100}{i}" for i in range(COMMANDS + 10)]
    write_log(place, one_each(commands))
    return place


@contextmanager
def driver(*words: str) -> Generator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, *words], env=environment())
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def kill_executor(cluster: Cluster) -> None:
    """Kill the executor of the first worker that has one."""
    os.kill(cluster.executors()[0], 9)


def once(frame: DataFrame) -> tuple[int, int]:
    found = frame.where("operation is not null").select("position", "index", "number")
    return found.count(), found.distinct().count()


@pytest.fixture(scope="module")
def spark() -> Generator[SparkSession]:
    """A session in this process, to look at what the drivers have left."""
    with open_session(master="local[2]", settings={"spark.sql.shuffle.partitions": "2"}) as found:
        yield found


def test_an_export_whose_executor_and_driver_are_killed_is_made_whole(
    spark: SparkSession, cluster: Cluster, member: Path, tmp_path: Path
) -> None:
    words = ["-m", "quorate", "pipeline", "export", str(member), "--to", str(tmp_path / "to")]
    words += ["--master", cluster.master]
    words += [word for pair in SETTINGS.items() for word in ("--conf", "=".join(pair))]
    with driver(*words) as running:
        wait_until((tmp_path / "to" / "log").exists, running)
        kill_executor(cluster)
        wait_until((tmp_path / "to" / "kv_history").exists, running)
        running.kill()
    assert read_manifest(tmp_path / "to") is None
    with driver(*words) as running:
        wait_until((tmp_path / "to" / "kv_history").exists, running)
        kill_executor(cluster)
        assert running.wait(PATIENCE_SECONDS) == 0
    tables = exported_tables(spark, tmp_path / "to")
    assert once(tables["log"]) == (COMMANDS, COMMANDS)
    assert tables["kv_history"].count() == COMMANDS
    assert tables["kv_current"].count() == 700

"""Opens a Spark session for the source: few log lines, loopback by default, pushed filters.

A cluster that has a session already needs nothing of this, except
``spark.dataSource.register(QuorateSource)``.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from ..errors import ConfigurationError
from .payloads.bounded import BATCH_BYTES
from .spark.home import spark_home
from .spark.java import find_java_home

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from pyspark.sql import SparkSession

__all__ = ["open_session"]

_LOOPBACK: Final = "127.0.0.1"

_QUIET: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} spark %p %m%n
"""


@contextmanager
def open_session(
    *, master: str = "local[*]", settings: Mapping[str, str] | None = None, name: str = "quorate"
) -> Generator[SparkSession]:
    """Open a Spark session with the source ``quorate`` for the duration of a block.

    Args:
        master: Spark's master: ``local[4]``, ``spark://host:7077``, ``yarn``.
        settings: Spark's settings; they override the ones from here.
        name: name of the application.

    Raises:
        ConfigurationError: PySpark is not installed, or there is no Java for it.
    """
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigurationError(
            f'the pipeline needs PySpark: pip install ".[pipeline]" in a checkout '
            f"of quorate ({error})"
        ) from error
    from .source.source import QuorateSource  # noqa: PLC0415 - needs PySpark

    with TemporaryDirectory(prefix="quorate-spark-") as directory:
        os.environ["JAVA_HOME"] = str(find_java_home())
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.master(master).appName(name)
        for key, value in (_usual(master, Path(directory)) | dict(settings or {})).items():
            builder = builder.config(key, value)
        with spark_home(master):
            spark = builder.getOrCreate()
        try:
            spark.dataSource.register(QuorateSource)
            yield spark
        finally:
            spark.stop()


def _usual(master: str, directory: Path) -> dict[str, str]:
    log = directory / "log4j2.properties"
    log.write_text(_QUIET)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
        # each task holds several batches, which is too much with Spark's own 64 MiB
        "spark.sql.execution.arrow.maxBytesPerBatch": str(BATCH_BYTES),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{log}",
    }
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
        settings |= {
            "spark.driver.host": _LOOPBACK,
            "spark.driver.bindAddress": _LOOPBACK,
            "spark.local.dir": str(directory / "local"),
            "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        }
    return settings

"""A Spark home for sessions on one machine that lets Spark's Python processes start quickly.

Spark puts ``$SPARK_HOME/python/lib/pyspark.zip`` first on the path of each Python process that it
starts. Python does not cache the compiled form of modules from an archive, so each process would
compile PySpark again. In a home without that archive they import the installed PySpark.
"""

# pyright: basic, reportMissingTypeStubs=false
# (those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .java import cache_directory

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["find_spark_home", "spark_home"]

_VARIABLE: Final = "SPARK_HOME"
_NEEDED: Final = ("bin", "jars")
_OPTIONAL: Final = "conf"


@contextmanager
def spark_home(master: str) -> Generator[None]:
    """Make a JVM that starts within the block use the quick home.

    Three cases stay unchanged. In a cluster, all machines must find the same path. A user may have
    set SPARK_HOME. And a user may have chosen another Python, which may have no PySpark.
    """
    here = master == "local" or master.startswith("local[")
    own = os.environ.get("PYSPARK_PYTHON", sys.executable) == sys.executable
    home = find_spark_home() if here and own and _VARIABLE not in os.environ else None
    if home is None:
        yield
        return
    os.environ[_VARIABLE] = str(home)
    try:
        yield
    finally:
        del os.environ[_VARIABLE]


def find_spark_home() -> Path | None:
    """Return the quick home, created if missing; None if that fails or the folder is not ours.

    It is not removed: the JVM outlives its session and loads classes from ``jars`` until it ends.
    """
    import pyspark  # noqa: PLC0415 - an extra

    installed = Path(pyspark.__file__).parent
    if not all((installed / name).is_dir() for name in _NEEDED):
        return None
    whose = hashlib.sha256(os.fsencode(installed)).hexdigest()[:16]
    links = {name: installed / name for name in (*_NEEDED, _OPTIONAL)}
    try:
        home = cache_directory().absolute() / f"spark-{whose}"
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, target in links.items():
            with suppress(FileExistsError):
                (home / name).symlink_to(target)
        right = all((home / name).readlink() == target for name, target in links.items())
        # code runs from this folder, so no other user may be able to change it
        return home if right and home.stat().st_uid == os.getuid() else None
    except (OSError, RuntimeError):  # RuntimeError: a user without a home directory
        return None

"""What is done once in each Python process of Spark's that runs code from here."""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

__all__ = ["settle"]

_WORKER: Final = "PYTHON_WORKER"  # what Spark says in the environment of such a process
_settled: list[int] = [0]


def settle() -> None:
    """Take what is imported by now out of the garbage collector's sight.

    Spark keeps these processes, and has each collect its garbage after each task and each step of
    planning. Going through the hundred thousands of objects that PyArrow, pandas, trio and the rest
    leave behind took longer than a short task itself. In any other process nothing is done: there
    it is not for us to decide.
    """
    if os.environ.get("SPARK_PYTHON_RUNTIME") == _WORKER and len(sys.modules) > _settled[0]:
        _settled[0] = len(sys.modules)
        gc.freeze()

"""Runs once in each Python process that Spark starts for code of this package."""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

__all__ = ["settle"]

_WORKER: Final = "PYTHON_WORKER"  # Spark sets this variable in such a process
_settled: list[int] = [0]


def settle() -> None:
    """Exclude all present objects from garbage collection.

    Spark reuses these processes, and each collects garbage after every task and planning step.
    PyArrow, pandas, trio and other imports leave hundreds of thousands of objects behind. Scanning
    them took longer than a short task. In any other process this function does nothing, because
    that is the user's decision.
    """
    if os.environ.get("SPARK_PYTHON_RUNTIME") == _WORKER and len(sys.modules) > _settled[0]:
        _settled[0] = len(sys.modules)
        gc.freeze()

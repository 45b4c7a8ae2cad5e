"""What is imported in a Python process of Spark's is looked through for garbage once."""

from __future__ import annotations

import gc
import sys
from types import ModuleType

import pytest

from quorate.pipeline.spark import worker


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many modules there were at each freeze."""
    found: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: found.append(len(sys.modules)))
    monkeypatch.setattr(worker, "_settled", [0])
    return found


def test_a_worker_freezes_once_for_each_time_that_it_has_imported_more(
    frozen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER")
    for _ in range(3):
        worker.settle()
    monkeypatch.setitem(sys.modules, "one_more", ModuleType("one_more"))
    for _ in range(2):
        worker.settle()
    assert frozen == [len(sys.modules) - 1, len(sys.modules)]


def test_the_process_of_the_user_is_left_alone(
    frozen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_PYTHON_RUNTIME", raising=False)
    worker.settle()
    assert frozen == []

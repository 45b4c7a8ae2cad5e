"""The library that writes down what a process does to its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs.power.journal import compile_library


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(
        Path(__file__).with_name("forgetful.c"), tmp_path_factory.mktemp("power")
    )

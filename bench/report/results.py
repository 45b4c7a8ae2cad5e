"""Reads and writes the results of benches, with the machine and versions that they depend on.

``figures/NAME.json`` is an object with four fields: ``bench``, the name; ``circumstances``, the
machine and the versions; ``settings``, the options; and ``rows``, the results. A row is a flat
object for one line of a table, with the single runs in ``runs`` if it is a median. :mod:`tables`
and :mod:`plots` fill the documents from these files, so no figure is ever copied by hand.
"""

import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs
from rich.console import Console

import quorate
from quorate.keyvalue.conversation.info import COMPILED

FIGURES: Final = Path(__file__).parents[1] / "figures"
BLOCK: Final = b"\0" * 4096

Row: TypeAlias = Mapping[str, Any]


@attrs.frozen
class Results:
    """The results of one bench."""

    bench: str
    circumstances: Row
    settings: Row
    rows: Sequence[Row]


def save(results: Results, directory: Path = FIGURES) -> Path:
    """Write the results of a bench over older ones; return the file."""
    file = directory / f"{results.bench}.json"
    directory.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(attrs.asdict(results), indent=2) + "\n", encoding="utf-8")
    return file


def read(name: str, directory: Path = FIGURES) -> Results | None:
    """Return the results of a bench; None if it was never run."""
    file = directory / f"{name}.json"
    if not file.exists():
        return None
    return Results(**json.loads(file.read_text(encoding="utf-8")))


def tell_circumstances(directory: Path, console: Console) -> dict[str, object]:
    """Find and print the machine, versions and disk; `directory` is on the disk used."""
    found: dict[str, object] = {
        "quorate": quorate.__version__,
        "revision": _revision(),
        "day": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version() + ("" if COMPILED else ", nothing compiled"),
        "kernel": platform.release(),
        "processor": _processor(),
        "processors": os.cpu_count(),
        "synced_writes_per_second": round(synced_writes(directory)),
        "load_before": round(os.getloadavg()[0], 2),
    }
    console.print(in_words(found), end="\n\n")
    return found


def in_words(facts: Row) -> str:
    """Return circumstances or settings as one line."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items())


def _revision() -> str:
    """Return the commit, with a mark if files were changed since; empty outside a repository.

    Changed figures do not count, since an earlier bench may have written them.
    """
    commit = _git("rev-parse", "--short", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":/!bench/figures")
    return f"{commit}-dirty" if changed else commit


def _git(*words: str) -> str:
    """Return git's output; nothing without git or outside a repository."""
    git = shutil.which("git")
    if git is None:
        return ""
    place = Path(__file__).parent
    done = subprocess.run([git, *words], cwd=place, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _processor() -> str:
    """Return the name of the processor."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def synced_writes(directory: Path, seconds: float = 1.0) -> float:
    """Return how many sequential 4 KiB appends with fdatasync this disk does in a second."""
    count = 0
    file = os.open(directory / "probe", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            os.write(file, BLOCK)
            os.fdatasync(file)
            count += 1
        return count / (time.perf_counter() - began)
    finally:
        os.close(file)
        (directory / "probe").unlink()

"""The one form in which benches keep what they found, and what it depends on besides the code.

``figures/NAME.json`` is an object of four: ``bench``, the name; ``circumstances``, the machine and
the versions; ``settings``, what was asked for; ``rows``, what was found, one flat object for each
line of a table, with the single runs in ``runs`` if it is a median. :mod:`tables` and :mod:`plots`
make of these files what the documents show, so no figure is ever copied by hand.
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
from quorate.keyvalue.port.info import COMPILED

FIGURES: Final = Path(__file__).parents[1] / "figures"
BLOCK: Final = b"\0" * 4096

Row: TypeAlias = Mapping[str, Any]


@attrs.frozen
class Results:
    """What one bench has found."""

    bench: str
    circumstances: Row
    settings: Row
    rows: Sequence[Row]


def save(results: Results, directory: Path = FIGURES) -> Path:
    """Write the results of a bench, in the place of older ones; return the file."""
    file = directory / f"{results.bench}.json"
    directory.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(attrs.asdict(results), indent=2) + "\n", encoding="utf-8")
    return file


def read(name: str, directory: Path = FIGURES) -> Results | None:
    """The results of a bench; None if it has never been run."""
    file = directory / f"{name}.json"
    if not file.exists():
        return None
    return Results(**json.loads(file.read_text(encoding="utf-8")))


def tell_circumstances(directory: Path, console: Console) -> dict[str, object]:
    """Find and print what figures depend on besides the code; `directory` is on the disk used."""
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
    """Circumstances or settings in a line."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items())


def _revision() -> str:
    """The commit, with a mark if something was changed since; empty outside of a repository.

    The figures of the bench before are no such change.
    """
    commit = _git("rev-parse", "--short", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":/!bench/figures")
    return f"{commit}-dirty" if changed else commit


def _git(*words: str) -> str:
    """What git says; nothing where there is none, or no repository."""
    git = shutil.which("git")
    if git is None:
        return ""
    place = Path(__file__).parent
    done = subprocess.run([git, *words], cwd=place, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _processor() -> str:
    """The name of the processor."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def synced_writes(directory: Path, seconds: float = 1.0) -> float:
    """How many 4 KiB appends with fdatasync this disk does in a second, one after the other."""
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

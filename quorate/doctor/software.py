"""The interpreter, the libraries and the compiled parts."""

import importlib.metadata
import platform
import re
import sys
from collections.abc import Iterator
from typing import Final

import lmdb

from .._version import __version__
from ..errors import ConfigurationError, check_interpreter
from ..keyvalue.native.resp_reader import NATIVE as NATIVE_READER
from ..storage.writing.journal_writer import NATIVE as NATIVE_JOURNAL
from .finding import Finding, ok, problem, warning

__all__ = ["check_software", "versions"]

LIBRARIES: Final = ("trio", "lmdb", "attrs", "cattrs", "zstandard", "google-crc32c", "hiredis")
OLDEST_PYTHON: Final = (3, 11)
NEWEST_PYTHON: Final = (3, 14)
"""The newest Python that the tests run with. Smaller: a Python that works is warned of. Larger: one
that nobody has tried is not."""


def versions() -> dict[str, str]:
    """Return the versions of what a member runs on, by name."""
    found = {"quorate": __version__, "python": platform.python_version()}
    found |= {"implementation": platform.python_implementation(), "system": platform.platform()}
    found |= {name: _version(name) or "missing" for name in LIBRARIES}
    return found | {"liblmdb": ".".join(map(str, lmdb.version()))}


def check_software() -> Iterator[Finding]:
    """Look at what a member runs on."""
    yield _python()
    try:
        check_interpreter()
    except ConfigurationError as error:
        yield problem("assertions", str(error), "assertions that are on", "unset PYTHONOPTIMIZE")
    wrong = [*_libraries()]
    known = versions()
    named = ", ".join(f"{name} {known[name]}" for name in ("trio", "lmdb", "liblmdb"))
    yield from wrong or [ok("libraries", named, versions=known)]
    yield _compiled()


def _python() -> Finding:
    name, now = platform.python_implementation(), sys.version_info[:2]
    found = f"{name} {platform.python_version()} on {platform.system()} {platform.machine()}"
    oldest, newest = (".".join(map(str, each)) for each in (OLDEST_PYTHON, NEWEST_PYTHON))
    what = f"CPython {oldest} to {newest} on Linux"
    if now < OLDEST_PYTHON or platform.system() != "Linux":
        return problem("python", found, what, "python3.11 -m venv .venv")
    if name != "CPython" or now > NEWEST_PYTHON:
        return warning("python", found, f"{what}: nothing else is tested")
    return ok("python", found)


def _libraries() -> Iterator[Finding]:
    """Yield a problem for each library that is missing or too old."""
    remedy = "pip install --require-hashes -r requirements.lock"
    for name, least in _required().items():
        have = _version(name)
        if have is None or _numbers(have) < _numbers(least):
            found = f"{name} {have}" if have else f"{name} is missing"
            yield problem("libraries", found, f"{name} {least} or newer", remedy)


def _required() -> dict[str, str]:
    """Return the oldest version of each library that quorate asks for; nothing if not installed."""
    try:
        lines = importlib.metadata.requires("quorate-db") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    found = (re.fullmatch(r"([\w.-]+)>=([\d.]+)", line) for line in lines)
    return {each[1]: each[2] for each in found if each}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _compiled() -> Finding:
    parts = {"the reader of RESP": NATIVE_READER, "the writer of the journal": NATIVE_JOURNAL}
    missing = [name for name, there in parts.items() if not there]
    if not missing:
        return ok("compiled parts", "both are there")
    return warning(
        "compiled parts",
        f"missing: {' and '.join(missing)}; Python does their work, and is slower",
        "both, which a C compiler and Python's headers make",
        "apt install gcc python3-dev, then: pip install --no-deps --force-reinstall .",
    )

"""Gathers the parts of a bundle; each is bounded, and one that can't be had is noted.

Two parts come from child processes: the doctor's findings, and the description of the log. Both
look into the store, and a damaged page of it can end the process that reads it.
"""

import json
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, cast

import trio

from ..client.resp import RespError, open_resp
from ..client.secure import port_of
from ..doctor.software import versions
from ..errors import QuorateError
from ..local.survey import ANSWER_SECONDS, Survey, survey, with_list
from ..local.words import utc
from ..node.config.config import NodeConfig, load_config
from ..node.requests.status import MemberAddress
from ..transport import Address
from .archive import Part
from .settings import settings_of, without_texts
from .tracebacks import without_quotes

__all__ = ["MAX_TAIL_BYTES", "collect"]

MAX_TAIL_BYTES: Final = 2 << 20
"""How much of the end of a log is taken. Smaller: a busy hour hides the cause. Larger: the archive
is too large for a mail."""

MAX_RECORDINGS_BYTES: Final = 32 << 20
"""How much of the recordings is taken, the newest first. Smaller: the time before a failure is
missing. Larger: the archive is too large for a mail."""

_CHILD_SECONDS: Final = 60.0
_PROC: Final = ("version", "loadavg", "meminfo", "cpuinfo", "uptime", "pressure/io", "pressure/cpu")
_PROC_BYTES: Final = 64 << 10
_OF_PROCESS: Final = ("status", "limits", "io", "sched", "cgroup")
"""Never ``environ`` or ``cmdline``: they may have passwords."""


class _Parts:
    """What was gathered, and what could not be."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.missing: dict[str, str] = {}

    def add(self, name: str, what: str, make: Callable[[], object]) -> None:
        """Add a part that a function makes, or note why it is missing."""
        try:
            made = make()
        except (OSError, QuorateError, ValueError, subprocess.SubprocessError) as error:
            self.missing[name] = str(error)
            return
        data = made if isinstance(made, bytes) else json.dumps(made, indent=2).encode()
        self.parts.append(Part(name, what, data))


async def collect(
    file: Path | None, connect: Sequence[MemberAddress], *, log_file: Path | None = None
) -> list[Part]:
    """Gather all parts.

    Args:
        file: of the member; None for what can be had without.
        connect: client ports of members.
        log_file: with the member's log lines; if left out, ``member.log`` in its directory.
    """
    found = _Parts()
    found.add("versions.json", "versions of all that runs", versions)
    words = [str(file)] if file is not None else []
    for one in connect:
        words += ["--connect", str(Address(one.host, one.client_port))]
    found.add("doctor.json", "findings of quorate doctor", lambda: _doctor(words))
    config = _configuration(found, file)
    addresses = [*connect] or [*_listed(config)]
    if addresses:
        seen = await with_list(await survey(addresses))
        found.add("status.json", "what each member reports", lambda: seen.as_json().encode())
        for member_id, text in (await _infos(seen)).items():
            name = f"info-{member_id}.txt"
            found.add(name, f"INFO of member {member_id}", text.encode)
    if config is not None:
        _of_member(found, config.directory, log_file)
    elif log_file is not None:
        found.add("member.log", "the last log lines", lambda: without_quotes(_tail(log_file)))
    _of_system(found, None if config is None else config.directory)
    if found.missing:
        found.add("missing.json", "what could not be had, and why", lambda: found.missing)
    return found.parts


def _configuration(found: _Parts, file: Path | None) -> NodeConfig | None:
    if file is None:
        return None
    found.add("settings.txt", "the member's file", lambda: settings_of(file).encode())
    try:
        return load_config(file)
    except (OSError, QuorateError) as error:
        found.missing["configuration"] = without_texts(str(error))
        return None


def _listed(config: NodeConfig | None) -> Iterator[MemberAddress]:
    for one in () if config is None else (config.own, *config.peers):
        yield MemberAddress(
            one.member_id, one.host, one.client_port, one.member_port, tls_port=one.tls_port
        )


def _doctor(words: Sequence[str]) -> dict[str, Any]:
    found = cast("dict[str, Any]", json.loads(_child("doctor", *words, "--json")))
    for one in found["findings"]:
        if one["check"] == "configuration":  # a mistake quotes what somebody has typed
            one["found"] = without_texts(one["found"])
    return found


def _child(*words: str) -> bytes:
    """Return what a command of ours prints, whatever its exit status.

    Raises:
        OSError: it has died, or has printed nothing.
        subprocess.TimeoutExpired: it takes too long.
    """
    done = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "quorate", *words],
        capture_output=True,
        check=False,
        timeout=_CHILD_SECONDS,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode < 0:
        raise OSError(f"quorate {words[0]} was ended by signal {-done.returncode}")
    if not done.stdout:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise OSError(f"quorate {words[0]}: exit status {done.returncode}: {said}")
    return done.stdout


async def _infos(seen: Survey) -> dict[int, str]:
    """Return what INFO says, of each member that answers."""
    found: dict[int, str] = {}
    for answer in seen.answers:
        if answer.status is None:
            continue
        with trio.move_on_after(ANSWER_SECONDS):
            try:
                async with open_resp(answer.address.host, port_of(answer.address)) as client:
                    reply = await client.call("INFO")
            except (OSError, RespError) as error:
                found[answer.status.member_id] = f"{error}\n"
                continue
            if isinstance(reply, bytes):
                found[answer.status.member_id] = reply.decode(errors="replace")
    return found


def _of_member(found: _Parts, directory: Path, log_file: Path | None) -> None:
    """Add what lies in a member's directory, except for its data."""
    found.add(
        "log.json",
        "terms, snapshots and configurations of the recorded log",
        lambda: _child("log", "describe", str(directory), "--json"),
    )
    found.add("files.txt", "names, sizes and times of its files", lambda: _files(directory))
    lines = log_file or directory / "member.log"
    if log_file is not None or lines.exists():
        found.add("member.log", "the last log lines", lambda: without_quotes(_tail(lines)))
    if (audit := directory / "audit.jsonl").exists():
        found.add("audit.jsonl", "the last lines of the audit log", lambda: _tail(audit))
    left = MAX_RECORDINGS_BYTES
    for path, length in _recordings(found, directory / "flight"):
        left -= length
        if left >= 0:
            found.add(f"flight/{path.name}", "a flight recording", path.read_bytes)


def _recordings(found: _Parts, flight: Path) -> list[tuple[Path, int]]:
    """Return the files of the flight recorder and their lengths, the newest first."""
    seen: list[tuple[float, Path, int]] = []
    try:
        paths = [*flight.iterdir()] if flight.is_dir() else []
    except OSError as error:
        found.missing["flight"] = str(error)
        return []
    for path in paths:
        # A member that runs renames its files and removes the oldest, also between two calls here.
        try:
            about = path.stat()
        except OSError as error:
            found.missing[f"flight/{path.name}"] = str(error)
            continue
        if stat.S_ISREG(about.st_mode):
            seen.append((about.st_mtime, path, about.st_size))
    return [(path, length) for _, path, length in sorted(seen, reverse=True)]


def _tail(path: Path) -> bytes:
    """Return the last whole lines of a file."""
    with path.open("rb") as file:
        length = file.seek(0, 2)
        file.seek(max(0, length - MAX_TAIL_BYTES))
        data = file.read(MAX_TAIL_BYTES)
    return data if length <= MAX_TAIL_BYTES else data.partition(b"\n")[2]


def _files(directory: Path) -> bytes:
    """List a member's files, as `ls -l` does."""
    lines: list[str] = []
    for path in sorted(directory.rglob("*")):
        try:
            about = path.lstat()
        except FileNotFoundError:
            continue  # a member that runs removes files
        mode, moment = stat.filemode(about.st_mode), utc(int(about.st_mtime * 1000))
        lines.append(f"{mode} {about.st_size:>14,} {moment} {path.relative_to(directory)}")
    return "\n".join(lines).encode(errors="replace")


def _of_system(found: _Parts, directory: Path | None) -> None:
    """Add facts of the machine, and of the member's process if it runs."""
    for name in _PROC:
        _add_proc(found, f"proc/{name.replace('/', '-')}", Path("/proc") / name)
    found.add("proc/now", "the time", lambda: utc(int(time.time() * 1000)).encode())
    if directory is None:
        return
    try:
        number = (directory / "pid").read_text(encoding="ascii").strip()
    except OSError:
        return
    if number.isascii() and number.isdigit():
        for name in _OF_PROCESS:
            _add_proc(found, f"proc/member-{name}", Path("/proc") / number / name)


def _add_proc(found: _Parts, name: str, path: Path) -> None:
    def read() -> bytes:
        with path.open("rb") as file:
            return file.read(_PROC_BYTES)

    found.add(name, str(path), read)

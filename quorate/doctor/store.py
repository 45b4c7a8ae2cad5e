"""The member's store: whose it is, whether it may vote, whether it is sound, and its process.

The store is read by a child process, because reading a damaged page of LMDB can crash. The child
runs this module, and prints what it finds as JSON.
"""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs

from ..errors import StorageError, StoreBusyError
from ..local.stores import has_store, store_of, whose
from ..local.words import counted, size
from ..node.config.config import NodeConfig, load_config
from ..node.store_opening import way_out
from ..storage.lmdb.file_check import DATA_FILE
from ..storage.lmdb.readers import LOCK_FILE, holder
from ..storage.rows.voting_status import VotingRight
from ..storage.tools.describe import Description, describe
from ..storage.tools.verify import verify
from .finding import Finding, Level, ok, problem, unknown, warning

__all__ = ["check_process", "check_store", "running_process"]

VERIFIED_BYTES: Final = 64 << 20
"""Size up to which every record is read. Smaller: damage is found by `quorate log verify` alone.
Larger: an operator waits for it."""


def running_process(directory: Path) -> str | None:
    """Return the id of the process that has the store open for writing; None if none has."""
    try:
        lock = os.open(directory / "log" / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return holder(lock)
    finally:
        os.close(lock)
    return None


def check_process(directory: Path) -> Finding:
    """Say whether the member runs: its pid file, and the lock of its store."""
    runs, said = running_process(directory), _pid_file(directory)
    if runs is None:
        if said is None:
            return ok("process", "the member does not run here", pid=None)
        found = f"it does not run; {directory / 'pid'} names process {said}: it ended without order"
        return warning("process", found, "no such file", f"quorate run, or rm {directory}/pid")
    if said is not None and said != runs:
        found = f"process {runs} has the store open, and {directory / 'pid'} names {said}"
        remedy = f"look at both: ps -fp {runs},{said}"
        return warning("process", found, "one process for a store", remedy, pid=runs)
    return ok("process", f"process {runs} has the store open", pid=runs)


def _pid_file(directory: Path) -> str | None:
    try:
        return (directory / "pid").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def check_store(file: Path, config: NodeConfig) -> Iterator[Finding]:
    """Look at the store of a member, which may be running, in a child process.

    Args:
        file: of the member; the child reads it anew.
        config: what is in it.
    """
    if not has_store(config.directory):
        yield ok("store", f"none in {config.directory} yet: the first start makes it")
        return
    status, printed, complaint = _run([sys.executable, "-m", __name__, str(file)])
    for line in printed.splitlines():
        plain = json.loads(line)
        yield Finding(**plain | {"level": Level(plain["level"])})
    if status:
        with contextlib.suppress(ValueError):
            complaint = f"reading it ends the process with {signal.Signals(-status).name}"
        words = complaint or f"reading it ends with exit status {status}"
        yield problem("store", words, "a store of quorate", way_out(config, read=False))


def _run(command: Sequence[str]) -> tuple[int, str, str]:
    """Run a command; return its exit status, what it printed, and the last line of its errors."""
    done = subprocess.run(  # noqa: S603 - the command is ours
        command, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return done.returncode, done.stdout.decode(), said


def look_at_store(config: NodeConfig) -> Iterator[Finding]:
    """Read the store of a member. A damaged page can end this process: see `check_store`."""
    try:
        store = store_of(config.directory)
        found = describe(store)
    except StoreBusyError as error:
        yield unknown("store", str(error), "a reader that may note itself in lock.mdb")
        return
    except StorageError as error:
        yield problem("store", str(error), "a store of quorate", way_out(config))
        return
    yield _owner(config, found)
    yield from _standing(config, found)
    yield _soundness(config, store)


def _owner(config: NodeConfig, found: Description) -> Finding:
    identity = found.identity
    figures = {"cluster": identity.cluster, "member_id": identity.member_id}
    figures |= {"append_position": found.append_position, "commit_position": found.commit_position}
    if (identity.cluster, identity.member_id) == (config.cluster, config.member_id):
        words = f"{whose(identity)}, {size(found.bytes)} of log up to {found.append_position:,}"
        return ok("store", words, **figures)
    what = f'member {config.member_id} of cluster "{config.cluster}", as the file says'
    remedy = "put right cluster, member_id or directory in the file; never move a store to another"
    return problem("store", f"it is that of {whose(identity)}", what, remedy, **figures)


def _standing(config: NodeConfig, found: Description) -> Iterator[Finding]:
    kind = found.standing.kind
    if kind is VotingRight.REMOVED:
        words = "its member was removed from the cluster"
        remedy = "do not start it again; a new member begins with an empty directory"
        yield problem("store", words, "a member of the cluster", remedy)
    if kind is VotingRight.RECOVERING:
        words = "it has no vote: the other members have not admitted it yet"
        yield warning("store", words, "a vote", f"quorate recover {config.directory}/node.toml")
    if found.forced:
        words = f"a quorum was forced here {counted(len(found.forced), 'time', 'times')}"
        yield warning("store", words, "never", f"quorate log describe {config.directory}")


def _soundness(config: NodeConfig, store: Path) -> Finding:
    """Read every record, unless there are too many."""
    remedy = f"quorate log verify {config.directory}"
    length = (store / DATA_FILE).stat().st_size
    if length > VERIFIED_BYTES:
        return ok("records", f"{size(length)} were not read here; to read all: {remedy}")
    try:
        report = verify(store)
    except StorageError as error:
        return problem("records", str(error), "records that can be read", way_out(config))
    if report.ok:
        return ok("records", f"every one of {counted(report.batches, 'batch', 'batches')} is sound")
    first = str(report.findings[0])
    found = f"{counted(report.count, 'place is', 'places are')} damaged; the first: {first}"
    what = "none; a member that runs mends what other members have"
    return problem("records", found, what, f"{remedy}\n{way_out(config)}", places=report.count)


def _main(file: str) -> None:
    for finding in look_at_store(load_config(Path(file))):
        # At once: what was found before a crash is of use.
        print(json.dumps(attrs.asdict(finding)), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1])

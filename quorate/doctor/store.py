"""The member's store: whose it is, whether it may vote, whether it is sound, and its process."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..errors import StorageError, StoreBusyError
from ..local.stores import has_store, store_of, whose
from ..local.words import counted, size
from ..node.config.config import NodeConfig
from ..node.store_opening import way_out
from ..storage.lmdb.file_check import DATA_FILE
from ..storage.lmdb.readers import LOCK_FILE, holder
from ..storage.rows.voting_status import VotingRight
from ..storage.tools.describe import Description, describe
from ..storage.tools.verify import verify
from .finding import Finding, ok, problem, unknown, warning

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


def check_store(config: NodeConfig) -> Iterator[Finding]:
    """Look at the store of a member, which may be running."""
    directory = config.directory
    if not has_store(directory):
        yield ok("store", f"none in {directory} yet: the first start makes it")
        return
    try:
        store = store_of(directory)
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

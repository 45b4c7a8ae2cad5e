"""What the system allows this user: open files, memory, size of files."""

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..keyvalue.port.listener import RESERVED_DESCRIPTORS
from ..local.words import size
from ..node.config.config import NodeConfig
from ..storage.lmdb.environment import INITIAL_MAP_BYTES
from ..storage.lmdb.file_check import DATA_FILE
from .finding import Finding, ok, problem, warning

__all__ = ["check_limits", "memory_bytes"]

LEAST_MEMORY_BYTES: Final = 512 << 20
"""Memory with which a member is expected to work. Smaller: it may be ended by the system while it
loads a snapshot. Larger: small machines are warned of that do."""

_CGROUPS: Final = (
    "sys/fs/cgroup/memory.max",
    "sys/fs/cgroup/memory/memory.limit_in_bytes",
)


def check_limits(config: NodeConfig) -> Iterator[Finding]:
    """Look at the limits of this process; the member has them, too, if it is started likewise."""
    yield _descriptors(config.limits.max_clients)
    yield _memory(config.directory)
    yield from _sizes(config.directory)


def _descriptors(clients: int) -> Finding:
    wanted = clients + 2 * RESERVED_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    figures = {"soft": soft, "hard": hard, "wanted": wanted}
    # `quorate run` raises the soft limit by itself, and an embedding program does not.
    if hard != resource.RLIM_INFINITY and hard < wanted:
        found = f"at most {hard:,} open files"
        what = f"{wanted:,}: max_clients = {clients:,}, and some for the member itself"
        remedy = f"LimitNOFILE={wanted} in the unit, ulimit -Hn {wanted}, or a smaller max_clients"
        return warning("open files", found, what, remedy, **figures)
    allowed = "any number of" if hard == resource.RLIM_INFINITY else f"up to {hard:,}"
    return ok("open files", f"{allowed} open files, {wanted:,} are needed", **figures)


def memory_bytes(root: Path = Path("/")) -> tuple[int, str]:
    """Return the memory that this process may use, and what limits it."""
    found = (_total(root / "proc/meminfo"), "the machine")
    places = [root / name for name in _CGROUPS]
    if own := _own_group(root):
        places.append(root / "sys/fs/cgroup" / own / "memory.max")
    for place in places:
        try:
            text = place.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit() and (not found[0] or int(text) < found[0]):
            found = int(text), "its control group"
    return found


def _total(meminfo: Path) -> int:
    try:
        first = meminfo.read_text(encoding="ascii").partition("\n")[0]
    except OSError:
        return 0
    return int(first.split()[1]) * 1024


def _own_group(root: Path) -> str:
    """Return the name of our control group, without the slash that it begins with."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line[4:] for line in lines if line.startswith("0::/")), "")


def _memory(directory: Path) -> Finding:
    allowed, by = memory_bytes()
    files = [directory / name / DATA_FILE for name in ("log", "tables")]
    data = sum(file.stat().st_size for file in files if file.exists())
    found = f"{size(allowed)} by {by}, the stores have {size(data)}"
    figures = {"allowed_bytes": allowed, "store_bytes": data}
    if allowed < LEAST_MEMORY_BYTES:
        what = f"{size(LEAST_MEMORY_BYTES)} or more"
        return warning("memory", found, what, "more memory for it", **figures)
    if data > allowed:
        what = "memory for the keys that are used; others are read from the disk"
        return warning("memory", found, what, "more memory, or fewer keys", **figures)
    return ok("memory", found, **figures)


def _sizes(directory: Path) -> Iterator[Finding]:
    """Yield a problem for each limit below what LMDB needs."""
    maps = 0
    for name in ("log", "tables"):
        file = directory / name / DATA_FILE
        maps += max(INITIAL_MAP_BYTES, file.stat().st_size if file.exists() else 0)
    for kind, what, least in (
        (resource.RLIMIT_AS, "address space", 2 * maps),
        (resource.RLIMIT_FSIZE, "size of a file", maps),
    ):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY and soft < least:
            found = f"{what}: {size(soft)}"
            expected = f"{size(least)} or no limit: LMDB maps its files"
            remedy = "ulimit -v unlimited -f unlimited"
            yield problem("limits", found, expected, remedy, limit_bytes=soft, least_bytes=least)

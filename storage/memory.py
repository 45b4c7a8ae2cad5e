"""How soon memory that was freed goes back to the system.

For what a commit changes LMDB takes memory that it frees behind it. What goes back to the system
comes again as other pages, cleared, and new to the processor's caches: a tenth of the time of a
member that records as fast as it can. So it is kept meanwhile. Only glibc can be told, and it is
told for the whole process, for good: what it did of itself before, to adapt, it does no more.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Generator

TRIMMED_BYTES: Final = 32 << 20
"""Where that much or more was freed it is worth some milliseconds to give it back."""

# See mallopt(3), whose constants are those of <malloc.h>.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_KEPT: Final = ((_MMAP_THRESHOLD, 32 << 20), (_TRIM_THRESHOLD, 128 << 20))
_USUAL: Final = ((_MMAP_THRESHOLD, 2 << 20), (_TRIM_THRESHOLD, 4 << 20))
"""What it comes to of itself when blocks as large as a batch are freed."""

_wanted = 0  # by so many blocks that are under way, perhaps of several members


@contextmanager
def freed_memory_kept() -> Generator[None]:
    """For the length of the block keep up to 128 MiB of freed memory; from then on 4 MiB."""
    global _wanted  # noqa: PLW0603 - the process has one allocator
    _wanted += 1
    if _wanted == 1:
        _tell(_KEPT)
    try:
        yield
    finally:
        _wanted -= 1
        if not _wanted:
            _tell(_USUAL)


def return_freed_memory() -> None:
    """Give back to the system what is free in the middle of the heap; takes some milliseconds."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def return_large_blocks() -> None:
    """From now on give back at once what blocks of 2 MiB and more have taken.

    Of itself glibc adapts to the largest block that was freed, up to 32 MiB, and then keeps as
    much: what one client has sent takes memory for good.
    """
    if not _wanted:
        _tell(_USUAL)


def _tell(settings: tuple[tuple[int, int], ...]) -> None:
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    if tell is not None:
        for parameter, size in settings:
            tell(parameter, size)

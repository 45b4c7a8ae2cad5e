"""A fair semaphore: at most so many owners in the whole cluster.

An owner's ticket in the line (:mod:`.line`) is its permit as soon as there are fewer than `permits`
older ones. All that use one semaphore must give the same number; with different ones, at most the
largest number of owners is let in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from ..errors import ConfigurationError
from .line import Line, first
from .names import prefix_of

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from random import Random

    from ..keyvalue.programs.client import KeyValue
    from .lease import Lease

__all__ = ["semaphore"]

MAX_PERMITS: Final = 10_000


def semaphore(
    kv: KeyValue,
    resource: str,
    permits: int,
    /,
    *,
    ttl_s: float = 10.0,
    wait_s: float | None = None,
    name: str | None = None,
    rng: Random | None = None,
) -> AbstractAsyncContextManager[Lease]:
    """Hold one of a number of permits for the length of the block; see `lock`.

    Args:
        kv: the store.
        resource: what is shared: 1 to 200 bytes, see :mod:`.names`.
        permits: how many owners there may be: 1 to 10,000.
        ttl_s: seconds after which the permit of a dead owner is free: 0.1 to 86,400.
        wait_s: how long to wait for a permit, in seconds; None for any time, 0 to try once.
        name: our name, for those who look at the semaphore; None for the host and process.
        rng: makes random numbers; None for the system's.

    Yields:
        The lease.

    Raises:
        TimeoutError: no permit was free in time.
        LeaseLostError: the permit was lost before the block ended.
        ConfigurationError: an argument is out of range.
    """
    whole = isinstance(cast("object", permits), int) and not isinstance(permits, bool)
    if not whole or not 1 <= permits <= MAX_PERMITS:
        raise ConfigurationError(f"permits = {permits!r:.60}: expected 1 to {MAX_PERMITS}")
    prefix = prefix_of("semaphore", resource)
    title = f"semaphore {resource!r}"
    line = Line(kv, prefix, ttl_s=ttl_s, name=name, rng=rng, title=title)
    return line.place(first(permits), wait_s=wait_s)

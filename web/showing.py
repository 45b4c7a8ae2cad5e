"""The web port of a member that runs the key-value store, or a state machine of the program."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import trio

from ..keyvalue.port.figures import port_families
from ..keyvalue.programs.figures import watch_families
from ..keyvalue.protocol.resp import bulk_array
from ..metrics import Histogram
from ..node.live.figures import member_families
from .opening import make_web_port

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from ..keyvalue.port.listener import ClientPort
    from ..keyvalue.programs.watch import LocalWatches
    from ..metrics import Family
    from ..node import Member, NodeConfig
    from .guard import Guard


_NO_CALLS: Final[Mapping[str, Histogram]] = MappingProxyType({})


@asynccontextmanager
async def showing(
    member: Member,
    config: NodeConfig,
    guard: Guard | None,
    port: ClientPort | None = None,
    watches: LocalWatches | None = None,
    *,
    others: Callable[[], list[Family]] = list,
) -> AsyncGenerator[None]:
    """Show a member to browsers and monitors for the length of a block, if its file says so.

    Args:
        member: to be shown.
        config: of the member.
        guard: judges who may look; None to show nothing.
        port: of its clients; None with a state machine of the program.
        watches: of its keys; None without keys.
        others: returns figures of other parts.

    Raises:
        OSError: the web port can't be bound.
    """
    if guard is None:
        yield
        return
    web = make_web_port(
        member,
        config,
        families=partial(all_families, member, port, watches, others),
        read=partial(_read, member) if port else member.confirm,
        guard=guard,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(web.run)
        yield
        nursery.cancel_scope.cancel()


def all_families(
    member: Member,
    port: ClientPort | None,
    watches: LocalWatches | None,
    others: Callable[[], list[Family]],
) -> list[Family]:
    """Return the figures of a member, of its clients, of its watches, and of other parts."""
    families = member_families(member)
    families += port_families(port.state) if port else []
    families += watch_families(watches) if watches else []
    return families + others()


async def _read(member: Member) -> bytes:
    """Read a key, linearizably."""
    return await member.query(bulk_array([b"GET", b""]))


def count_clients(
    member: Member, port: ClientPort, etcd: Mapping[str, Histogram] = _NO_CALLS
) -> None:
    """Have live events show what clients do.

    Args:
        member: whose events they are.
        port: of Redis's clients.
        etcd: how long the calls of etcd's clients took, by kind; empty without a port for them.
    """
    counters, reporter = port.state.counters, member.reporter
    calls = tuple(etcd.values())
    reporter.counts["commands"] = lambda: counters.commands + sum(each.count for each in calls)
    # Each read once, by the port that its client uses, also if the leader is elsewhere. A duration
    # is observed for each command, however many share a request; stale reads make no request.
    reads = [counters.durations["read"], *(etcd[kind] for kind in etcd if kind == "read")]
    reporter.counts["reads"] = lambda: sum(each.count for each in reads) + counters.stale_reads
    reporter.counts["input_bytes"] = lambda: counters.input_bytes
    reporter.counts["output_bytes"] = lambda: counters.output_bytes

    def durations() -> Histogram:
        # Without those of operators, which may wait for long by their nature.
        found = Histogram()
        for each in (counters.durations["read"], counters.durations["write"], *calls):
            pairs = zip(found.counts, each.counts, strict=True)
            found.counts = [one + other for one, other in pairs]
            found.total += each.total
        return found

    reporter.histograms["command"] = durations

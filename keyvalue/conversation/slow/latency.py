"""LATENCY: durations as histograms, and the history of what was slow.

LATEST, HISTORY and RESET know these events: ``batch`` for the whole way of a slow batch, and the
steps of its way that took long by themselves. HISTOGRAM has durations of commands by kind (read,
write, admin), as Prometheus gets them, and those of this member's disk, commits and event loop. One
histogram for each command, as Redis has, would cost each command more; the kind is asked for by the
name of a command as well.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from ....metrics import Histogram
from ....node.requests.journey import SLOW_SECONDS, SlowBatch
from ...clients.client_state import ClientState
from ...clients.port_state import PortState
from ...commands.introspection import help_reply
from ...commands.spec import Kind
from ...commands.table import lookup
from ...protocol import resp
from .slowlog import STEPS

__all__ = ["latency_reply"]

EVENTS: Final = ("batch", *STEPS)

_WORDS: Final = {Kind.WRITE: "write", Kind.READ: "read", Kind.CONNECTION: "admin"}

_ADVICE: Final = {
    "receive": "Batches wait for room, or requests for a leader: see quorate_elections_total.",
    "sync": "The disk of this member is slow: see quorate_disk_sync_duration_seconds.",
    "quorum": (
        "Batches wait for followers: for the network, and for the syncs of their disks, which are "
        "part of this time. Compare quorate_disk_sync_duration_seconds of all members: where it is "
        "the same, and sync is much of the time, all disks are slow. Else look at the followers."
    ),
    "apply": "The state machine, or this process, is busy: see quorate_loop_delay_seconds.",
    "reply": "Many or large replies are sent: see quorate_client_output_bytes_total.",
}


def latency_reply(arguments: Sequence[bytes], client: ClientState, port: PortState) -> bytes:
    """Answer LATENCY DOCTOR, HISTOGRAM, HISTORY, LATEST, RESET or HELP."""
    match arguments[1].lower():
        case b"doctor":
            return resp.verbatim(_doctor(port).encode(), resp3=client.resp3)
        case b"histogram":
            return _histograms(arguments[2:], port, resp3=client.resp3)
        case b"history":
            event = arguments[2].decode("ascii", errors="replace").lower()
            return resp.array([_point(*each) for each in _series(port).get(event, [])])
        case b"latest":
            return _latest(port)
        case b"reset":
            return _reset(arguments[2:], port)
        case _:
            return help_reply(arguments[0])


def _series(port: PortState) -> dict[str, list[tuple[int, int]]]:
    """Return time in seconds and length in milliseconds of what was slow, by event."""
    found: dict[str, list[tuple[int, int]]] = {event: [] for event in EVENTS}
    for slow in port.gateway.latencies().slow:
        for event in EVENTS:
            took = _length(slow, event)
            if took >= SLOW_SECONDS and slow.number >= port.latency_from.get(event, 0):
                found[event].append((slow.timestamp_ms // 1000, round(took * 1000)))
    return {event: points for event, points in found.items() if points}


def _length(slow: SlowBatch, event: str) -> float:
    length: float = slow.took if event == "batch" else getattr(slow, event)
    return length


def _point(at_s: int, ms: int) -> bytes:
    return resp.array([resp.integer(at_s), resp.integer(ms)])


def _latest(port: PortState) -> bytes:
    lines = [
        resp.array(
            [
                resp.bulk(event.encode()),
                resp.integer(points[-1][0]),
                resp.integer(points[-1][1]),
                resp.integer(max(ms for _, ms in points)),
            ]
        )
        for event, points in _series(port).items()
    ]
    return resp.array(lines)


def _reset(names: Sequence[bytes], port: PortState) -> bytes:
    """Forget the events of these names, or all; reply with their number."""
    wanted = {name.decode("ascii", errors="replace").lower() for name in names} or {*EVENTS}
    kept = port.gateway.latencies().slow
    gone = wanted & _series(port).keys()
    for event in gone:
        port.latency_from[event] = kept[-1].number + 1
    return resp.integer(len(gone))


def _all_histograms(port: PortState) -> Mapping[str, Histogram]:
    return port.counters.durations | dict(port.gateway.latencies().histograms)


def _histograms(names: Sequence[bytes], port: PortState, *, resp3: bool) -> bytes:
    known = _all_histograms(port)
    # Each once, in the order of the request; a name that nobody knows is left out, as in Redis.
    wanted = dict.fromkeys(map(_name, names)) if names else known
    pairs = [
        (resp.bulk(name.encode()), _histogram(known[name], resp3=resp3))
        for name in wanted
        if name in known and known[name].count
    ]
    return resp.mapping(pairs, resp3=resp3)


def _name(asked: bytes) -> str:
    spec = lookup(asked)
    return asked.decode("ascii", errors="replace").lower() if spec is None else _WORDS[spec.kind]


def _histogram(histogram: Histogram, *, resp3: bool) -> bytes:
    """Encode a histogram: cumulative counts by bounds in microseconds, as Redis does."""
    bounds, seen = histogram.bounds(), 0
    buckets: list[tuple[bytes, bytes]] = []
    # What exceeds the last bound stands under twice that: the form has no infinity.
    for bound, count in zip([*bounds, 2 * bounds[-1]], histogram.counts, strict=True):
        seen += count
        if count:
            buckets.append((resp.integer(round(bound * 1_000_000)), resp.integer(seen)))
    return resp.mapping(
        [
            (resp.bulk(b"calls"), resp.integer(seen)),
            (resp.bulk(b"histogram_usec"), resp.mapping(buckets, resp3=resp3)),
        ],
        resp3=resp3,
    )


def _doctor(port: PortState) -> str:
    """Say in words how long things take, and what the slow batches waited for."""
    lines = ["Durations of this member since its start (half of them, 99 % of them, up to about):"]
    for name, histogram in _all_histograms(port).items():
        half, most = histogram.quantile(0.5), histogram.quantile(0.99)
        if half is not None and most is not None:
            lines.append(f"  {name}: {_words(half)}, {_words(most)} ({histogram.count} observed)")
    slow = port.gateway.latencies().slow
    if not slow:
        lines.append(f"No batch took {_words(SLOW_SECONDS)} or longer on this member.")
        return "\n".join(lines) + "\n"
    sums = {step: sum(_length(each, step) for each in slow) for step in STEPS}
    total = sum(sums.values()) or 1.0
    lines.append(f"Of the last {len(slow)} slow batches the time went to:")
    lines += [f"  {step}: {100 * took / total:.0f} %" for step, took in sums.items()]
    lines.append(_ADVICE[max(sums, key=lambda step: sums[step])])
    return "\n".join(lines) + "\n"


def _words(seconds: float) -> str:
    if seconds < 1e-3:  # noqa: PLR2004 - a millisecond
        return f"{seconds * 1e6:.0f} us"
    if seconds == math.inf:
        return f"more than {Histogram().bounds()[-1]:.0f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"

"""SLOWLOG: the latest batches that took long, and where their time went.

An entry has Redis' form: a number, a time in seconds, microseconds in all, and words; then the
address and the name of a client, which are empty here. The words are, for example::

    batch position=416 entries=64 bytes=5312 receive_us=103 sync_us=14022 quorum_us=381 apply_us=402
    reply_us=655
"""

from collections.abc import Sequence
from typing import Final

from ....node.requests.journey import SlowBatch
from ...clients.client_state import ClientState
from ...clients.port_state import PortState
from ...commands.introspection import help_reply
from ...protocol import resp

__all__ = ["STEPS", "slowlog_reply"]

STEPS: Final = ("receive", "sync", "quorum", "apply", "reply")
"""The parts of a batch's way, in order; attributes of `SlowBatch`."""

_USUAL_COUNT: Final = 10
_ALL: Final = -1
_MAX_DIGITS: Final = 18
_MICROSECONDS: Final = 1_000_000


def slowlog_reply(arguments: Sequence[bytes], _client: ClientState, port: PortState) -> bytes:
    """Answer SLOWLOG GET, LEN, RESET or HELP."""
    shown = [each for each in port.gateway.latencies().slow if each.number >= port.slowlog_from]
    match arguments[1].lower():
        case b"get":
            return _get(arguments[2:], shown)
        case b"len":
            return resp.integer(len(shown))
        case b"reset":
            if shown:
                port.slowlog_from = shown[-1].number + 1
            return resp.OK
        case _:
            return help_reply(arguments[0])


def _get(arguments: Sequence[bytes], shown: list[SlowBatch]) -> bytes:
    count = _USUAL_COUNT
    if arguments:
        digits = arguments[0].removeprefix(b"-")
        if len(arguments) > 1 or not digits.isdigit() or len(digits) > _MAX_DIGITS:
            return resp.error("ERR value is not an integer or out of range")
        count = int(arguments[0])
    if count < _ALL:
        return resp.error("ERR count should be greater than or equal to -1")
    newest = shown[::-1] if count == _ALL else shown[::-1][:count]
    return resp.array([_entry(each) for each in newest])


def _entry(slow: SlowBatch) -> bytes:
    words = [f"position={slow.position}", f"entries={slow.entries}", f"bytes={slow.size}"]
    words += [f"{step}_us={_us(getattr(slow, step))}" for step in STEPS]
    return resp.array(
        [
            resp.integer(slow.number),
            resp.integer(slow.timestamp_ms // 1000),
            resp.integer(_us(slow.took)),
            resp.bulk_array([b"batch", *(word.encode() for word in words)]),
            resp.bulk(b""),
            resp.bulk(b""),
        ]
    )


def _us(seconds: float) -> int:
    return round(seconds * _MICROSECONDS)

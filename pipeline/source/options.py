"""Parses the source's options, and narrows the range of the log by Spark's filters."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from ...errors import ConfigurationError
from .columns import columns_of
from .origin import Connect, Origin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .reading import Log

__all__ = ["Bounds", "Request", "parse_options"]

_PARTITION_BYTES: Final = 8 << 20
_MOST_BY_ITSELF: Final = 1024
_MAX_PARTITIONS: Final = 100_000
_MAX_MEMBER: Final = 1 << 30
_END: Final = 1 << 62
_KNOWN: Final = frozenset(
    {
        "path",
        "connect",
        "member",
        "security",
        "table",
        "partitions",
        "startposition",
        "endposition",
        "keyprefix",
        "decoder",
        "pushdown",
        "maxbytespertrigger",
        "snapshot",
    }
)


@attrs.frozen
class Bounds:
    """A part of the log; each pair is half-open.

    Args:
        start: log position; only batches that begin there or later.
        stop: log position; only batches that begin before it.
        first_term: the first leadership term.
        last_term: the last leadership term.
        begin_ms: log time; only batches of this time or later.
        end_ms: log time; only batches before this time.
        prefix: only keys that begin like this.
    """

    start: int = 0
    stop: int = _END
    first_term: int = -1
    last_term: int = _END
    begin_ms: int | None = None
    end_ms: int | None = None
    prefix: bytes = b""

    def within(self, log: Log) -> tuple[int, int]:
        """Return the range of a log's positions within these bounds."""
        start, stop = self.start, self.stop
        if self.first_term > -1 or self.last_term < _END:
            base, end = log.of_term(self.first_term, self.last_term)
            start, stop = max(start, base), min(stop, end)
        if self.begin_ms is not None:
            start = max(start, log.first_at(self.begin_ms))
        if self.end_ms is not None:
            stop = min(stop, log.first_at(self.end_ms))
        return start, stop

    def and_(self, column: str, operator: str, value: object) -> Bounds:
        """Return these bounds narrowed by a filter: ``= < <= > >= prefix`` of a column and a value.

        A filter that does not help changes nothing; Spark filters the rows again in any case.
        """
        if column == "key" and operator in {"=", "prefix"}:
            prefix = _bytes(value)
            return self if prefix is None else attrs.evolve(self, prefix=prefix)
        if column == "timestamp" and isinstance(value, datetime):
            return self._at(operator, _milliseconds(value))
        if not isinstance(value, int) or column not in {"position", "term"}:
            return self
        low, high = -1, _END
        if operator in {"=", ">", ">="}:
            low = value + (operator == ">")
        if operator in {"=", "<", "<="}:
            high = value - (operator == "<")
        if column == "term":
            first, last = max(self.first_term, low), min(self.last_term, high)
            return attrs.evolve(self, first_term=first, last_term=last)
        return attrs.evolve(self, start=max(self.start, low), stop=min(self.stop, high + 1))

    def _at(self, operator: str, milliseconds: int) -> Bounds:
        """Narrow the time to whole milliseconds, rounded so that no matching batch is lost."""
        begin, end = self.begin_ms, self.end_ms
        if operator in {"=", ">", ">="}:
            begin = milliseconds if begin is None else max(begin, milliseconds)
        if operator in {"=", "<", "<="}:
            end = milliseconds + 1 if end is None else min(end, milliseconds + 1)
        return attrs.evolve(self, begin_ms=begin, end_ms=end)


def _milliseconds(moment: datetime) -> int:
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1000)


def _bytes(value: object) -> bytes | None:
    match value:
        case bytes() | bytearray():
            return bytes(value)
        case str():
            return value.encode()
        case _:
            return None


@attrs.frozen
class Request:
    """A parsed request to the source.

    Args:
        origin: the directory of a member or a copy of one, or a running cluster.
        table: one of ``columns.TABLES``.
        partitions: maximum number of pieces that Spark reads; 0 to derive it from the length.
        bounds: the part of the log to read.
        decoder: decoder of payloads, as ``package.module:function``; empty for the usual one.
        pushdown: whether Spark may pass its filters to the source.
        trigger_bytes: bytes of the log in one micro-batch, 0 for no limit.
        snapshot_first: whether to begin with the newest snapshot, as commands, before the log.
    """

    origin: Origin
    table: str
    partitions: int
    bounds: Bounds
    decoder: str
    pushdown: bool
    trigger_bytes: int
    snapshot_first: bool = False

    def pieces(self, start: int, stop: int) -> int:
        """Return the maximum number of pieces for a range of log positions."""
        suitable = min(-(-max(stop - start, 0) // _PARTITION_BYTES), _MOST_BY_ITSELF)
        return self.partitions or max(suitable, 1)


def parse_options(options: Mapping[str, str]) -> Request:
    """Parse the options of the source; their names are case-insensitive.

    Raises:
        ConfigurationError: an option is unknown, missing or out of range.
    """
    unknown = sorted(name for name in options if name.lower() not in _KNOWN)
    if unknown:
        raise ConfigurationError(
            f"option {unknown[0]}: expected one of {', '.join(sorted(_KNOWN))}"
        )
    table = options.get("table") or "commands"
    columns_of(table)
    decoder = options.get("decoder") or ""
    if decoder:
        from ..payloads.decoding import find_decoder  # noqa: PLC0415 - rarely needed, see `source`

        find_decoder(decoder)
    return Request(
        origin=_origin(options),
        table=table,
        partitions=_number(options, "partitions", 0, 1, _MAX_PARTITIONS),
        bounds=Bounds(
            start=_number(options, "startPosition", 0, 0, _END),
            stop=_number(options, "endPosition", _END, 0, _END),
            prefix=(options.get("keyPrefix") or "").encode(),
        ),
        decoder=decoder,
        pushdown=_yes(options.get("pushdown") or "false"),
        trigger_bytes=_number(options, "maxBytesPerTrigger", 0, 0, _END),
        snapshot_first=_snapshot_first(options, table),
    )


def _origin(options: Mapping[str, str]) -> Origin:
    path, connect = options.get("path"), options.get("connect")
    if bool(path) == bool(connect):
        raise ConfigurationError(
            "expected either load(DIRECTORY), a member's or a copy of one, "
            "or the option connect, where members listen for clients"
        )
    if not connect:
        return Path(options["path"])
    from .members import parse_members  # noqa: PLC0415 - likewise

    parse_members(connect)
    member = _number(options, "member", -1, 0, _MAX_MEMBER)
    return Connect(connect, member if member >= 0 else None, options.get("security") or "")


def _snapshot_first(options: Mapping[str, str], table: str) -> bool:
    text = options.get("snapshot")
    if text is None:
        return False
    if text.lower() != "first":
        raise ConfigurationError(f'option snapshot = "{text}": expected first')
    if table != "commands" or options.get("startPosition") is not None:
        raise ConfigurationError(
            "snapshot = first: expected the table commands, and no startPosition"
        )
    return True


def _number(options: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or not least <= int(text) <= most:
        raise ConfigurationError(
            f'option {name} = "{text}": expected a whole number, {least} to {most}'
        )
    return int(text)


def _yes(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ConfigurationError(f'option pushdown = "{text}": expected true or false')
    return text.lower() == "true"

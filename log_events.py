"""Log lines as events: each has a name, fields, and a sentence.

**Why.** Sentences are for people, and names with fields are for programs. A line has both, made in
one place. The names and fields are those of recordings (`recordings.KINDS`) where the same event is
there, so a line of a log is found again in a recording, and the other way round. docs/logs.md lists
all of them.

**How.** `log_event` gives the fields to the standard library's `logging`. They fill the places of
the sentence (``%(name)s``), and the record has them as `fields`, next to its `event`. `HumanLines`
and `JsonLines` make lines of records. A handler of another program sees ordinary records.

**Levels.** DEBUG: each step of an election, each link, each snapshot. INFO: a start, the end of an
election, a stop, and what an operator has ordered. WARNING: look at it by day. ERROR: look now. No
level has a line for each request.
"""

from __future__ import annotations

import json
import logging
import re
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["HumanLines", "JsonLines", "log_event"]

_PLACE: Final = re.compile(r"%\((\w+)\)")
_BARE: Final = re.compile(r"[^\s\"'=\\]+")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

_NO_EVENT: Final = "note"
"""The event of a record that another library has made."""


def log_event(
    log: logging.Logger,
    level: int,
    event: str,
    words: str,
    /,
    *,
    exc_info: bool = False,
    **fields: object,
) -> None:
    """Log an event.

    Args:
        log: the logger.
        level: of :mod:`logging`.
        event: its name; docs/logs.md describes each.
        words: a sentence with places for fields: ``member %(member)d leads``.
        exc_info: add the traceback of the exception that is handled.
        fields: names and values. None may be secret.
    """
    if log.isEnabledFor(level):
        # An empty mapping would count as one argument too many.
        arguments = (fields,) if fields else ()
        extra = {"event": event, "fields": fields}
        log.log(level, words, *arguments, exc_info=exc_info, extra=extra, stacklevel=2)


class _Lines(logging.Formatter):
    """Makes a line of a record.

    Args:
        member: the member of records that name none; None to add nothing.
        partition: the partition of records that name none; None to add nothing.
    """

    def __init__(self, member: int | None = None, partition: int | None = None) -> None:
        super().__init__()
        first = {"member": member, "partition": partition}
        self._first = {name: value for name, value in first.items() if value is not None}

    def _fields_of(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return the fields of a record, its member first."""
        fields: Mapping[str, Any] = getattr(record, "fields", {})
        return self._first | dict(fields)

    def _trace(self, record: logging.LogRecord) -> str:
        return self.formatException(record.exc_info) if record.exc_info else ""


class HumanLines(_Lines):
    """Makes lines to read: time, level, event, sentence, and the fields that it does not have.

    A traceback follows in lines of its own, indented, so that none of them looks like an event.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a line, without its end."""
        event = getattr(record, "event", _NO_EVENT)
        said = {*_PLACE.findall(str(record.msg)), "member"}
        rest = "".join(
            f" {name}={_shown(value)}"
            for name, value in self._fields_of(record).items()
            if name not in said
        )
        line = f"{_time_of(record)} {record.levelname:<7} {event}: {_one_line(record)}{rest}"
        if trace := self._trace(record):
            # Only its own line breaks stay: others, and escape sequences, may be a stranger's.
            line += "".join(f"\n    {_CONTROL.sub(_escaped, each)}" for each in trace.split("\n"))
        return line


class JsonLines(_Lines):
    """Makes one JSON object for each record.

    ``time`` (UTC), ``level`` and ``event`` come first, then the fields, and at last ``message``,
    ``logger`` and, after an exception, ``traceback``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a line, without its end."""
        event = getattr(record, "event", _NO_EVENT)
        line = {"time": _time_of(record), "level": record.levelname, "event": event}
        line |= self._fields_of(record)
        line |= {"message": record.getMessage(), "logger": record.name}
        if trace := self._trace(record):
            line["traceback"] = trace
        return json.dumps(line, separators=(",", ":"), default=str)


def _time_of(record: logging.LogRecord) -> str:
    """Return the time of a record, in UTC: ``2026-01-31T23:59:59.999Z``."""
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _one_line(record: logging.LogRecord) -> str:
    # What a stranger has sent may be in it: no line break of theirs makes a line, and no escape
    # sequence reaches the terminal.
    return _CONTROL.sub(_escaped, record.getMessage())


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


def _shown(value: object) -> str:
    """Return a value as it stands behind ``name=``, in quotes if it would look like several."""
    match value:
        case str():
            return value if _BARE.fullmatch(value) else json.dumps(value)
        case float():
            return f"{value:.6g}"
        case _:
            return json.dumps(value, separators=(",", ":"), default=str)

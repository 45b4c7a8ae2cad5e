"""Log lines without what errors say that are not quorate's own.

A traceback ends with the text of its error. A state machine's may quote a key, a value or a user:
``KeyError: 'alice@example.com'``. So of a traceback the places in the code and the types of the
errors are kept. Errors of quorate keep their text, which never quotes data of clients.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final, cast

from .settings import REMOVED

__all__ = ["without_quotes"]

_HEAD: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z +[A-Z]+ +\w+: ")
"""What each event of the human format begins with, perhaps behind what a journal has added."""

_TRACEBACK: Final = "Traceback (most recent call last):"
_PLACE: Final = re.compile(r'  File ".*", line \d+(, in \S+)?$')
_JOINT: Final = re.compile(r"(During handling of the above|The above exception was the direct)")
_BEFORE: Final = re.compile(r"^(?:.*?\[\d+\]: )?[ |+-]*")
"""What a journal has added, and how deep a line stands."""

_ERROR: Final = re.compile(
    r"((?:\w+\.)*\w*(?:Error|Exception|Group|Exit|Interrupt|Cancelled|Resource|Warning))(: .*)?"
)
"""A type and its text. A further line of a text may look like it only by such a word."""

_OWN: Final = "quorate.errors."


def without_quotes(data: bytes) -> bytes:
    """Return log lines, human or JSON, without the texts of foreign errors in tracebacks."""
    text = data.decode(errors="replace")
    return "".join(_kept(text.splitlines(keepends=True))).encode()


def _kept(lines: list[str]) -> Iterator[str]:
    inside = False
    for line in lines:
        if _HEAD.search(line):
            inside = False
        elif '"traceback":' in line:
            inside = False
            yield _without_quotes_json(line)
            continue
        elif _TRACEBACK in line:
            inside = True
        if not inside:
            yield line
        elif (short := _short(line.rstrip("\n"))) is not None:
            yield short + "\n"


def _without_quotes_json(line: str) -> str:
    before, brace, rest = line.partition("{")
    try:
        fields = cast("dict[str, Any]", json.loads(brace + rest))
        trace = str(fields["traceback"])
    except (ValueError, KeyError):
        return REMOVED + "\n"
    short = (_short(each) for each in trace.splitlines())
    fields["traceback"] = "\n".join(each for each in short if each is not None)
    return before + json.dumps(fields, separators=(",", ":")) + "\n"


def _short(line: str) -> str | None:
    """Return a line of a traceback without an error's text; None if there is nothing to keep."""
    if _TRACEBACK in line or _PLACE.search(line) or _JOINT.search(line):
        return line
    # A line of code, or a further line of an error's text, has no type in front.
    before = _BEFORE.match(line)
    start = 0 if before is None else before.end()
    found = _ERROR.fullmatch(line, start)
    if found is None:
        return None
    name, words = found.groups()
    return line if name.startswith(_OWN) or not words else f"{line[:start]}{name}: {REMOVED}"

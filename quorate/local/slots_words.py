"""The commands that move slots, in words for people who read a log."""

from __future__ import annotations

from typing import Final

from ..errors import WireError
from ..keyvalue.protocol.payload import PayloadParser
from ..keyvalue.slots.history import SLOTS_COMMAND

__all__ = ["slots_in_words_untrusted"]

_HEAD_BYTES: Final = 64
_MOST: Final = 200  # letters of one command; sets of slots may be longer
_ROW_WORDS: Final = 5
_PARSER: Final = PayloadParser()


def slots_in_words_untrusted(payload: bytes) -> str | None:
    """Return a request with QUORATE.SLOTS in words; None for any other request."""
    if SLOTS_COMMAND not in payload[:_HEAD_BYTES].upper():
        return None
    try:
        commands = _PARSER.parse_untrusted(payload)
    except WireError:
        return None
    if not commands or commands[0][0].upper() != SLOTS_COMMAND:
        return None
    return "; ".join(map(_words_of, commands))


def _words_of(words: list[bytes]) -> str:
    if [word.upper() for word in words[:2]] == [SLOTS_COMMAND, b"CHUNK"]:
        rows = words[4:]
        keys = rows[::_ROW_WORDS]
        size = sum(map(len, rows))
        between = f" from {_shown(keys[0])} to {_shown(keys[-1])}" if keys else ""
        words, more = words[:4], f": {len(keys)} rows, {size:,} B{between}"
    else:
        more = ""
    text = " ".join(map(_shown, words))
    return f"{text[:_MOST]}{'...' * (len(text) > _MOST)}{more}"


def _shown(word: bytes) -> str:
    return repr(word[:_MOST])[2:-1]

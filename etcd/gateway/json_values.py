"""Values of JSON, and the texts of Go's errors about them, which clients see in our answers.

`json` of the standard library does the work. Where it finds a mistake, its position is enough to
say what Go's decoder, and so etcd, says about the same input.
"""

from __future__ import annotations

import base64
import json
import re
import string
from typing import Final, Never

from ..codes import Code, EtcdError

__all__ = ["Literal", "bytes_untrusted", "next_value_untrusted", "only_value_untrusted"]

EOF: Final = "unexpected EOF"
_ALPHABET: Final = frozenset(string.ascii_letters + string.digits + "+/")
_GROUP: Final = 4
_LITERALS: Final = ("true", "false", "null")
_SPACE: Final = " \t\r\n"
_BLANK: Final = re.compile(f"[{_SPACE}]*")
_ESCAPES: Final = {
    **{chr(code): f"\\x{code:02x}" for code in (*range(0x20), 0x7F)},
    **{chr(code): "\\" + letter for code, letter in enumerate("abtnvfr", start=7)},
    "\\": "\\\\",
    "'": "\\'",
}
"""How Go shows characters that are not printed as they are."""

_CONTEXTS: Final = {
    "Expecting value": "looking for beginning of value",
    "Expecting property name enclosed in double quotes": (
        "looking for beginning of object key string"
    ),
    "Expecting ':' delimiter": "after object key",
    "Invalid control character at": "in string literal",
    "Invalid \\escape": "in string escape code",
    "Invalid \\uXXXX escape": "in \\u hexadecimal character escape",
}


class Literal(str):
    """A number with a fraction or an exponent, as it was written; no field of ours takes one."""

    __slots__ = ()


class _ConstantError(ValueError):
    """A word that Python takes for a number, and JSON does not."""


def _refuse(word: str) -> Never:
    raise _ConstantError(word)


_DECODER: Final = json.JSONDecoder(parse_float=Literal, parse_constant=_refuse)


def next_value_untrusted(text: str, at: int = 0) -> tuple[object, int] | None:
    """Return the first value from a place on, and where it ends; None if only space is left.

    What comes behind it is not looked at.

    Raises:
        EtcdError: it is no value, or not a whole one.
    """
    blank = _BLANK.match(text, at)
    assert blank is not None, "it matches nothing, too"
    at = blank.end()
    if at == len(text):
        return None
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise EtcdError(Code.INVALID_ARGUMENT, _describe(error)) from None
    except _ConstantError as error:
        raise EtcdError(Code.INVALID_ARGUMENT, _unexpected(str(error)[0], _CONTEXTS[
            "Expecting value"])) from None  # fmt: skip
    except RecursionError:
        raise EtcdError(Code.INVALID_ARGUMENT, "exceeded max depth") from None
    except ValueError:  # Python takes no number with thousands of digits
        words = "json: cannot unmarshal number into Go value of type int64"
        raise EtcdError(Code.INVALID_ARGUMENT, words) from None


def only_value_untrusted(text: str) -> object:
    """Return the value that a text is.

    Raises:
        EtcdError: it is none, or there is something behind it.
    """
    found = next_value_untrusted(text)
    if found is None:
        raise EtcdError(Code.INVALID_ARGUMENT, "unexpected end of JSON input")
    value, end = found
    rest = text[end:].lstrip(_SPACE)
    if rest:
        raise EtcdError(Code.INVALID_ARGUMENT, _unexpected(rest[0], "after top-level value"))
    return value


def _describe(error: json.JSONDecodeError) -> str:
    """Return what Go says where Python says something else."""
    rest = error.doc[error.pos :]
    if not rest.strip(_SPACE) or error.msg == "Unterminated string starting at":
        return EOF
    for literal in _LITERALS:
        # Elsewhere it would be wrong even if it were whole.
        if error.msg == "Expecting value" and rest[0] == literal[0]:
            same = 0
            while rest[same] == literal[same]:
                same += 1
                if same == len(rest):
                    return EOF
            return _unexpected(rest[same], f"in literal {literal} (expecting '{literal[same]}')")
    if context := _CONTEXTS.get(error.msg):
        return _unexpected(rest[0], context)
    inside = _innermost(error.doc[: error.pos])
    return _unexpected(rest[0], "after array element" if inside == "[" else
                       "after object key:value pair")  # fmt: skip


def _innermost(text: str) -> str:
    """Return the bracket that is open at the end of a text."""
    closed = 0
    for each in reversed(text):
        if each in "]}":
            closed += 1
        elif each in "[{":
            if not closed:
                return each
            closed -= 1
    return "{"


def _unexpected(character: str, context: str) -> str:
    return f"invalid character '{_ESCAPES.get(character, character)}' {context}"


def bytes_untrusted(text: str) -> bytes:
    """Decode base64 as Go does: with padding, not that of URLs, line breaks are ignored.

    Raises:
        EtcdError: it is none.
    """
    plain = text.replace("\n", "").replace("\r", "")
    try:
        found = base64.b64decode(plain, validate=True)
    except ValueError:  # as is binascii.Error
        found = None
    if found is None or plain.endswith("==="):  # Python takes a whole group of padding
        words = f"illegal base64 data at input byte {_illegal(text)}"
        raise EtcdError(Code.INVALID_ARGUMENT, words)
    return found


def _illegal(text: str) -> int:
    """Return where Go sees the first mistake in what is no base64."""
    place = seen = 0
    for place, each in enumerate(text):
        if each in "\r\n":
            continue
        if each in _ALPHABET:
            seen += 1
            continue
        # Padding may stand for the last one or two of a group of four.
        if each == "=" and seen % _GROUP >= _GROUP // 2:
            wanted = _GROUP - seen % _GROUP
            padding = text[place : place + wanted]
            if padding == "=" * wanted:
                return place + wanted
            return len(text) if padding == "=" * len(padding) else place
        return place
    return len(text) - seen % _GROUP

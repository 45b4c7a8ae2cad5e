"""What a path answers, before it is written as HTTP."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PLAIN: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"


@attrs.frozen
class Answer:
    """An answer that is there as a whole.

    Args:
        status: of HTTP.
        body: the bytes.
        kind: the media type.
        headers: further headers, names in lower case.
    """

    status: int
    body: bytes = b""
    kind: str = PLAIN
    headers: tuple[tuple[str, str], ...] = ()


@attrs.frozen
class Stream:
    """An answer that goes on until its writer returns, or the other end is gone.

    Args:
        kind: the media type.
        write: calls its argument with the next bytes, again and again.
        headers: further headers, names in lower case.
    """

    kind: str
    write: Callable[[Callable[[bytes], Awaitable[None]]], Awaitable[None]]
    headers: tuple[tuple[str, str], ...] = ()


@attrs.frozen
class Asked:
    """A request, as far as answers depend on it.

    Args:
        path: without the query.
        query: what stands behind the question mark.
        headers: names in lower case; of several with one name the last.
        host: address of the other end, without a port.
    """

    path: str
    query: dict[str, str]
    headers: dict[str, str]
    host: str = ""


def text(status: int, words: str) -> Answer:
    """Return an answer of one line."""
    return Answer(status, words.encode() + b"\n")


def as_json(status: int, value: object) -> Answer:
    """Return an answer in JSON."""
    return Answer(status, json.dumps(value, separators=(",", ":")).encode() + b"\n", JSON)

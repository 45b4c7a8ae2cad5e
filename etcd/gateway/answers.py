"""Whole answers of the gateway, and the forms of its errors."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from ..codes import Code
from .json_replies import to_json

if TYPE_CHECKING:
    from ..codes import EtcdError

__all__ = [
    "JSON_HEADERS",
    "NOT_ALLOWED",
    "NOT_FOUND",
    "Answer",
    "Headers",
    "error_answer",
    "error_line",
    "status_of",
    "text",
]

Headers: TypeAlias = tuple[tuple[str, str], ...]

JSON_HEADERS: Final[Headers] = (
    ("content-type", "application/json"),
    ("grpc-metadata-content-type", "application/grpc"),
)
_JSON: Final = JSON_HEADERS[:1]
_TEXT: Final = (
    ("content-type", "text/plain; charset=utf-8"),
    ("x-content-type-options", "nosniff"),
)

_STATUSES: Final = {
    Code.OK: 200,
    Code.CANCELLED: 408,
    Code.UNKNOWN: 500,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.ABORTED: 409,
    Code.OUT_OF_RANGE: 400,
    Code.UNIMPLEMENTED: 501,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.DATA_LOSS: 500,
    Code.UNAUTHENTICATED: 401,
}


@attrs.frozen
class Answer:
    """A whole answer.

    Args:
        status: of HTTP.
        body: what it contains.
        headers: names and values; the length of the body is not among them.
    """

    status: int
    body: bytes
    headers: Headers = JSON_HEADERS


def text(status: int, words: str) -> Answer:
    """Return an answer in plain text."""
    return Answer(status, f"{words}\n".encode(), _TEXT)


NOT_FOUND: Final = text(404, "Not Found")
NOT_ALLOWED: Final = text(405, "Method Not Allowed")


def status_of(code: Code) -> int:
    """Return the status of HTTP for a code of gRPC."""
    return _STATUSES[code]


def error_answer(error: EtcdError) -> Answer:
    """Return an error as the whole answer, in the form of etcd 3.5.

    etcd 3.6 has no ``error`` any more, and older Patronis look for nothing else.
    """
    body = {"error": error.text, "code": int(error.code), "message": error.text}
    return Answer(status_of(error.code), to_json(body), _JSON)


def error_line(error: EtcdError) -> bytes:
    """Return an error as the last line of a stream."""
    status = status_of(error.code)
    body = {
        "grpc_code": int(error.code),
        "http_code": status,
        "message": error.text,
        "http_status": HTTPStatus(status).phrase,
    }
    return to_json({"error": body}) + b"\n"

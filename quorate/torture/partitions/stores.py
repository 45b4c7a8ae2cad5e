"""What clients work with, and what may become of an operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ...keyvalue.retry import Fate, fate_of_code

if TYPE_CHECKING:
    from ...histories.history import Value

__all__ = [
    "RefusedOperationError",
    "Store",
    "UnknownOperationError",
    "WrongReplyError",
    "refusal",
]


class Store(Protocol):
    """What a client works with."""

    async def run(self, op: str, key: bytes, args: tuple[bytes, ...]) -> Value:
        """Do an operation.

        Raises:
            RefusedOperationError: it has no effect.
            UnknownOperationError: its outcome is not known.
            WrongReplyError: the reply is one that no member may give.
        """
        ...


class RefusedOperationError(Exception):
    """The operation has no effect."""


class UnknownOperationError(Exception):
    """The outcome of the operation is not known."""


class WrongReplyError(Exception):
    """A reply that no member may give."""


def refusal(code: str, text: str) -> Exception:
    """Return what an error reply says of an operation, by its first word."""
    match fate_of_code(code):
        case Fate.NOT_DONE:
            return RefusedOperationError(text)
        case Fate.UNKNOWN:
            return UnknownOperationError(text)
        case _:
            return WrongReplyError(text)

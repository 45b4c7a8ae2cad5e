"""Payloads of one plain command each, taken apart all at once: what a log is mostly made of.

A payload is *plain* if it is one command of up to four arguments, encoded as clients encode it (an
array of bulk strings, lengths without leading zeros), of which name and number of arguments tell
all that the usual decoder tells: operation, the one key, the value, no expiry. numpy walks through
all payloads side by side, an argument at a time, and makes no Python object of any. What is not
plain is left to the decoder, which costs ten times as much for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import numpy as np

from .decoding import pattern_of

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]
    Bytes = npt.NDArray[np.uint8]

__all__ = ["Plain", "plain_untrusted"]

_MOST_ARGUMENTS: Final = 4
_NAME_BYTES: Final = 7
_MOST_DIGITS: Final = 8
_STAR, _DOLLAR, _CR, _LF, _ZERO = b"*$\r\n0"


@attrs.frozen
class Plain:
    """What plain payloads ask for; one row each.

    Args:
        places: which payloads, ascending.
        names: operations.
        operations: of each row, by its place among the names.
        keys: of each row, where it begins and ends in the data; ends before it begins if none.
        values: likewise.
    """

    places: Numbers
    names: list[str | None]
    operations: Numbers
    keys: tuple[Numbers, Numbers]
    values: tuple[Numbers, Numbers]

    def where(self, wanted: npt.NDArray[np.bool_]) -> Plain:
        """Return some of the rows."""
        return Plain(
            self.places[wanted],
            self.names,
            self.operations[wanted],
            (self.keys[0][wanted], self.keys[1][wanted]),
            (self.values[0][wanted], self.values[1][wanted]),
        )


class _Cursor:
    """A place in each of many payloads; `fine` as long as each has held what was expected."""

    def __init__(self, data: Bytes, at: Numbers) -> None:
        self._data = data
        self.at = at.copy()
        self.fine = np.ones(len(at), np.bool_)

    def expect(self, *text: int) -> None:
        """Step over some bytes."""
        for byte in text:
            self.fine &= self._data.take(self.at, mode="clip") == byte
            self.at += 1

    def number(self) -> Numbers:
        """Step over a number and its end of line."""
        begin, value = self.at.copy(), np.zeros(len(self.at), np.int64)
        self.fine &= self._data.take(begin, mode="clip") != _ZERO
        more = np.ones(len(self.at), np.bool_)
        for _ in range(_MOST_DIGITS):
            digit = self._data.take(self.at, mode="clip") - np.uint8(_ZERO)
            more &= digit < 10  # noqa: PLR2004 - what is no digit has wrapped around
            if not more.any():
                break
            value = np.where(more, 10 * value + digit, value)
            self.at += more
        self.fine &= self.at > begin
        self.expect(_CR, _LF)
        return value


def plain_untrusted(data: bytes, begins: Numbers, stops: Numbers) -> Plain:
    """Find the plain ones among payloads, which lie in `data` one behind the other."""
    view = np.frombuffer(data, np.uint8)
    found = _Found(view, len(begins))
    head = _Cursor(view, begins)
    head.expect(_STAR)
    arguments = head.number()
    for number in range(1, _MOST_ARGUMENTS + 1):
        rows = np.flatnonzero(head.fine & (arguments == number))
        if len(rows):
            pieces, fine = _pieces(view, head.at[rows], stops[rows], number)
            found.add(rows[fine], pieces[:, :, fine])
    return found.plain()


def _pieces(
    view: Bytes, at: Numbers, stops: Numbers, number: int
) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Return where so many arguments begin and end, and which payloads are just these."""
    cursor = _Cursor(view, at)
    pieces = np.empty((number, 2, len(at)), np.int64)
    for piece in pieces:
        cursor.expect(_DOLLAR)
        size = cursor.number()
        piece[0] = cursor.at
        cursor.at += size
        piece[1] = cursor.at
        cursor.expect(_CR, _LF)
    short = pieces[0, 1] - pieces[0, 0] <= _NAME_BYTES
    return pieces, cursor.fine & short & (cursor.at == stops)


class _Found:
    """What has been found so far, a row for each payload."""

    def __init__(self, view: Bytes, count: int) -> None:
        self._view = view
        self._names: list[str | None] = []
        self._operations = np.full(count, -1, np.int64)
        self._edges = np.zeros((4, count), np.int64)
        self._edges[0::2] = 1

    def add(self, rows: Numbers, pieces: Numbers) -> None:
        """Note what commands of one number of arguments ask for, if their names tell it."""
        begins, sizes = pieces[0, 0], pieces[0, 1] - pieces[0, 0]
        letters = np.arange(_NAME_BYTES + 1)
        at: Numbers = np.add.outer(begins, letters)
        spelled: Bytes = np.take(self._view, at, mode="clip")
        spelled[letters >= sizes[:, None]] = 0
        spelled[:, _NAME_BYTES] = sizes
        codes: npt.NDArray[np.uint64] = spelled.view(np.uint64).ravel()
        distinct, which = np.unique(codes, return_inverse=True)
        for number, code in enumerate(distinct):
            *name, size = code.tobytes()
            pattern = pattern_of(bytes(name[:size]), len(pieces))
            if pattern is None:
                continue
            same = np.flatnonzero(which == number)
            self._operations[rows[same]] = len(self._names)
            self._names.append(pattern.operation)
            for edge, place in ((0, pattern.key), (2, pattern.value)):
                if place:
                    self._edges[edge : edge + 2, rows[same]] = pieces[place][:, same]

    def plain(self) -> Plain:
        """Return the rows of the payloads that are plain."""
        places = np.flatnonzero(self._operations >= 0)
        key, key_end, value, value_end = self._edges[:, places]
        return Plain(
            places, self._names, self._operations[places], (key, key_end), (value, value_end)
        )

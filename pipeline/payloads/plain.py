"""Decodes payloads of plain commands all at once with numpy; most of a log consists of them.

A command is *plain* under three conditions. It has up to four arguments. It is encoded as clients
encode it: an array of bulk strings, lengths without leading zeros. And its name and number of
arguments determine what the usual decoder returns: operation, one key, the value, no expiry.

numpy walks through all commands in parallel, one argument at a time, and makes no Python objects.
A payload with any other command is left to the decoder, at ten times the cost for each command.

A payload may hold many commands, of one client or of several. It is cut wherever a command may
begin. Bytes inside a value may look like such a beginning. That is detected, since the command
around the value then does not end at a cut.
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
_LOOKED_AT: Final = 1 << 20
"""Bytes searched at once. Larger: in a value of nothing but stars, each byte needs 16 bytes of
memory. Smaller: numpy's fixed cost per call shows."""

_STAR, _DOLLAR, _CR, _LF, _ZERO = b"*$\r\n0"


@attrs.frozen
class Plain:
    """The commands of plain payloads, decoded; one row each.

    Args:
        places: the payload of each row, ascending.
        numbers: the place of each command in its payload.
        names: the operations that occur.
        operations: the operation of each row, as an index into `names`.
        keys: begin and end of each row's key in the data; the end is smaller if there is no key.
        values: begin and end of each row's value, likewise.
    """

    places: Numbers
    numbers: Numbers
    names: list[str | None]
    operations: Numbers
    keys: tuple[Numbers, Numbers]
    values: tuple[Numbers, Numbers]

    def where(self, wanted: npt.NDArray[np.bool_]) -> Plain:
        """Return some of the rows."""
        return Plain(
            self.places[wanted],
            self.numbers[wanted],
            self.names,
            self.operations[wanted],
            (self.keys[0][wanted], self.keys[1][wanted]),
            (self.values[0][wanted], self.values[1][wanted]),
        )


class _Cursor:
    """A place in each of many payloads; `fine` while a payload has held only what was expected."""

    def __init__(self, data: Bytes, at: Numbers) -> None:
        self._data = data
        self.at = at.copy()
        self.fine = np.ones(len(at), np.bool_)

    def expect(self, *text: int) -> None:
        """Step over these bytes."""
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
            more &= digit < 10  # noqa: PLR2004 - other characters have wrapped around
            if not more.any():
                break
            value = np.where(more, 10 * value + digit, value)
            self.at += more
        self.fine &= self.at > begin
        self.expect(_CR, _LF)
        return value


def plain_untrusted(data: bytes, begins: Numbers, stops: Numbers) -> Plain:
    """Find the plain payloads; all payloads lie in `data` one after the other."""
    view = np.frombuffer(data, np.uint8)
    alone = _commands(view, begins, stops)
    if len(alone.places) == len(begins):
        return alone
    heads, owners = _heads(view, begins, stops)
    if len(heads) == len(begins):
        return alone
    ends = stops[owners]
    ends[:-1] = np.where(owners[1:] == owners[:-1], heads[1:], ends[:-1])
    found = _commands(view, heads, ends)
    in_all = np.bincount(owners, minlength=len(begins))
    plain = np.bincount(owners[found.places], minlength=len(begins)) == in_all
    found = found.where(plain[owners[found.places]])
    own = owners[found.places]
    firsts = np.cumsum(in_all) - in_all
    return attrs.evolve(found, places=own, numbers=found.places - firsts[own])


def _heads(view: Bytes, begins: Numbers, stops: Numbers) -> tuple[Numbers, Numbers]:
    """Return where commands may begin, including each payload's first one, and their payloads."""
    own = np.arange(len(begins), dtype=np.int64)
    at = np.concatenate([_marks(view, begin) for begin in range(0, len(view), _LOOKED_AT)])
    owners = np.searchsorted(begins, at, side="right") - 1
    inside = (owners >= 0) & (at > begins[owners]) & (at < stops[owners])
    heads, whose = np.concatenate((begins, at[inside])), np.concatenate((own, owners[inside]))
    order = np.lexsort((heads, whose))
    return heads[order], whose[order]


def _marks(view: Bytes, begin: int) -> Numbers:
    """Return where, in a piece of the data, a command may follow another one."""
    at: Numbers = begin + np.flatnonzero(view[begin : begin + _LOOKED_AT] == _STAR)
    for step, byte in ((4, _DOLLAR), (3, _LF), (2, _CR), (-1, _LF), (-2, _CR)):
        at = at[view.take(at + step, mode="clip") == byte]
    return at


def _commands(view: Bytes, begins: Numbers, stops: Numbers) -> Plain:
    """Find the pieces that are exactly one plain command."""
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
    """Return where `count` arguments begin and end, and which payloads hold exactly these."""
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
    """The results so far, a row for each payload."""

    def __init__(self, view: Bytes, count: int) -> None:
        self._view = view
        self._names: list[str | None] = []
        self._operations = np.full(count, -1, np.int64)
        self._edges = np.zeros((4, count), np.int64)
        self._edges[0::2] = 1

    def add(self, rows: Numbers, pieces: Numbers) -> None:
        """Add the commands with one number of arguments whose names determine their meaning."""
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
        numbers = np.zeros(len(places), np.int64)
        operations = self._operations[places]
        return Plain(places, numbers, self._names, operations, (key, key_end), (value, value_end))

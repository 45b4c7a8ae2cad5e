"""Tokens of logins, and what each member must make of them.

A token that was given is good at every member, whichever gave it and whatever has been killed or
loaded since. It is so for its whole life, and a minute after that for none. Nobody else has a
token. Times are judged only while all clocks are right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from ...etcd.access.tokens import TOKEN_SECONDS
from ...etcd.keyspace.tokens import LIFE_MS
from .book import SLACK_S

if TYPE_CHECKING:
    from random import Random

    from .book import Book

MADE_UP: Final = 0.1
"""Part of the tokens that nobody was given."""


@attrs.define
class _Given:
    name: bytes
    until: float
    shown: float


class Logins:
    """What clients were given, and when they have shown it.

    Args:
        book: takes note of trouble.
    """

    def __init__(self, book: Book) -> None:
        self._book = book
        self._given: dict[str, _Given] = {}

    def give(self, token: str, name: bytes, asked_at: float, now: float) -> None:
        """Note that a member has given a token; it was asked for at a time."""
        self._given[token] = _Given(name, asked_at + TOKEN_SECONDS, now)

    def draw(self, rng: Random) -> str:
        """Return a token to show."""
        if not self._given or rng.random() < MADE_UP:
            return rng.randbytes(16).hex()
        return rng.choice([*self._given])

    def judge(self, token: str, name: bytes | None, now: float) -> None:
        """Note what a member made of a token: whose it is, or None if it was refused."""
        given = self._given.get(token)
        if given is None:
            if name is not None:
                self._complain(f"{token} was given to nobody, and is that of {name!r}")
        elif name is None:
            if now < given.until - SLACK_S and self._book.true_clocks():
                self._complain(f"{token} was refused at {now}, and had to last until {given.until}")
        elif name != given.name:
            self._complain(f"{token} of {given.name!r} is that of {name!r}")
        elif now > (end := given.shown + LIFE_MS / 1000 + SLACK_S) and self._book.true_clocks():
            self._complain(f"{token} was taken at {now}, and had to end at {end}")
        else:
            given.shown = now

    def _complain(self, words: str) -> None:
        self._book.trouble.append(f"Token: {words}")

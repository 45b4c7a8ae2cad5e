"""Facts about clients: what they ask for, and what they are answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from .facts import Point


@attrs.frozen
class Asked:
    """A client asks for something; queries have numbers as commands have."""

    serial: int


@attrs.frozen
class Answered:
    """A client was given a reply.

    Args:
        serial: to what.
        point: where in the log it took effect.
        query: it was a query.
    """

    serial: int
    point: Point
    query: bool


@attrs.frozen
class Refused:
    """A client was told that its command was not done and never will be."""

    serial: int

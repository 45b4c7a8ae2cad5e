"""What a leader knows of another member during its term."""

from __future__ import annotations

import math

import attrs


@attrs.define(eq=False)
class Follower:
    """What the leader knows of another member in this term.

    Attributes:
        match: its durable position, as reported for our term: a proven common prefix.
        ready: our term is durably in its recording log.
        heard_at: when it last reported a position for our term, or since then sent a part of a
            message (trio's clock).
        confirm_id: the highest confirmation number that it echoed.
        live: it gets every batch on our link to it.
        join_position: where its live log begins, None before it asked.
    """

    member_id: int
    match: int = 0
    ready: bool = False
    heard_at: float = -math.inf
    confirm_id: int = 0
    live: bool = False
    join_position: int | None = None

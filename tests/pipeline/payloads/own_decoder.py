"""A decoder as a user may write one, for a service whose payloads are an operation and a number."""

from __future__ import annotations


def decode(
    payload: bytes, flags: int, timestamp_ms: int
) -> list[tuple[int, str, bytes | None, bytes, int | None]]:
    """Decode one payload."""
    operation, _, value = payload.partition(b" ")
    return [(0, operation.decode(), None, value, None)]

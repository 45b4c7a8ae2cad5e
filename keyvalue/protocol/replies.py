"""Splits replies that this program has encoded itself; so nothing is checked."""

from typing import Final

__all__ = ["end_of_reply", "split_array"]

_WIDTHS: Final = {b"*": 1, b"~": 1, b">": 1, b"%": 2}


def split_array(reply: bytes) -> list[bytes] | None:
    """Return the encoded elements of an encoded array; None if the reply is not an array."""
    if reply[:1] != b"*" or reply[1:2] == b"-":
        return None
    at = reply.index(b"\r\n") + 2
    elements: list[bytes] = []
    for _ in range(int(reply[1 : at - 2])):
        end = end_of_reply(reply, at)
        elements.append(reply[at:end])
        at = end
    return elements


def end_of_reply(data: bytes, at: int) -> int:
    """Return the end of the reply that begins at `at`."""
    left = 1
    while left:
        head, end = data[at : at + 1], data.index(b"\r\n", at) + 2
        left -= 1
        if head in (b"$", b"=", b"!"):
            length = int(data[at + 1 : end - 2])
            at = end + length + 2 if length >= 0 else end
        else:
            left += max(int(data[at + 1 : end - 2]), 0) * _WIDTHS[head] if head in _WIDTHS else 0
            at = end
    return at

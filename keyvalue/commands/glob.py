r"""Redis's glob patterns (KEYS, SCAN MATCH, COMMAND LIST), compiled to regular expressions.

``*`` matches any run of bytes, ``?`` any byte, ``[abc]`` ``[a-z]`` ``[^a]`` a class, ``\x`` the
byte x. The corner cases are Redis's own: an unclosed class ends with the pattern, ``[]`` matches
nothing, a range may be given backwards, and only ``*`` matches the empty key.

**Why atomic groups.** The naive translation of ``*`` is ``.*``. It backtracks: ``*a*a*a*b`` takes
the length of the key to the fourth power, and could hold up a member. Here the text behind a star
is matched at its first place, and that choice is never reconsidered. This loses no match, and each
star costs time linear in the key.
"""

import re
from collections.abc import Callable
from typing import Final

from ..limits import MAX_PATTERN_BYTES
from ..protocol import resp
from ..protocol.resp import CommandError

_TOO_LONG: Final = resp.error(f"ERR a pattern may have {MAX_PATTERN_BYTES} bytes")
_SPECIAL: Final = re.compile(rb"[*?\[\\]")
_CLOSE: Final = ord("]")
_ESCAPE: Final = ord("\\")
_DASH: Final = ord("-")


def matcher(pattern: bytes) -> Callable[[bytes], bool]:
    """Compile a pattern to a predicate on whole keys.

    Raises:
        CommandError: the pattern is too long.
    """
    if len(pattern) > MAX_PATTERN_BYTES:
        raise CommandError(_TOO_LONG)
    if pattern == b"*":
        return lambda _key: True
    if not pattern:
        return lambda key: not key
    matches = re.compile(_translate(pattern), re.DOTALL).fullmatch
    return lambda key: bool(key) and matches(key) is not None


def literal_prefix(pattern: bytes) -> bytes:
    """Return the longest prefix without special bytes; every matching key begins with it."""
    found = _SPECIAL.search(pattern)
    return pattern[: found.start()] if found else pattern


def _translate(pattern: bytes) -> bytes:
    segments = [b""]
    at = 0
    while at < len(pattern):
        match pattern[at : at + 1]:
            case b"*":
                segments.append(b"")
                at += 1
            case b"?":
                segments[-1] += b"."
                at += 1
            case b"[":
                text, at = _class(pattern, at + 1)
                segments[-1] += text
            case byte:
                if byte == b"\\" and at + 1 < len(pattern):
                    at += 1
                segments[-1] += re.escape(pattern[at : at + 1])
                at += 1
    first, *others = segments
    if not others:
        return first
    runs = b"".join(b"(?>.*?%b)" % segment for segment in others[:-1] if segment)
    return first + runs + b".*" + others[-1]


def _class(pattern: bytes, at: int) -> tuple[bytes, int]:
    """Translate the class that begins at `at`, after ``[``; return it and the place behind it."""
    inverted = pattern[at : at + 1] == b"^"
    at += inverted
    members: set[int] = set()
    while at < len(pattern) and pattern[at] != _CLOSE:
        if pattern[at] == _ESCAPE and at + 1 < len(pattern):
            members.add(pattern[at + 1])
            at += 2
        elif at + 2 < len(pattern) and pattern[at + 1] == _DASH:
            low, high = sorted((pattern[at], pattern[at + 2]))
            members.update(range(low, high + 1))
            at += 3
        else:
            members.add(pattern[at])
            at += 1
    listed = b"".join(b"\\x%02x" % member for member in sorted(members))
    if not listed:
        return (b"." if inverted else b"(?!)"), at + 1
    return (b"[^%b]" if inverted else b"[%b]") % listed, at + 1

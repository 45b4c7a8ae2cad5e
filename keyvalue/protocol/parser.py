r"""The request parser: hostile bytes from a client's socket become commands, or an error.

Everything behind this file trusts what comes out: arrays of bulk strings in their one canonical
encoding. They are safe to record and to replicate.

The fast way
    :func:`~..native.resp_reader.split_untrusted` takes the *plain* commands at the beginning of a
    chunk: whole arrays of bulk strings, each header in its canonical form. Nearly all chunks are
    nothing else.

The slow way
    :class:`CommandScanner` takes everything else: an incomplete command, an inline command
    (``PING\r\n``), too many arguments, or wrong bytes. It reads headers only and remembers where it
    is. So it takes time linear in the bytes, however they are cut. Wrong bytes are reported as soon
    as they are seen, with Redis's error texts.

Memory
    Neither way allocates memory for what a header claims. ``*4294967295\r\n`` costs its twelve
    bytes.

Caveat
    Redis ignores the two bytes after a bulk string; here they must be CRLF.
"""

import re
from typing import Final, TypeAlias, cast

import attrs

from ...errors import OversizedRequestError, WireError
from ..limits import MAX_ARGUMENTS
from ..native.resp_reader import split_untrusted
from .resp import pack

__all__ = ["BEFORE_LOGIN", "CommandParser", "CommandScanner", "ParserLimits", "Taken"]

Arguments: TypeAlias = list[bytes]
Taken: TypeAlias = tuple[list[Arguments], bytes]
"""Commands, and their encodings as arrays of bulk strings, joined."""

NOTHING: Final[Taken] = ([], b"")

_ARRAY: Final = ord("*")
_BULK: Final = ord("$")
# Numbers in their canonical form only: what is recorded has one encoding.
_LENGTH: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_BULK_HEAD: Final = re.compile(rb"\$(0|[1-9][0-9]{0,18})\r\n").match
_MAX_HEADER_BYTES: Final = 32  # more than a type byte, a sign, 19 digits and CRLF
_MAX_INLINE_BYTES: Final = 64 * 1024  # Redis: PROTO_INLINE_MAX_SIZE


@attrs.frozen
class ParserLimits:
    """Bounds of one command.

    Args:
        request_bytes: length of a bulk string, and of a whole encoded command.
        array_elements: arguments of a command (Redis: 1024 * 1024).
        before_login: these are the limits of a client that has to log in first; errors say so.
    """

    request_bytes: int = 32 * 1024 * 1024
    array_elements: int = MAX_ARGUMENTS
    before_login: bool = False


BEFORE_LOGIN: Final = ParserLimits(16 * 1024, 10, before_login=True)
"""Redis' limits of a client that has to log in first, there of one bulk string. Smaller, and a
login with a long token is refused; larger, and strangers take more memory."""


_MAY_LET_IN: Final = frozenset((b"auth", b"hello", b"reset"))


class CommandScanner:
    """The slow way: finds the end of the next command, and resumes where the bytes ran out.

    Append to `buffer`, then call :meth:`next_untrusted` until it returns None.
    """

    __slots__ = ("_at", "_left", "_limits", "_start", "_wanted", "buffer")

    def __init__(self, limits: ParserLimits) -> None:
        self.buffer = bytearray()
        self._limits = limits
        self._start = 0  # where the present command begins
        self._at = 0  # where reading goes on: at a header, or in a line
        self._left = 0  # bulk strings still to come; at 0 a command begins
        # Below this length of the buffer, looking again is pointless. A value of 30 MB that arrives
        # in small pieces would otherwise be looked at for each piece.
        self._wanted = 1

    def next_untrusted(self) -> bytes | None:
        """Return the bytes of the next command, an array or an inline line; None if incomplete.

        Raises:
            WireError: the bytes are not a command, or it is too large; in Redis's words.
        """
        while len(self.buffer) >= self._wanted:
            if self._left:
                complete = self._bulks_untrusted()
            elif self.buffer[self._start] == _ARRAY:
                complete = self._array_untrusted()
            else:
                complete = self._line_untrusted()
            if complete:
                return self._cut()
        return None

    def rest(self) -> bytes:
        """Return the bytes behind the last command that was returned."""
        with memoryview(self.buffer) as view:
            return bytes(view[self._start :])

    def _cut(self) -> bytes:
        # Through a view, because slicing a bytearray would copy the command twice.
        with memoryview(self.buffer) as view:
            command = bytes(view[self._start : self._at])
        self._start = self._at
        self._wanted = self._at + 1
        return command

    def compact(self) -> None:
        """Free the memory of the commands that were returned."""
        # Once for all commands of a chunk: each deletion moves the rest of the buffer.
        del self.buffer[: self._start]
        self._at -= self._start
        self._wanted -= self._start
        self._start = 0

    def _array_untrusted(self) -> bool:
        """Read the header of a command; an empty array is skipped, as in Redis."""
        # Redis words its errors so: "mbulk" for a long header, "multibulk" for a wrong one.
        count = self._length_untrusted("mbulk", "multibulk")
        if count is None:
            return False
        # Refused by its header: the arguments are neither waited for nor kept.
        if count > (most := self._limits.array_elements):
            if self._limits.before_login:
                raise WireError("Protocol error: unauthenticated multibulk length")
            raise WireError(f"Protocol error: invalid multibulk length, {most} is the most")
        # Redis takes a negative count for an empty array.
        self._left = max(count, 0)
        if not self._left:
            self._start = self._at
        return False

    def _bulks_untrusted(self) -> bool:
        """Skip whole arguments; True after the last one."""
        # The loop of the slow way: local names, and one regular expression for each argument. It
        # stops at whatever is unusual; `_bulk_wants_untrusted` finds out what that is.
        buffer, at, left = self.buffer, self._at, self._left
        limit = min(len(buffer), self._start + self._limits.request_bytes)
        while left:
            head = _BULK_HEAD(buffer, at)
            if head is None:
                break
            end = head.end() + int(head[1]) + 2
            if end > limit or not buffer.startswith(b"\r\n", end - 2):
                break
            at = end
            left -= 1
        self._at, self._left = at, left
        if left:
            self._wanted = self._bulk_wants_untrusted(at)
        return not left

    def _bulk_wants_untrusted(self, head: int) -> int:
        """Return the length of the buffer from which the argument at `head` is complete.

        Raises:
            WireError: it is malformed, or too large.
        """
        if len(self.buffer) == head:
            return head + 1
        if self.buffer[head] != _BULK:
            found = self.buffer[head : head + 1].decode("ascii", "replace")
            raise WireError(f"Protocol error: expected '$', got '{found}'")
        length = self._length_untrusted("bulk", "bulk")
        if length is None:
            return len(self.buffer) + 1
        end = self._at + length + 2
        self._at = head  # the argument is skipped later, as a whole
        most = self._limits.request_bytes
        if self._limits.before_login and max(length, end - self._start) > most:
            raise WireError("Protocol error: unauthenticated bulk length")
        if not 0 <= length <= most:
            raise WireError("Protocol error: invalid bulk length")
        if end - self._start > most:
            raise WireError("Protocol error: too big request")
        # It is all there, and the loop did not skip it: only its last two bytes can be wrong.
        if len(self.buffer) >= end:
            raise WireError("Protocol error: expected CRLF after a bulk string")
        return end

    def _length_untrusted(self, short: str, long: str) -> int | None:
        """Parse the number of the header at `_at` and step behind it; None if it is incomplete."""
        end = self.buffer.find(b"\r\n", self._at, self._at + _MAX_HEADER_BYTES)
        if end < 0:
            if len(self.buffer) - self._at >= _MAX_HEADER_BYTES:
                raise WireError(f"Protocol error: too big {short} count string")
            self._wanted = len(self.buffer) + 1
            return None
        digits = self.buffer[self._at + 1 : end]
        if _LENGTH.fullmatch(digits) is None:
            raise WireError(f"Protocol error: invalid {long} length")
        self._at = end + 2
        self._wanted = self._at + 1
        return int(digits)

    def _line_untrusted(self) -> bool:
        # As in Redis, a bare LF ends an inline command; the CR is stripped with other blanks.
        end = self.buffer.find(b"\n", self._at)
        most = min(_MAX_INLINE_BYTES, self._limits.request_bytes)
        if (end if end >= 0 else len(self.buffer)) - self._start > most:
            raise WireError("Protocol error: too big inline request")
        if end < 0:
            self._at = len(self.buffer)  # the part without LF is not searched again
            self._wanted = self._at + 1
            return False
        self._at = end + 1
        return True


class CommandParser:
    """Turns what one connection receives into commands.

    Attributes:
        failure: set when the client broke the protocol, or was refused. Commands before it are
            good, bytes after it have no meaning, and the connection must end.
        incomplete: the beginning of a command that is not whole yet.
    """

    __slots__ = ("_limits", "failure", "incomplete")

    def __init__(self, limits: ParserLimits) -> None:
        self._limits = limits
        self.incomplete: CommandScanner | None = None
        self.failure: WireError | OversizedRequestError | None = None

    @property
    def waiting_bytes(self) -> int:
        """Length of the incomplete command."""
        return len(self.incomplete.buffer) if self.incomplete is not None else 0

    def take_untrusted(self, data: bytes) -> Taken:
        """Take data, not empty; return the commands that are whole now. See `failure`."""
        if self.incomplete is not None:
            return self._resume_untrusted(self.incomplete, data)
        # Usually all of it is plain: then the chunk itself is the encoding, and nothing is copied.
        commands, end = split_untrusted(data, MAX_ARGUMENTS)
        if end == len(data):
            return commands, data
        more, encoded = self._scan_untrusted(CommandScanner(self._limits), data[end:])
        return commands + more, data[:end] + encoded

    def take_before_login_untrusted(self, data: bytes) -> tuple[Taken, bytes]:
        """Take data of a client that has to log in first.

        Returns:
            The commands up to the first that may let it in, and the bytes behind that: they must
            not be looked at by the limits of before.
        """
        scanner = self.incomplete or CommandScanner(BEFORE_LOGIN)
        scanner.buffer += data
        taken: list[Arguments] = []
        encoded: list[bytes] = []
        self.incomplete = None
        try:
            while (command := scanner.next_untrusted()) is not None:
                for arguments in self._parsed_untrusted(command):
                    taken.append(arguments)
                    encoded.append(_encoding(command, arguments))
                    if arguments[0].lower() in _MAY_LET_IN:
                        return (taken, b"".join(encoded)), scanner.rest()
        except WireError as wrong:
            self._fail(wrong)
        else:
            scanner.compact()
            self.incomplete = scanner if scanner.buffer else None
        return (taken, b"".join(encoded)), b""

    def _resume_untrusted(self, scanner: CommandScanner, data: bytes) -> Taken:
        """Complete the incomplete command; the bytes behind it may go the fast way again."""
        scanner.buffer += data
        try:
            first = scanner.next_untrusted()
            if first is None:
                return NOTHING
            commands = self._parsed_untrusted(first)
        except WireError as wrong:
            return self._fail(wrong)
        # Only the first command needed the scanner. In a stream of commands each chunk ends in the
        # middle of one, and without this all commands would go the slow way from then on.
        self.incomplete = None
        encoded = b"".join([_encoding(first, arguments) for arguments in commands])
        rest = scanner.rest()
        if not rest:
            return commands, encoded
        more = self.take_untrusted(rest)
        return commands + more[0], encoded + more[1]

    def _scan_untrusted(self, scanner: CommandScanner, data: bytes) -> Taken:
        scanner.buffer += data
        commands: list[Arguments] = []
        encoded: list[bytes] = []
        try:
            while (command := scanner.next_untrusted()) is not None:
                for arguments in self._parsed_untrusted(command):
                    commands.append(arguments)
                    encoded.append(_encoding(command, arguments))
        except WireError as wrong:
            self._fail(wrong)  # the commands before it are executed all the same
        else:
            scanner.compact()
            self.incomplete = scanner if scanner.buffer else None
        return commands, b"".join(encoded)

    def _parsed_untrusted(self, command: bytes) -> list[Arguments]:
        """Parse one command; none for an empty line."""
        # The scanner has found the end of the array, so the fast way takes all of it.
        if command[0] == _ARRAY:
            return split_untrusted(command, self._limits.array_elements)[0]
        arguments = split_line_untrusted(command)
        return [arguments] if arguments else []

    def _fail(self, wrong: WireError) -> Taken:
        self.failure = wrong
        self.incomplete = None
        return NOTHING


def _encoding(command: bytes, arguments: Arguments) -> bytes:
    """Encode a command as an array; one that arrived as an array is encoded already."""
    return command if command[0] == _ARRAY else pack(tuple(arguments))


# This is sdssplitargs of Redis: a quote may begin in the middle of an argument, and its end is the
# end of the argument. Every character fits one branch only, so nothing is matched twice.
# Possessive quantifiers would express that, but match wrongly in Python 3.11.2 of Debian 12.
_ARGUMENT: Final = re.compile(
    rb"""([^\s"']*)(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\'|\\(?!'))*)')?(?:\s+|\Z)""",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


def split_line_untrusted(line: bytes) -> Arguments:
    """Split an inline command into arguments; none for an empty line.

    Raises:
        WireError: a quote is not closed, or something follows it.
    """
    line = line.strip()
    arguments: Arguments = []
    at = 0
    while at < len(line):
        found = _ARGUMENT.match(line, at)
        if found is None:
            raise WireError("Protocol error: unbalanced quotes in request")
        plain, double, single = found.groups()
        argument = cast("bytes", plain)
        if double is not None:
            argument += _ESCAPE.sub(_unescape, double)
        elif single is not None:
            argument += single.replace(b"\\'", b"'")
        arguments.append(argument)
        at = found.end()
    return arguments


def _unescape(found: re.Match[bytes]) -> bytes:
    code, other = found.groups()
    return bytes.fromhex(code.decode()) if code is not None else _ESCAPED.get(other, other)

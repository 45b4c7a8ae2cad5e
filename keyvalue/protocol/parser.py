r"""From hostile bytes to commands: what stands between a client's socket and everything else.

Bytes go one of two ways here:

- **The fast way**, :func:`~..native.resp_reader.split_untrusted`, for the plain commands that a
  chunk begins with: whole arrays of bulk strings, each header in its one canonical form.
- **The slow way**, :class:`CommandScanner`, for everything else: an incomplete command, an inline
  command (``PING\r\n``), an array of 100,000 arguments, or something wrong. It reads headers
  only, remembers where it is, and so takes time linear in the bytes however they are cut. It
  finds the ends of commands, and wrong bytes as soon as they are seen, in the words of Redis.

Neither allocates memory for what a header claims: ``*4294967295\r\n`` costs twelve bytes. What
comes out of either is safe to record and to replicate: arrays of bulk strings in their one
canonical encoding.

Caveat: Redis does not look at the two bytes after a bulk string; here they must be CRLF.
"""

import re
from typing import Final, TypeAlias, cast

import attrs

from ...errors import OversizedRequestError, WireError
from ..limits import MAX_ARGUMENTS
from ..native.resp_reader import split_untrusted
from .resp import pack

__all__ = ["CommandParser", "CommandScanner", "ParserLimits", "Taken"]

Arguments: TypeAlias = list[bytes]
Taken: TypeAlias = tuple[list[Arguments], bytes]
"""Commands, and the encodings of them as arrays of bulk strings, joined."""

NOTHING: Final[Taken] = ([], b"")

_ARRAY: Final = ord("*")
_BULK: Final = ord("$")
_LENGTH: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_BULK_HEAD: Final = re.compile(rb"\$(0|[1-9][0-9]{0,18})\r\n").match
_MAX_HEADER_BYTES: Final = 32
_MAX_INLINE_BYTES: Final = 64 * 1024  # Redis: PROTO_INLINE_MAX_SIZE


@attrs.frozen
class ParserLimits:
    """What one command may claim.

    Args:
        request_bytes: a bulk string, and a whole command as encoded.
        array_elements: arguments of a command (Redis: 1024 * 1024).
    """

    request_bytes: int = 32 * 1024 * 1024
    array_elements: int = MAX_ARGUMENTS


class CommandScanner:
    """The slow way: finds the end of the next command, and resumes where the bytes ran out.

    Append to `buffer`, then call :meth:`next_untrusted` until it returns None.
    """

    __slots__ = ("_at", "_left", "_limits", "_start", "_wanted", "buffer")

    def __init__(self, limits: ParserLimits) -> None:
        self.buffer = bytearray()
        self._limits = limits
        self._start = 0  # of the command that is being read
        self._at = 0  # of what is read next: a header, or the rest of a line
        self._left = 0  # bulk strings still to come; 0: a command begins
        self._wanted = 1  # length of the buffer below which looking again is pointless

    def next_untrusted(self) -> bytes | None:
        """Return the bytes of the next command, an array or an inline line; None if incomplete.

        Raises:
            WireError: what comes next is no command, or too large; in the words of Redis.
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
        """Return what follows the last command that was returned."""
        with memoryview(self.buffer) as view:
            return bytes(view[self._start :])

    def _cut(self) -> bytes:
        with memoryview(self.buffer) as view:
            command = bytes(view[self._start : self._at])
        self._start = self._at
        self._wanted = self._at + 1
        return command

    def compact(self) -> None:
        """Give back the memory of the commands that were returned."""
        del self.buffer[: self._start]
        self._at -= self._start
        self._wanted -= self._start
        self._start = 0

    def _array_untrusted(self) -> bool:
        """Read the head of a command. An empty array is passed over, as by Redis."""
        count = self._length_untrusted("mbulk", "multibulk")
        if count is None:
            return False
        if count > (most := self._limits.array_elements):
            raise WireError(f"Protocol error: invalid multibulk length, {most} is the most")
        self._left = max(count, 0)
        if not self._left:
            self._start = self._at
        return False

    def _bulks_untrusted(self) -> bool:
        """Pass over whole arguments; True after the last."""
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
        """Find how long the buffer must be before the argument at `head` can be looked at again."""
        if len(self.buffer) == head:
            return head + 1
        if self.buffer[head] != _BULK:
            found = self.buffer[head : head + 1].decode("ascii", "replace")
            raise WireError(f"Protocol error: expected '$', got '{found}'")
        length = self._length_untrusted("bulk", "bulk")
        if length is None:
            return len(self.buffer) + 1
        end = self._at + length + 2
        self._at = head
        if not 0 <= length <= self._limits.request_bytes:
            raise WireError("Protocol error: invalid bulk length")
        if end - self._start > self._limits.request_bytes:
            raise WireError("Protocol error: too big request")
        if len(self.buffer) >= end:
            raise WireError("Protocol error: expected CRLF after a bulk string")
        return end

    def _length_untrusted(self, short: str, long: str) -> int | None:
        """Read the number of the header at `_at` and step behind it; None if it is incomplete."""
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
        end = self.buffer.find(b"\n", self._at)
        if (end if end >= 0 else len(self.buffer)) - self._start > _MAX_INLINE_BYTES:
            raise WireError("Protocol error: too big inline request")
        if end < 0:
            self._at = len(self.buffer)
            self._wanted = self._at + 1
            return False
        self._at = end + 1
        return True


class CommandParser:
    """What one connection received, as commands.

    Attributes:
        failure: set when the client broke the protocol, or was refused: what was taken before is
            good, nothing after it can be, and the connection must end.
        incomplete: what has come of a command that is not whole yet.
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
        """Take the commands that are whole now; data is not empty. See `failure`."""
        if self.incomplete is not None:
            return self._resume_untrusted(self.incomplete, data)
        commands, end = split_untrusted(data, MAX_ARGUMENTS)
        if end == len(data):
            return commands, data
        more, encoded = self._scan_untrusted(CommandScanner(self._limits), data[end:])
        return commands + more, data[:end] + encoded

    def _resume_untrusted(self, scanner: CommandScanner, data: bytes) -> Taken:
        """Finish the incomplete command; what follows it may go the fast way again."""
        scanner.buffer += data
        try:
            first = scanner.next_untrusted()
            if first is None:
                return NOTHING
            commands = self._parsed_untrusted(first)
        except WireError as wrong:
            return self._fail(wrong)
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
            self._fail(wrong)
        else:
            scanner.compact()
            self.incomplete = scanner if scanner.buffer else None
        return commands, b"".join(encoded)

    def _parsed_untrusted(self, command: bytes) -> list[Arguments]:
        """One command or none: a line may be empty."""
        if command[0] == _ARRAY:
            return split_untrusted(command, self._limits.array_elements)[0]
        arguments = split_line_untrusted(command)
        return [arguments] if arguments else []

    def _fail(self, wrong: WireError) -> Taken:
        self.failure = wrong
        self.incomplete = None
        return NOTHING


def _encoding(command: bytes, arguments: Arguments) -> bytes:
    """Return a command as an array; one that came as such is encoded in the only way there is."""
    return command if command[0] == _ARRAY else pack(tuple(arguments))


# sdssplitargs of Redis: a quote may begin in the middle of an argument, and ends it. Each character
# fits one branch only, so that there is one way to match; possessive quantifiers, which would say
# it, match wrongly in the Python 3.11.2 of Debian 12.
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

"""Figures of one client port, as INFO, LATENCY and Prometheus show them.

They change once for all that a client, or a turn of the port, has sent together; what they cost is
shared by many commands.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from ...metrics import Histogram
from ...node.requests.request import RequestKind
from ..commands.table import lookup
from ..native.resp_reader import cut_replies_untrusted

__all__ = ["KINDS", "UNKNOWN", "Counters"]

UNKNOWN: Final = "unknown"
"""What commands are counted as that are in no table: clients may invent any number of names."""

KINDS: Final = {
    RequestKind.COMMAND: "write",
    RequestKind.QUERY: "read",
    RequestKind.CONTROL: "admin",
}
"""The word for what a request was, by its kind. ``admin`` is also what a connection answers by
itself."""

_KNOWN_SPELLINGS: Final = 8192
"""Spellings of names that are remembered. Fewer: clients that use many make us look names up again
and again. More: strangers can fill more memory."""

_MAX_ERROR_WORDS: Final = 64
"""First words of errors that are told apart; all further ones count as `UNKNOWN`. Fewer: some of
ours would not be seen. More: a scrape could get longer and longer."""


class _Names(dict[bytes, str]):
    """The name of a command for each way to spell it."""

    def __missing__(self, spelling: bytes) -> str:
        spec = lookup(spelling)
        if len(self) >= _KNOWN_SPELLINGS:
            self.clear()
        self[spelling] = name = UNKNOWN if spec is None else spec.name
        return name


_NAMES: Final = _Names()


def _durations() -> dict[str, Histogram]:
    return {name: Histogram() for name in ("read", "write", "admin")}


@attrs.define(eq=False)
class Counters:
    """Figures since the start of the member, or since CONFIG RESETSTAT."""

    connections: int = 0
    refused_connections: int = 0
    commands: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    protocol_errors: int = 0
    slow_clients: int = 0
    refused_clients: int = 0
    closed_strangers: int = 0
    redirections: int = 0
    failed_handshakes: int = 0
    stale_reads: int = 0
    watch_pushes: int = 0
    by_command: Counter[str] = attrs.field(factory=Counter[str])
    errors: Counter[str] = attrs.field(factory=Counter[str])
    """By the first word of the reply."""
    durations: dict[str, Histogram] = attrs.field(factory=_durations)
    """Seconds from the turn of the port that read a command to its reply, by the words of `KINDS`.
    One observation for each command."""
    clock: Callable[[], float] = attrs.field(default=lambda: 0.0)
    """Returns the time that durations are taken from; set by the port."""

    def reset(self) -> None:
        """Set all figures to zero."""
        # In place: requests under way, and readers of live events, hold these objects.
        fresh = Counters()
        for figure in attrs.fields(Counters):
            value = getattr(self, figure.name)
            if isinstance(value, int):
                setattr(self, figure.name, getattr(fresh, figure.name))
            elif isinstance(value, Counter):
                value.clear()
        for histogram in self.durations.values():
            histogram.clear()

    def count_commands(self, commands: Sequence[list[bytes]]) -> None:
        """Count commands that a client has sent together."""
        self.commands += len(commands)
        by_command = self.by_command
        for arguments in commands:
            by_command[_NAMES[arguments[0]]] += 1

    def count_reply(self, reply: bytes) -> None:
        """Count the reply to one command, if it is an error."""
        if reply.startswith(b"-"):
            word = (
                reply[1:32]
                .partition(b"\r\n")[0]
                .partition(b" ")[0]
                .decode("ascii", errors="replace")
            )
            if word not in self.errors and len(self.errors) >= _MAX_ERROR_WORDS:
                word = UNKNOWN
            self.errors[word] += 1

    def count_replies(self, replies: bytes, count: int) -> None:
        """Count the errors among the replies to several commands."""
        if count == 1:
            # It may be a value of megabytes.
            self.count_reply(replies)
        # Nearly always there is none, and this is all that it costs. A value may have a line that
        # begins with a minus, so replies are told apart only then.
        elif replies.startswith(b"-") or b"\r\n-" in replies:
            for reply in cut_replies_untrusted(replies, [1] * count) or ():
                self.count_reply(reply)

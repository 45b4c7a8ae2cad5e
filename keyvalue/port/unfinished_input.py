"""What the unfinished input of one client takes: the measure of the budget for all of them.

Input is unfinished while it waits: half a command, the commands between MULTI and EXEC, what was
read ahead, and a chunk that is being done. Each of these is bounded for one client, but thousands
of clients may hold as much at the same time. So :class:`.session.PortState` adds up what they hold.
Beyond `all_input_bytes` it refuses the client that holds most: that one gets an error behind the
replies to what is under way, and its connection is closed in order.

Small pieces take several times their bytes in memory, so each piece counts as more. The figures are
CPython's, about: 33 bytes for the head of a bytes object, 56 for that of a list, 8 for a place in
one, all rounded up. Caveat: the arguments of a parsed command are not counted one by one, which
would take as long as to parse them: a chunk of short arguments takes up to six times its measure.
"""

from collections.abc import Sequence, Sized
from typing import Final

from ..protocol.parser import CommandParser
from .transaction import Transaction

__all__ = ["measure"]

PIECE_BYTES: Final = 64
COMMAND_BYTES: Final = 128


def measure(
    parser: CommandParser,
    held: Sequence[bytes],
    held_bytes: int,
    chunk: tuple[Sized, bytes],
    transaction: Transaction | None,
) -> int:
    """Return about how many bytes the unfinished input of a client takes.

    Args:
        parser: with half a command, perhaps.
        held: what was read ahead.
        held_bytes: the length of that.
        chunk: the commands that are being done, and their encoding.
        transaction: that has begun.
    """
    size = held_bytes + PIECE_BYTES * len(held) + parser.waiting_bytes
    commands, whole = chunk
    if count := len(commands):
        size += len(whole) + COMMAND_BYTES * count
    if transaction is not None:
        size += transaction.size_bytes + PIECE_BYTES * len(transaction)
    return size

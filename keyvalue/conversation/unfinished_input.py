"""How much memory the unfinished input of one client takes.

Input is unfinished while it waits: half a command, the commands between MULTI and EXEC, input that
was read ahead, and the chunk that is being executed. Each of these is bounded for one client, but
thousands of clients may hold that much at the same time. `clients.port_state` adds up the estimates
and keeps the sum within `all_input_bytes`.

Small pieces take several times their bytes in memory, so each piece counts as more. The figures are
approximately CPython's, rounded up: 33 bytes for the head of a bytes object, 56 for that of a list,
8 for a place in a list.

Caveat: the arguments of a parsed command are not counted one by one, which would take as long as
parsing them. A chunk of short arguments takes up to six times its estimate.
"""

from collections.abc import Sequence, Sized
from typing import Final

from ..clients.transaction import Transaction
from ..protocol.parser import CommandParser

__all__ = ["estimate_bytes"]

PIECE_BYTES: Final = 64
COMMAND_BYTES: Final = 128


def estimate_bytes(
    parser: CommandParser,
    held: Sequence[bytes],
    held_bytes: int,
    chunk: tuple[Sized, bytes],
    transaction: Transaction | None,
) -> int:
    """Return about how many bytes of memory the unfinished input of a client takes.

    Args:
        parser: may hold an incomplete command.
        held: input that was read ahead.
        held_bytes: its length.
        chunk: the commands that are being executed, and their encoding.
        transaction: the open transaction, if any.
    """
    size = held_bytes + PIECE_BYTES * len(held) + parser.waiting_bytes
    commands, whole = chunk
    if count := len(commands):
        size += len(whole) + COMMAND_BYTES * count
    if transaction is not None:
        size += transaction.size_bytes + PIECE_BYTES * len(transaction)
    return size

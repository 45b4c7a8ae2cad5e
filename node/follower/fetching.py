"""How a snapshot is fetched from a member, over a stream of its own.

What has come is kept: if the link breaks, the transfer goes on where it stopped, with whichever
member has the same snapshot, for members write equal files. Nothing of it is believed before the
whole file was checked.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import trio

from ...errors import StorageError, WireError
from ...storage.snapshots.file import decode_head_untrusted
from ...transport import SnapshotOffer, SnapshotPart, SnapshotRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...storage import SnapshotFolder, SnapshotHead, Transfer
    from ...transport import FrameStream

T = TypeVar("T")


class Reads(Protocol):
    """Calls what blocks on files, without holding up the event loop."""

    async def __call__(self, fn: Callable[[], T], /) -> T:
        """Return what `fn` returns."""
        ...


async def fetch_snapshot(
    stream: FrameStream,
    folder: SnapshotFolder,
    *,
    judge: Callable[[SnapshotHead], None],
    read: Reads,
    arrived: Callable[[int, int], None],
    patience: float,
) -> SnapshotHead:
    """Fetch a member's newest snapshot, or the rest of it, into a folder.

    Args:
        stream: opened for it; the caller closes it.
        folder: where it comes to lie, durably and under its own name.
        judge: looks at what is offered; raises StorageError if it is of no use.
        read: for what blocks.
        arrived: told before each part how much of the file is here, and how long the file is; may
            raise StorageError.
        patience: seconds after which a member that sends nothing is given up.

    Raises:
        TransportError, OSError, trio's errors of streams: the link broke, or stands still.
        StorageError: what came is damaged or of no use, or there is no room for it.
    """
    await stream.send(SnapshotRequest(*await read(folder.arriving)))
    with trio.fail_after(patience):
        offer = await stream.receive()
    if not isinstance(offer, SnapshotOffer):
        raise WireError(f"expected a SnapshotOffer, found {type(offer).__name__}")
    if not offer.head:
        raise StorageError("it has none")
    head = decode_head_untrusted(offer.head)
    judge(head)
    transfer = await read(partial(folder.transfer, head, offer.head, offer.offset))
    try:
        while transfer.offset < offer.file_bytes:
            with trio.fail_after(patience):
                part = _part_untrusted(await stream.receive(), transfer, offer.file_bytes)
            arrived(transfer.offset, offer.file_bytes)
            await read(partial(transfer.write, part))
        await read(transfer.finish)
    except StorageError:  # also for want of room, which it would keep for itself
        transfer.abandon()
        raise
    finally:
        transfer.close()
    return head


def _part_untrusted(message: object, transfer: Transfer, file_bytes: int) -> bytes:
    if not isinstance(message, SnapshotPart):
        raise WireError(f"expected a SnapshotPart, found {type(message).__name__}")
    end = message.offset + len(message.part)
    if message.offset != transfer.offset or not transfer.offset < end <= file_bytes:
        raise WireError(f"bytes {message.offset} to {end} came at {transfer.offset}")
    return message.part

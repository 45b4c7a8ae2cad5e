"""Plain commands, in C (``plain.c``): what clients send nearly always, and what it comes to.

A *plain* command is a whole array of bulk strings in its one canonical encoding, as every client
library writes it. Where there was no compiler these functions do nothing, and all goes the ways of
what is not plain, which do the same: :mod:`.guard` for what comes from a socket, :mod:`.resp` and
:mod:`.service` for what was recorded.
"""

import select
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...storage import Entry, EntryKind
    from ...storage.tables.memtable import Record

__all__ = [
    "NATIVE",
    "answer_gets",
    "apply_sets",
    "count_untrusted",
    "cut_replies_untrusted",
    "receive_untrusted",
    "send_all",
    "split_untrusted",
]

if TYPE_CHECKING:

    def count_untrusted(data: bytes) -> int:
        """Count the commands of data if they are a run of nothing but plain SETs, or of GETs.

        Returns:
            How many ``SET key value``, or minus how many ``GET key``; 0 if it is anything else, or
            more than one request takes.
        """
        ...

    def receive_untrusted(
        epoll: select.epoll, most: int
    ) -> list[tuple[int, int, bytes | None, int]]:
        """Look which sockets are ready, and read from those that are nothing but readable.

        Args:
            epoll: with the sockets, all of them non-blocking.
            most: of them.

        Returns:
            For each the descriptor, the events, what was read and `count_untrusted` of that. It is
            None and 0 where nothing was read: at the end of the stream, after an error, with other
            events, and behind the first MiB. There it is the caller's to read.
        """
        ...

    def send_all(filenos: list[int], replies: list[bytes]) -> list[tuple[int, int]]:
        """Send a reply to each socket, as far as it takes it.

        Args:
            filenos: of the sockets; nothing is sent for a negative one.
            replies: to each.

        Returns:
            Where not all was sent: the place, and how much; -1 if nothing ever can be.
        """
        ...

    def cut_replies_untrusted(replies: bytes, counts: list[int]) -> list[bytes] | None:
        """Cut what was replied to commands of several clients.

        Args:
            replies: simple ones or bulk strings, errors and nulls, one after the other.
            counts: how many are whose.

        Returns:
            What each is to get; None if there are more replies, or fewer, or others.
        """
        ...

    def split_untrusted(data: bytes, most: int) -> tuple[list[list[bytes]], int]:
        """Take the plain commands from the beginning of data, each with 1 to `most` arguments.

        Returns:
            The commands, and where the last of them ends. What follows is no whole plain command.
        """
        ...

    def apply_sets(  # noqa: PLR0917 - it takes nothing by name
        entries: Sequence[Entry] | bytes,
        start: int,
        kind: EntryKind,
        flags: int,
        revision: int,
        tag: int,
        room: int,
        reply: bytes,
        records: dict[bytes, Record | None],
        fresh: list[bytes],
        expiring: dict[bytes, int],
    ) -> tuple[list[bytes], int, int, int, list[bytes]]:
        """Apply entries to a memtable as long as they are nothing but plain SETs and MSETs.

        That is ``SET key value`` and ``MSET key value [key value ...]``.

        Args:
            entries: of a batch, in a list, or the bytes of the batch.
            start: the first one to apply.
            kind: that they must have.
            flags: of which they must have none; nor a session.
            revision: of what the batch's first entry sets; each has the next one.
            tag: of the records.
            room: of how many bytes to apply entries, about; at least one. Where a key has few bytes
                it counts as if it had more, since each one costs.
            reply: to one command.
            records: of the memtable.
            fresh: its new keys.
            expiring: the keys that have a deadline; only looked into.

        Returns:
            The reply to each entry that was applied; how many keys are new in the memtable
            by that, how many more of its records are not None, and by how much its keys and values
            have grown; the keys of `expiring` that were set, as often as they were: the caller
            takes their deadlines away.
        """
        ...

    def answer_gets(  # noqa: PLR0917 - it takes nothing by name
        payload: bytes,
        room: int,
        null: bytes,
        now: int,
        records: dict[bytes, Record | None],
        get: Callable[[bytes], Record | None],
    ) -> bytes | None:
        """Answer a payload of nothing but plain ``GET key``.

        Args:
            payload: of a query.
            room: for the replies, in bytes, each with 24 more than its value; not asked for by a
                single command.
            null: the reply where there is no such key.
            now: the log's time in milliseconds.
            records: of the memtable.
            get: returns the record of a key that is not in the memtable; what it raises goes
                through.

        Returns:
            None if it is anything else or more than a thousand, for which nothing is looked up, or
            if there is no room.
        """
        ...

else:
    try:
        # A function whose arguments change gets another name there: what an older version has
        # compiled is not used then, nor this by an older version.
        from ._plain import answer_gets_2 as answer_gets
        from ._plain import apply_sets_3 as apply_sets
        from ._plain import (
            count_untrusted,
            cut_replies_untrusted,
            receive_untrusted,
            send_all,
            split_untrusted,
        )
    except ImportError:

        def count_untrusted(_data: bytes) -> int:  # noqa: D103
            return 0

        def receive_untrusted(  # noqa: D103
            epoll: select.epoll, most: int
        ) -> list[tuple[int, int, bytes | None, int]]:
            return [(fileno, events, None, 0) for fileno, events in epoll.poll(0, most)]

        def send_all(filenos: list[int], _replies: list[bytes]) -> list[tuple[int, int]]:  # noqa: D103
            return [(place, 0) for place in range(len(filenos))]

        def cut_replies_untrusted(*_arguments: object) -> None:  # noqa: D103
            return None

        def split_untrusted(_data: bytes, _most: int) -> tuple[list[list[bytes]], int]:  # noqa: D103
            return [], 0

        def apply_sets(  # noqa: D103
            *_arguments: object,
        ) -> tuple[list[bytes], int, int, int, list[bytes]]:
            return [], 0, 0, 0, []

        def answer_gets(*_arguments: object) -> None:  # noqa: D103
            return None


NATIVE: Final = split_untrusted(b"*1\r\n$4\r\nPING\r\n", 1)[1] > 0
"""Whether they were compiled."""

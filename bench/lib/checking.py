"""Checks that everything a bench wrote is there, outside the measured time.

A figure is worthless if members lost something on the way. So this module reads the part of the log
that a load wrote from the members' disks. All members must have the same bytes, with as many writes
as were acknowledged, and the keys and sizes that were sent. Each member must also answer with the
last value of each key in that part.

If a client numbers its values (:mod:`crowd`, `failover.py`), every number is checked.
`redis-benchmark` writes the same value again and again, so only the count can be checked. It is
therefore always given a number of requests that its clients share evenly.

If members drop their log behind snapshots, as in `snapshot.py`, one member keeps it for this check.
A member's own count of applied entries would not do: one entry may hold the SETs of many clients.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeAlias

import attrs
import trio

from quorate.client.resp import RespClient, open_resp
from quorate.errors import StorageError
from quorate.keyvalue.protocol.payload import PayloadParser
from quorate.node.config.config import NodeConfig
from quorate.node.requests.status import MemberAddress
from quorate.storage import (
    EntryKind,
    decode_entries_untrusted,
    decode_header_untrusted,
    open_readonly,
)
from quorate.storage.lmdb.checksum import crc32c

NUMBER: Final = slice(16)
"""The bytes of a numbered value that hold its number."""

SAMPLE: Final = 2000
"""At most this many keys of a load, evenly spread, are read from each member."""

GROUP_KEYS: Final = 200
GROUP_BYTES: Final = 1 << 20


class LostError(Exception):
    """An acknowledged write is missing, or there is a write that no client sent."""


class Member(Protocol):
    """A member to be checked, such as :class:`quorate.local.cluster.MemberProcess`."""

    @property
    def member_id(self) -> int:
        """Its id."""
        ...

    @property
    def config(self) -> NodeConfig:
        """Its configuration, which names the directory of its stores."""
        ...

    @property
    def address(self) -> MemberAddress:
        """Its address for clients."""
        ...


@attrs.frozen
class Stretch:
    """The part of the log that a load wrote, between two boundaries of batches."""

    begin: int
    end: int


class Value(NamedTuple):
    """A value's length and first bytes."""

    size: int
    checksum: int
    head: bytes


Last: TypeAlias = dict[bytes, Value]
"""The last value of each key."""

Sets: TypeAlias = Iterable[tuple[bytes, bytes]]
"""Keys and values, in the order in which they were set."""

Look: TypeAlias = Callable[[Sets], Last]
"""Compares what was set with what was acknowledged; raises `LostError`."""


def told(value: bytes) -> Value:
    """Return the short form of a value."""
    return Value(len(value), crc32c(value), value[NUMBER])


# The log ------------------------------------------------------------------------------------------


def log_of(member: Member) -> Path:
    """Return the directory of a member's recording."""
    return member.config.directory / "log"


def batches(directory: Path, stretch: Stretch) -> Iterator[bytes]:
    """Yield the batches of a stretch of one recording, each with its checksum verified.

    Raises:
        LostError: the recording ends before the stretch does.
    """
    try:
        with open_readonly(directory) as store:
            if store.append_position < stretch.end:
                raise LostError(
                    f"{directory}: the log ends at {store.append_position}, and what was "
                    f"acknowledged at {stretch.end}"
                )
            yield from store.scan(stretch.begin, stretch.end)
    except StorageError as error:
        raise LostError(f"{directory}: {error}") from error


def read_sets(directory: Path, stretch: Stretch) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values set in a stretch of one recording.

    Raises:
        LostError: the recording ends too early, or has a command other than SET and MSET.
    """
    parse = PayloadParser().parse_untrusted
    for batch in batches(directory, stretch):
        for entry in decode_entries_untrusted(batch):
            if entry.kind is not EntryKind.COMMAND:
                continue
            for name, *words in parse(entry.payload):
                whole = len(words) == 2 if name == b"SET" else name == b"MSET"
                if not whole or len(words) % 2:
                    raise LostError(f"{directory}: a command that no bench sends: {name!r:.40}")
                yield from zip(words[::2], words[1::2], strict=True)


def compare_logs(directories: Sequence[Path], stretch: Stretch) -> None:
    """Check that a stretch has the same bytes in all recordings.

    Raises:
        LostError: recordings differ; the message names the position.
    """
    first, *others = directories
    for other in others:
        pairs = itertools.zip_longest(batches(first, stretch), batches(other, stretch))
        for one, its in pairs:
            if one != its:
                place = decode_header_untrusted(one or its or b"").position
                raise LostError(f"{first} and {other} differ at position {place} of the log")


def kept_from(members: Sequence[Member]) -> int:
    """Return the first position that all of these members keep."""
    begin = 0
    for member in members:
        with open_readonly(log_of(member)) as store:
            begin = max(begin, store.start_position)
    return begin


async def check_logs(members: Sequence[Member], end: int) -> None:
    """Check that all members have the same log, as far back as all of them keep it.

    Args:
        members: the members.
        end: the position up to which all of them have applied the log.

    Raises:
        LostError: the logs differ.
    """

    def read() -> None:
        compare_logs([log_of(member) for member in members], Stretch(kept_from(members), end))

    await trio.to_thread.run_sync(read)


# The state ----------------------------------------------------------------------------------------


async def check_state(last: Mapping[bytes, Value], addresses: Iterable[MemberAddress]) -> None:
    """Check that each member, from its own state, returns the last value of each key.

    Raises:
        LostError: a member returns another value.
    """
    names = list(last)
    names = names[:: max(1, len(names) // SAMPLE)]
    largest = max((value.size for value in last.values()), default=1)
    size = max(1, min(GROUP_KEYS, GROUP_BYTES // max(1, largest)))
    for member in addresses:
        async with open_resp(member.host, member.client_port) as client:
            await client.call("READONLY")
            for start in range(0, len(names), size):
                group = names[start : start + size]
                for name, value in zip(group, await values_of(client, group), strict=True):
                    if not isinstance(value, bytes) or told(value) != last[name]:
                        raise LostError(
                            f"member {member.member_id}: {name!r} is {value!r:.60}, and was set "
                            f"to {last[name].size} bytes that begin with {last[name].head!r}"
                        )


async def values_of(client: RespClient, names: Sequence[bytes]) -> list[object]:
    """Return the values of keys; None for a missing key."""
    values = await client.call("MGET", *names)
    assert isinstance(values, list)
    return list(values)


# Both ---------------------------------------------------------------------------------------------


async def check_stretch(
    members: Sequence[Member], stretch: Stretch, look: Look, addresses: Iterable[MemberAddress] = ()
) -> None:
    """Check that all members have the same stretch of the log, with all acknowledged writes.

    Args:
        members: the members whose logs and states are read. They must have applied the whole
            stretch, and no client may write during the check.
        stretch: the part of the log.
        look: compares the stretch with the acknowledged writes.
        addresses: addresses of more members; only their states are read.

    Raises:
        LostError: something differs, so the figures are worthless.
    """
    directories = [log_of(member) for member in members]

    def read() -> Last:
        compare_logs(directories, stretch)
        return look(read_sets(directories[0], stretch))

    last = await trio.to_thread.run_sync(read)
    await check_state(last, [*(member.address for member in members), *addresses])

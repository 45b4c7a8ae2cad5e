"""What a bench has written is looked for again, outside of the time that is measured.

A figure of members that lost something on the way is worth nothing. So the stretch of the log that
a load wrote is read from the members' disks: the same bytes on each, in them as many writes as were
acknowledged, of the keys and sizes that were sent. And what it says last of a key, each member must
answer.

What is written by a client that numbers its values (:mod:`crowd`, `failover.py`) is looked for
number by number. `redis-benchmark` writes the same value again and again; of that the count must be
right, which is why it is always given a number that its clients can share out evenly.

Where members drop their log behind snapshots, as `snapshot.py` has it, one of them keeps it for
this. What a member says that it has applied tells nothing: an entry of the log may be the SETs of
many clients.
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
"""Where a numbered value has its number."""

SAMPLE: Final = 2000
"""So many of the keys that a load wrote are asked for on each member, spread over all of them."""

GROUP_KEYS: Final = 200
GROUP_BYTES: Final = 1 << 20


class LostError(Exception):
    """What was acknowledged is not there, or something that nobody sent is."""


class Member(Protocol):
    """A member that is looked at, such as :class:`quorate.local.cluster.MemberProcess`."""

    @property
    def member_id(self) -> int:
        """Its id."""
        ...

    @property
    def config(self) -> NodeConfig:
        """With the directory of its stores."""
        ...

    @property
    def address(self) -> MemberAddress:
        """Where clients reach it."""
        ...


@attrs.frozen
class Stretch:
    """What a load wrote of the log: between two positions at which batches begin or end."""

    begin: int
    end: int


class Value(NamedTuple):
    """A value, without all its bytes."""

    size: int
    checksum: int
    head: bytes


Last: TypeAlias = dict[bytes, Value]
"""What keys were set to last."""

Sets: TypeAlias = Iterable[tuple[bytes, bytes]]
"""Keys and values, in the order in which they were set."""

Look: TypeAlias = Callable[[Sets], Last]
"""Compares what was set with what was acknowledged; raises `LostError`."""


def told(value: bytes) -> Value:
    """Note what a value is."""
    return Value(len(value), crc32c(value), value[NUMBER])


# The log ------------------------------------------------------------------------------------------


def log_of(member: Member) -> Path:
    """Where a member's recording lies."""
    return member.config.directory / "log"


def batches(directory: Path, stretch: Stretch) -> Iterator[bytes]:
    """The batches of a stretch of one recording, each with its checksum checked.

    Raises:
        LostError: it has not all of it.
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
    """What was set in a stretch of one recording.

    Raises:
        LostError: the recording has not all of it, or there is another command than SET and MSET.
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
    """See that a stretch of all recordings has the same bytes.

    Raises:
        LostError: it has not; says where.
    """
    first, *others = directories
    for other in others:
        pairs = itertools.zip_longest(batches(first, stretch), batches(other, stretch))
        for one, its in pairs:
            if one != its:
                place = decode_header_untrusted(one or its or b"").position
                raise LostError(f"{first} and {other} differ at position {place} of the log")


def kept_from(members: Sequence[Member]) -> int:
    """From where on all of these members keep the log."""
    begin = 0
    for member in members:
        with open_readonly(log_of(member)) as store:
            begin = max(begin, store.start_position)
    return begin


async def check_logs(members: Sequence[Member], end: int) -> None:
    """See that all members have the same log, as far back as all of them keep it.

    Args:
        members: whose logs.
        end: up to where all of them have applied it.

    Raises:
        LostError: they have not.
    """

    def read() -> None:
        compare_logs([log_of(member) for member in members], Stretch(kept_from(members), end))

    await trio.to_thread.run_sync(read)


# The state ----------------------------------------------------------------------------------------


async def check_state(last: Mapping[bytes, Value], addresses: Iterable[MemberAddress]) -> None:
    """See that each of these members answers for keys, by itself, what they were set to last.

    Raises:
        LostError: one does not.
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
    """The values of keys; None for one that is not there."""
    values = await client.call("MGET", *names)
    assert isinstance(values, list)
    return list(values)


# Both ---------------------------------------------------------------------------------------------


async def check_stretch(
    members: Sequence[Member], stretch: Stretch, look: Look, addresses: Iterable[MemberAddress] = ()
) -> None:
    """See that a stretch of the log is the same on all members, and what was acknowledged.

    Args:
        members: whose logs are read, and whose states are asked for. They must have applied all
            of it, and nobody may write meanwhile.
        stretch: what was written.
        look: compares it with what was acknowledged.
        addresses: of more members, of which the state alone is looked at.

    Raises:
        LostError: it is not so; the figures are worth nothing.
    """
    directories = [log_of(member) for member in members]

    def read() -> Last:
        compare_logs(directories, stretch)
        return look(read_sets(directories[0], stretch))

    last = await trio.to_thread.run_sync(read)
    await check_state(last, [*(member.address for member in members), *addresses])

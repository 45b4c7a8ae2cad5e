"""Checks after the torture: equal logs, equal states, and every recording verified."""

import itertools
import zlib
from collections.abc import Sequence
from pathlib import Path

import attrs

from ..client.resp import Reply, open_resp
from ..local.stores import store_of
from ..node.requests.status import MemberAddress
from ..storage import decode_header_untrusted, open_readonly, verify
from .clients import read_keys

__all__ = ["check_recordings", "check_state"]

_MAX_TOLD = 3


async def check_state(
    keys: Sequence[bytes], expected: Sequence[Reply], address: MemberAddress
) -> list[str]:
    """Compare a member's own state with the expected values, and check that it has no other key.

    Raises:
        OSError: the connection is lost.
        RespError: the member refuses a command.
    """
    whose = f"member {address.member_id}"
    found: list[str] = []
    own = await read_keys(keys, address, own=True)
    for key, reply, right in zip(keys, own, expected, strict=True):
        if reply != right:
            found.append(f"{whose}: {key!r} is {reply!r:.60}, expected {right!r:.60}")
    async with open_resp(address.host, address.client_port) as client:
        await client.call("READONLY")
        size = await client.call("DBSIZE")
    present = sum(reply is not None for reply in expected)
    if size != present:
        found.append(f"{whose}: {size!r} keys, expected the {present} that clients wrote")
    if len(found) > _MAX_TOLD:
        found[_MAX_TOLD:] = [f"{whose}: {len(found) - _MAX_TOLD} more like these"]
    return found


def check_recordings(
    directories: Sequence[Path], former: Sequence[Path] = ()
) -> tuple[int, list[str]]:
    """Verify and compare the recordings up to the commit position; return it, and all findings.

    Two recordings are compared where they overlap. One may begin with a snapshot.

    Args:
        directories: of the members.
        former: directories of members that were removed. What they knew to be committed counts.
    """
    stores = [store_of(directory) for directory in (*directories, *former)]
    found = [str(finding) for store in stores for finding in verify(store).findings]
    if found:
        return -1, found
    logs = [_Log.read(store) for store in stores]
    commit = max(log.commit for log in logs)
    # Every member has what is committed, unless it was removed before.
    logs[: len(directories)] = [
        attrs.evolve(log, commit=commit) for log in logs[: len(directories)]
    ]
    for number, log in enumerate(logs):
        differences = filter(None, map(log.difference, logs[:number]))
        found += itertools.islice(differences, 1)
    return commit, found


@attrs.frozen
class _Log:
    """A recording: where it begins, up to where it counts, and its batches by their positions."""

    member_id: int
    start: int
    commit: int
    batches: dict[int, tuple[int, int, int]]

    @classmethod
    def read(cls, store: Path) -> "_Log":
        with open_readonly(store) as reader:
            batches = dict(map(_identity, reader.scan(reader.start_position)))
            member, start = reader.identity.member_id, reader.start_position
            return cls(member, start, reader.last_commit_position, batches)

    def difference(self, other: "_Log") -> str:
        """Return the first difference between two recordings in words; empty without one."""
        common = range(max(self.start, other.start), min(self.commit, other.commit))
        for position in sorted(self.batches.keys() | other.batches.keys()):
            own, theirs = self.batches.get(position), other.batches.get(position)
            if position in common and own != theirs:
                return (
                    f"at position {position} member {other.member_id} has {theirs} and member "
                    f"{self.member_id} has {own} (term, length, checksum)"
                )
        return ""


def _identity(batch: bytes) -> tuple[int, tuple[int, int, int]]:
    header = decode_header_untrusted(batch)
    return header.position, (header.term, header.length, zlib.crc32(batch))

"""Checks after the torture: equal logs, equal states, and every recording verified."""

import zlib
from collections.abc import Sequence
from pathlib import Path

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


def check_recordings(directories: Sequence[Path]) -> tuple[int, list[str]]:
    """Verify and compare the recordings up to the commit position; return it, and all findings."""
    stores = [store_of(directory) for directory in directories]
    found = [str(finding) for store in stores for finding in verify(store).findings]
    if found:
        return -1, found
    commit = 0
    logs: list[dict[int, tuple[int, int, int]]] = []
    for store in stores:
        with open_readonly(store) as reader:
            commit = max(commit, reader.last_commit_position)
            logs.append(dict(map(_identity, reader.scan(reader.start_position))))
    for member, log in enumerate(logs[1:], 1):
        positions = sorted(p for p in log.keys() | logs[0].keys() if p < commit)
        different = next((p for p in positions if log.get(p) != logs[0].get(p)), None)
        if different is not None:
            found.append(
                f"at position {different} member 0 has {logs[0].get(different)} and member "
                f"{member} has {log.get(different)} (term, length, checksum)"
            )
    return commit, found


def _identity(batch: bytes) -> tuple[int, tuple[int, int, int]]:
    header = decode_header_untrusted(batch)
    return header.position, (header.term, header.length, zlib.crc32(batch))

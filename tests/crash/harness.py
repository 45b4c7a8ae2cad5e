"""The crash test from beginning to end: load, trouble, recovery, and the checks.

The schedule of faults and every client's choices come from the seed; when things happen does
not, since these are real processes. What must hold at the end:

- every acknowledged write is there, on every member; every refused one is not; nothing else is;
- no write was applied twice, and no read missed what was acknowledged before it;
- the recordings of all members are equal up to the commit position, batch by batch;
- `verify` finds each of them sound.
"""

from __future__ import annotations

import random
import zlib
from typing import TYPE_CHECKING, Final

import attrs
import trio

from quorate.cli_log import store_of
from quorate.cluster import LocalCluster, free_client_port, lay_out, open_cluster
from quorate.respclient import open_resp
from quorate.status import Verdict, survey
from quorate.storage import decode_header_untrusted, open_readonly, verify

from .clients import Client, Ledger
from .nemesis import Nemesis, NoProgressError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from quorate.node.gateway import MemberAddress

CLIENTS: Final = 6
RECOVERY_SECONDS: Final = 60.0
READ_AT_ONCE: Final = 256


@attrs.frozen
class Report:
    """What happened. It passed if there are no violations."""

    kills: int
    pauses: int
    acknowledged: int
    unknown: int
    refused: int
    reads: int
    terms: int
    commit_position: int
    violations: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.kills} kills and {self.pauses} pauses, {self.terms} terms: "
            f"{self.acknowledged:,} writes acknowledged, {self.unknown:,} unknown, "
            f"{self.refused:,} refused, {self.reads:,} reads checked; "
            f"committed up to {self.commit_position:,}"
        )


async def crash_test(
    directory: Path,
    *,
    kills: int,
    seconds: float,
    seed: int,
    members: int = 3,
    tell: Callable[[str], None],
) -> Report:
    """Run it.

    Args:
        directory: where the members live.
        kills: how many kills at least.
        seconds: how long the trouble lasts at least.
        seed: of the schedule of faults and the clients' choices.
        members: how many.
        tell: takes a line about each fault.
    """
    configs = lay_out(
        directory, members=members, client_port=free_client_port(members), cluster="crash"
    )
    ledger = Ledger()
    async with open_cluster(configs) as cluster:
        nemesis = Nemesis(cluster, ledger, random.Random(f"{seed}/nemesis"), tell)
        terms = -1
        try:
            await _trouble(cluster, ledger, nemesis, kills=kills, seconds=seconds, seed=seed)
            terms = await _recovered(cluster)
            tell("all members agree; checking every key on every member")
            for address in cluster.addresses:
                ledger.violations += await check_state(ledger, address)
        except* NoProgressError as group:
            ledger.violations += map(str, group.exceptions)
    commit, found = check_recordings([member.config.directory for member in cluster.members])
    return Report(
        kills=nemesis.kills,
        pauses=nemesis.pauses,
        acknowledged=len(ledger.acknowledged),
        unknown=len(ledger.unknown),
        refused=len(ledger.refused),
        reads=ledger.reads,
        terms=terms,
        commit_position=commit,
        violations=(*ledger.violations, *found),
    )


async def _trouble(
    cluster: LocalCluster,
    ledger: Ledger,
    nemesis: Nemesis,
    *,
    kills: int,
    seconds: float,
    seed: int,
) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(CLIENTS):
            rng = random.Random(f"{seed}/client/{number}")
            nursery.start_soon(Client(number, cluster.addresses, ledger, rng).run)
        await nemesis.run(kills=kills, seconds=seconds)
        nursery.cancel_scope.cancel()


async def _recovered(cluster: LocalCluster) -> int:
    """Wait until all members agree and have applied everything; return the number of terms."""
    with trio.move_on_after(RECOVERY_SECONDS):
        while True:
            seen = await survey(cluster.addresses)
            done = all(status.applied_position == seen.head for status in seen.said)
            if seen.verdict is Verdict.AGREED and seen.leader and done:
                return seen.leader.term + 1
            await trio.sleep(0.05)
    raise NoProgressError(f"the members do not agree {RECOVERY_SECONDS:g} s after the last fault")


async def check_state(ledger: Ledger, address: MemberAddress) -> list[str]:
    """Compare a member's own state with what the clients were told."""
    whose = f"member {address.member_id}"
    found: list[str] = []
    async with open_resp(address.host, address.client_port) as client:
        await client.call("READONLY")
        everything = list((ledger.acknowledged | ledger.unknown | ledger.refused).items())
        present = 0
        for start in range(0, len(everything), READ_AT_ONCE):
            part = everything[start : start + READ_AT_ONCE]
            replies = await client.pipeline([(b"GET", key) for key, _ in part])
            present += sum(reply is not None for reply in replies)
            for (key, value), reply in zip(part, replies, strict=True):
                if reply is None and key in ledger.acknowledged:
                    found.append(f"{whose}: acknowledged {key!r} is missing")
                elif reply is not None and key in ledger.refused:
                    found.append(f"{whose}: refused {key!r} is there")
                elif reply is not None and reply != value:
                    found.append(f"{whose}: {key!r} has another value: {reply!r:.60}")
        for key, (certain, possible) in ledger.counters.items():
            count = int(bytes(await client.call(b"GET", key) or b"0"))  # type: ignore[arg-type]
            present += count > 0
            if not certain <= count <= possible:
                found.append(f"{whose}: {key!r} is {count}, not {certain} to {possible}")
        if (size := await client.call("DBSIZE")) != present:
            found.append(f"{whose}: {size!r} keys, of which the clients wrote {present}")
    return found


def check_recordings(directories: list[Path]) -> tuple[int, list[str]]:
    """Verify the recordings and compare them up to the commit position, which is returned too."""
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

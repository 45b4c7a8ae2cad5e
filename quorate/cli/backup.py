"""`quorate backup`: the newest snapshot of a cluster and its committed log, in a directory."""

import functools
import json
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import attrs
import trio
from cyclopts import Parameter

from ..errors import HandshakeError, PrunedError, TransportError, UsageError, leaves
from ..local.log_lines import print_bounded, unblocked
from ..local.survey import Answer, ask, at
from ..local.words import size, utc
from ..node.config.security import Security, load_security
from ..node.readers.backup import Backup, open_backup
from ..node.readers.replay_client import ReplayClient
from ..node.upkeep.access import open_reader_access
from ..storage import SnapshotRow
from ..transport import CONNECTION_ERRORS, Address, TcpNetwork
from .params import Addresses, AsJson, parse_address

__all__ = ["backup"]

DONE: Final = 0
REFUSED: Final = 1
UNREACHABLE: Final = 2

To = Annotated[Path, Parameter(show_default=False)]
Flag = Annotated[bool, Parameter(negative="", show_default=False)]
Follow = Annotated[bool, Parameter(negative="")]
SecurityFile = Annotated[Path | None, Parameter(show_default=False)]


async def backup(
    *,
    to: To,
    connect: Addresses = ("127.0.0.1:7000",),
    follow: Follow = False,
    all_partitions: Flag = False,
    consistent: Flag = False,
    security: SecurityFile = None,
    as_json: AsJson = False,
) -> int:
    """Copy the newest snapshot of a running cluster, and the committed log behind it.

    It reads from a follower, if there is one. A second call goes on where the first ended, from any
    member. Nothing is ever removed. `quorate log` looks into a backup, and `quorate restore` makes
    members of it.

    With --all-partitions: all partitions of a cluster at the same time, each into a folder of its
    own, with a manifest that says up to where each counts.

    Exit status: 0 - it holds everything committed at the time of the call, or it has followed until
    SIGTERM or Ctrl-C. 1 - refused: the cluster no longer has the log behind the end of the backup.
    2 - no member can be reached, or could be when it was stopped. 78 - the directory is not a
    backup of this cluster.

    Args:
        to: Directory of the backup; created if it is missing.
        connect: Client port of a member, HOST:PORT; it names the others, and their member ports.
            May be given several times. 127.0.0.1:7000 if left out. With --all-partitions also a
            path; see quorate partition list.
        follow: Stay, and keep the backup current, through any change of members.
        all_partitions: Of a cluster with partitions: all of them.
        consistent: With --all-partitions: all of them as of one moment. For some hundredths of a
            second all writes are refused, with an error that says so.
        security: A file with a table [security], if members ask who we are: with our certificate,
            for quorate://CLUSTER/backup/NAME, or with the cluster key. A member's file will do.
        as_json: Print what the backup holds, for programs; progress goes to standard error.
    """
    if all_partitions or consistent:
        return await _all(to, connect, (all_partitions, consistent, follow), security, as_json)
    return await _one(to, connect, security, follow=follow, as_json=as_json)


async def _all(
    to: Path,
    connect: Sequence[str],
    flags: tuple[bool, bool, bool],
    security: Path | None,
    as_json: bool,  # noqa: FBT001 - it is passed on
) -> int:
    """Back up all partitions.

    Raises:
        UsageError: the flags do not fit.
    """
    from .backup_partitions import back_up_partitions  # noqa: PLC0415 - it imports much

    all_partitions, consistent, follow = flags
    if not all_partitions:
        raise UsageError("--consistent: expected --all-partitions, too: one log is always so")
    if follow:
        raise UsageError(
            "--follow --all-partitions: give one of them; each partition can be followed alone, "
            "with --connect to one of its members"
        )
    return await back_up_partitions(
        to, connect, consistent=consistent, security=security, as_json=as_json
    )


async def _one(
    to: Path, connect: Sequence[str], security: Path | None, *, follow: bool, as_json: bool
) -> int:
    """Back up one cluster, or one partition."""
    first = await _first_answer([part for text in connect for part in text.split(",")])
    if first is None or first.status is None:
        return UNREACHABLE
    addresses = [Address(one.host, one.member_port) for one in first.members]
    cluster = first.status.cluster
    found = Security() if security is None else load_security(security)
    access = open_reader_access(found, cluster=cluster, network=TcpNetwork())
    client = ReplayClient(cluster, addresses, network=access.network, security=access.security)
    status = await _record(to, client, follow=follow, as_json=as_json)
    if status == UNREACHABLE and security is None and _shut_out(client):
        print(
            "If members have certificates or a cluster key, prove who you are: --security FILE, "
            "such as the node.toml of a member",
            file=sys.stderr,
        )
    return status


def _shut_out(client: ReplayClient) -> bool:
    """Whether a member was reached, and would have nothing to do with us."""
    kinds = (HandshakeError, trio.BrokenResourceError)
    return any(isinstance(error, kinds) for error in client.unanswered.values())


async def _record(to: Path, client: ReplayClient, *, follow: bool, as_json: bool) -> int:
    rng = random.Random(random.SystemRandom().getrandbits(64))  # noqa: S311 - not for secrets
    status, held = DONE, None
    try:
        with unblocked(sys.stderr if as_json else sys.stdout) as file:

            def tell(words: str) -> None:
                when = f"{utc(time.time_ns() // 1_000_000)}  " if follow else ""
                print(f"{when}{words}", file=file, flush=True)

            async with open_backup(to, client, rng=rng, report=tell) as opened:
                try:
                    await (_follow(opened) if follow else opened.run())
                    if opened.trouble:
                        print(f"stopped while it waited: {opened.trouble}", file=sys.stderr)
                        status = UNREACHABLE
                finally:
                    held = Held.of(opened)
    except* PrunedError as group:
        print(f"{next(leaves(group))}: begin another backup", file=sys.stderr)
        status = REFUSED
    except* (*CONNECTION_ERRORS, TransportError) as group:
        print(next(leaves(group)), file=sys.stderr)
        status = UNREACHABLE
    if held is not None:
        print_bounded(sys.stdout, f"{json.dumps(attrs.asdict(held)) if as_json else held}\n")
    return status


@attrs.frozen
class Held:
    """What a backup holds. Positions are bytes of the log, times are ms since the epoch."""

    directory: str
    cluster: str
    start_position: int
    end_position: int
    timestamp_ms: int
    snapshots: tuple[SnapshotRow, ...]

    @classmethod
    def of(cls, opened: Backup) -> "Held":
        """Read it from an open backup."""
        store = opened.store
        return cls(
            directory=str(opened.directory),
            cluster=store.identity.cluster,
            start_position=store.start_position,
            end_position=store.append_position,
            timestamp_ms=store.last_timestamp_ms,
            snapshots=store.snapshots,
        )

    def __str__(self) -> str:
        if not self.end_position and not self.snapshots:
            return f'{self.directory} holds nothing yet of cluster "{self.cluster}"'
        begin = f"the snapshot at {self.start_position}" if self.start_position else "the beginning"
        return (
            f'{self.directory} holds cluster "{self.cluster}" from {begin} to {self.end_position}, '
            f"{utc(self.timestamp_ms)}: {size(self.end_position - self.start_position)} of log"
        )


async def _first_answer(connect: Sequence[str]) -> Answer | None:
    """Return the answer of the first member that gives one; print why those before it do not."""
    for address in [parse_address(text) for text in connect]:
        answer = await ask(address)
        if answer.status is not None:
            return answer
        print(f"{at(address)}: {answer.error}", file=sys.stderr)
    return None


async def _follow(opened: Backup) -> None:
    """Keep a backup current until a signal."""
    async with trio.open_nursery() as nursery:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            nursery.start_soon(functools.partial(opened.run, follow=True))
            await anext(signals)
            nursery.cancel_scope.cancel()
    await opened.save()

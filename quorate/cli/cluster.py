"""`quorate cluster`: all members of a small cluster on this machine, for trying things out."""

import os
import signal
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal, Protocol

import trio
from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape

from ..errors import UsageError
from ..local.cluster import (
    LocalCluster,
    MemberProcess,
    check_no_store,
    lay_out,
    open_cluster,
    risky_ports,
)
from ..local.log_lines import unblocked_console
from ..local.stores import was_removed
from ..local.survey import LOG_IN, Survey, survey
from ..node.config.config import MAX_MEMBERS, NodeConfig, Profile
from .app import EX_NOPERM
from .params import needing_certs

__all__ = ["cluster", "leader_line"]

LocalProfile = Literal["lan", "aeron"]
Members = Annotated[
    int, Parameter(help=f"How many: 1 to {MAX_MEMBERS}. With 3, one may fail; with 5, two.")
]

LOOK_SECONDS: Final = 0.2
LONGEST_LOOK_SECONDS: Final = 5.0
"""Pauses between two questions for the leader; they grow while nothing changes. Shorter, and idle
members use processor time for the answers. Longer, and a new leader is printed late."""


async def cluster(  # noqa: D417 - the help of --members is made from the code
    *,
    directory: Annotated[Path, Parameter(name=("--dir", "-d"))],
    members: Members = 3,
    partitions: int = 1,
    machines: int = 3,
    client_port: int = 7000,
    profile: Annotated[LocalProfile | None, Parameter(show_default=False)] = None,
    tls: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    web_port: Annotated[int | None, Parameter(show_default=False)] = None,
    etcd_port: Annotated[int | None, Parameter(show_default=False)] = None,
) -> int:
    """Run the members of a cluster as child processes on this machine.

    Member i listens for clients on 127.0.0.1 at the client port + i. Its configuration, stores,
    log lines and process id are in `member-<i>/` of the directory, and stay there: the next run
    goes on with them. Ctrl-C stops all members in order, a second one at once.

    With --partitions the keys are spread over several groups of members. Each machine has a
    supervisor, which starts its members again when they end, and the folder `machine-<i>/`. Its
    ports begin at the client port + 100 i: the first is for metadata, the next for partition 0.

    A removed member (quorate member remove) is not started any more; start an added one by hand.

    Args:
        directory: Directory of all members; created if it is missing.
        partitions: How many groups of members share the keys; 1 is a cluster without partitions.
        machines: With partitions, how many machines; each partition has members on three.
        client_port: Client port of member 0.
        profile: How patient: `lan` replaces a dead leader in less than a second, `aeron` has the
            defaults of Aeron Cluster. If left out: that of an existing cluster, or `lan`.
        tls: Members prove who they are, and serve clients by TLS on ports of their own, too. The
            CA and all certificates are made, in `certs/` of the directory. Only for a new cluster.
        web_port: Port of member 0 on which a browser sees the cluster; member i has this one + i. 0
            is none. If left out: that of an existing cluster, or 1001 above the client port.
        etcd_port: Port of member 0 for clients of etcd, such as etcdctl and Patroni; member i has
            this one + i. 0 is none. If left out: that of an existing cluster, or none.
    """
    check_no_store(directory, "--dir")
    if partitions != 1:
        return await _with_partitions(
            directory, partitions, machines, client_port, profile, tls=tls
        )
    _check_no_machines(directory)
    make = partial(_secured() if tls else lay_out, directory, members=members, profile=profile)
    web: int | Literal["auto"] = "auto" if web_port is None else web_port
    return await _members(make(client_port=client_port, web_port=web, etcd_port=etcd_port))


async def _members(configs: Sequence[NodeConfig]) -> int:
    """Run the members that were not removed; return the exit status."""
    console = Console(highlight=False, soft_wrap=True)
    configs = [config for config in configs if not _is_gone(console, config)]
    if not configs:
        console.print("All of these members were removed: there is nothing to start.")
        return 1
    _warn_of_ports(console, configs)
    return await _run(console, configs)


async def _with_partitions(
    directory: Path,
    partitions: int,
    machines: int,
    client_port: int,
    profile: Profile | None,
    *,
    tls: bool,
) -> int:
    """Run a cluster with partitions.

    Raises:
        UsageError: it cannot have what was asked for.
    """
    if (directory / "member-0").exists():
        raise UsageError(
            f"--dir {directory} --partitions {partitions}: a cluster without partitions lies "
            "there: give another directory"
        )
    from .machines import run_machines  # noqa: PLC0415 - it imports much

    return await run_machines(
        directory,
        machines=machines,
        partitions=partitions,
        client_port=client_port,
        profile=profile,
        tls=tls,
    )


def _check_no_machines(directory: Path) -> None:
    """Check that no cluster with partitions lies in a directory.

    Raises:
        UsageError: it does.
    """
    if (directory / "machine-0").exists():
        raise UsageError(
            f"--dir {directory}: a cluster with partitions lies there: add --partitions as before, "
            "or give another directory"
        )


async def _run(console: Console, configs: Sequence[NodeConfig]) -> int:
    """Run members until a signal; return the exit status."""
    with (
        trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received,
        unblocked_console(console),
    ):
        async with open_cluster(configs) as running:
            _introduce(console, running)
            if not await _watch_until_signal(console, running, received):
                console.print("All members have ended by themselves.")
                return 1
            console.print("Stopping all members in order.")
            await _stop(running, received)
    console.print("All members have ended.")
    return 0


class _LayOut(Protocol):
    def __call__(
        self,
        directory: Path,
        /,
        *,
        members: int,
        client_port: int,
        profile: Profile | None,
        web_port: int | Literal["auto"],
        etcd_port: int | None,
    ) -> list[NodeConfig]: ...


def _secured() -> _LayOut:
    """Return what lays out a cluster with certificates, which needs a library more."""
    with needing_certs():
        from ..local.secured import lay_out_secured  # noqa: PLC0415 - an extra
    return lay_out_secured


def _warn_of_ports(console: Console, configs: Sequence[NodeConfig]) -> None:
    if risky := risky_ports(configs):
        console.print(
            f"Ports {', '.join(map(str, risky))} are in the range of outgoing connections. One may "
            "take the port of a member that is down. Choose a lower --client-port, such as 7000.",
            style="yellow",
        )


def _is_gone(console: Console, config: NodeConfig) -> bool:
    """Say, also to the user, that a member was removed from the cluster."""
    if not was_removed(config.directory):
        return False
    console.print(
        f"member {config.member_id} was removed from the cluster, and is not started; its "
        f"directory {escape(str(config.directory))} is not needed any more"
    )
    return True


def _introduce(console: Console, running: LocalCluster) -> None:
    for member in running.members:
        at = member.address
        console.print(
            f"member {at.member_id}  {at.host}:{at.client_port}  {escape(str(member.log))}"
        )
    security = running.members[0].config.security
    first = running.addresses[0]
    if security.certificate:
        folder = escape(os.path.normpath(Path(security.certificate).parent))
        console.print(
            f"\nMembers speak TLS to each other. Their certificates, and the CA: {folder}\n"
            f"When they end:             quorate certs check {folder}"
        )
        if first.tls_port:
            own = f"--cert {folder}/client-default.crt --key {folder}/client-default.key"
            console.print(
                f"A client with TLS:         redis-cli -p {first.tls_port} --tls "
                f"--cacert {folder}/ca.crt {own} PING"
            )
    if web := next((each.config.web for each in running.members if each.config.web.port), None):
        scheme = "https" if web.tls else "http"
        console.print(f"\nSee it live in a browser:  {scheme}://{web.host}:{web.port}/")
    pid = running.members[0].config.directory / "pid"
    console.print(
        f"\nAny Redis client will do:  redis-cli -p {first.client_port} SET name value\n"
        f"Check the cluster:         quorate status --connect {first.host}:{first.client_port}\n"
        f"See it fail:               kill -9 $(cat {escape(str(pid))})\n"
        "Ctrl-C stops all members in order.\n"
    )
    configs = [member.config for member in running.members if member.config.etcd.port]
    if configs:
        urls = ",".join(config.etcd.url(config.own.host) for config in configs)
        folder = escape(os.path.normpath(Path(security.certificate).parent))
        trust = f"--cacert {folder}/ca.crt " if configs[0].etcd.tls else ""
        console.print(
            f"Any client of etcd will do, too: etcdctl {trust}--endpoints {urls} put name value\n"
        )


async def _watch_until_signal(
    console: Console, running: LocalCluster, received: AsyncIterator[int]
) -> bool:
    """Print what happens until a signal comes; return False if all members ended before."""
    signalled = False
    async with trio.open_nursery() as nursery:

        async def wait_for_signal() -> None:
            nonlocal signalled
            await anext(received)
            signalled = True
            nursery.cancel_scope.cancel()

        nursery.start_soon(wait_for_signal)
        nursery.start_soon(_print_leaders, console, running)
        async with trio.open_nursery() as members:
            for member in running.members:
                members.start_soon(_print_end, console, member)
        nursery.cancel_scope.cancel()
    return signalled


async def _stop(running: LocalCluster, received: AsyncIterator[int]) -> None:
    """Stop the members in order; at a second signal at once."""
    async with trio.open_nursery() as nursery:

        async def kill_at_signal() -> None:
            await anext(received)
            await running.kill()

        nursery.start_soon(kill_at_signal)
        await running.stop()
        nursery.cancel_scope.cancel()


async def _print_leaders(console: Console, running: LocalCluster) -> None:
    """Print each change of the leader, as the members report it."""
    said, pause = "", LOOK_SECONDS
    while True:
        now = leader_line(await survey(running.addresses))
        pause = min(1.5 * pause, LONGEST_LOOK_SECONDS)
        if now != said:
            console.print(now)
            said, pause = now, LOOK_SECONDS
        await trio.sleep(pause)


def leader_line(seen: Survey) -> str:
    """Say who leads, or why that is not known."""
    leader = seen.leader
    if leader is None:
        states = ", ".join(f"member {one.member_id} {one.state}" for one in seen.said)
        if not states and (refusal := next((one for one in seen.answers if one.refused), None)):
            return f"members run, but refuse their status: {refusal.error} {LOG_IN}."
        return f"no leader: {states or 'no member answers yet'}"
    line = f"term {leader.term}: member {leader.member_id} leads"
    return line if seen.spare > 0 else f"{line}; no other member can be spared"


async def _print_end(console: Console, member: MemberProcess) -> None:
    """Print that a member has ended."""
    status = await member.wait()
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with {status}"
    if status == EX_NOPERM:
        console.print(
            f"member {member.member_id} {how}: it was removed from the cluster, do not start it "
            f"again; see {escape(str(member.log))}"
        )
        return
    file = member.config.directory / "node.toml"
    console.print(
        f"member {member.member_id} {how}; see {escape(str(member.log))}; "
        f"to start it again: quorate run {escape(str(file))}"
    )

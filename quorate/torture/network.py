"""Partitions between real members, by network namespaces.

Each machine, with the member that runs on it, is a network namespace with one interface. A bridge
in the namespace of this process joins them. To cut one member off from another one, in one
direction, its neighbour table gets a wrong hardware address for the other. Its packets then reach
no one and get no answer, as if a cable were pulled. Connections stay open, and the kernel
retransmits until the cut heals or a member gives up. Clients come in over the bridge and are never
cut off, so that they see the behaviour of a member that is.

This needs the right to make network namespaces, possibly in a user namespace, and the programs
`unshare`, `nsenter` and `ip`. :func:`namespace_command` reports what is missing. The process that
makes partitions must itself be in a namespace where it is privileged, so the command line runs
itself again in such a namespace. Nothing is left behind: namespaces end with their processes.
"""

import subprocess
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

__all__ = ["NamespaceError", "Namespaces", "namespace_command", "open_namespaces"]

_NETWORK: Final = "10.77.0"
_BRIDGE: Final = "quorate"
_NOBODY: Final = "02:00:00:00:ff:ff"
_TRIAL: Final = "ip link add quorate0 type bridge && ip link add quorate1 type veth peer quorate2"
_PROBE_SECONDS: Final = 10.0


class NamespaceError(Exception):
    """This machine does not permit network namespaces."""


def namespace_command() -> list[str]:
    """Find the command that runs another command, privileged, in a new network namespace.

    Raises:
        NamespaceError: there is no such command; the message gives the reason.
    """
    reasons: list[str] = []
    for options in (["--net"], ["--map-root-user", "--net"]):
        command = ["unshare", *options, "--"]
        try:
            tried = subprocess.run(  # noqa: S603 - a fixed command
                [*command, "sh", "-c", f"command -v nsenter >/dev/null && {_TRIAL}"],
                capture_output=True,
                text=True,
                check=False,
                timeout=_PROBE_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NamespaceError(str(error)) from error
        if tried.returncode == 0:
            return command
        lines = tried.stderr.strip().splitlines() or ["nsenter or ip is missing"]
        reasons.append(f"{' '.join(command[:-1])}: {lines[-1]}")
    raise NamespaceError("; ".join(reasons))


class Namespaces:
    """The network of some members. Members may be killed and started again in it.

    Args:
        holders: for each member, a process that keeps its namespace alive.
    """

    def __init__(self, holders: Sequence[trio.Process]) -> None:
        self._holders = holders
        self.hosts = [f"{_NETWORK}.{i + 1}" for i in range(len(holders))]

    def launcher(self, member: int) -> list[str]:
        """Return the command that runs another command in that member's namespace."""
        return ["nsenter", f"--net=/proc/{self._holders[member].pid}/ns/net", "--"]

    async def cut(self, sender: int, receiver: int) -> None:
        """Drop everything that one member sends to another one."""
        await self._tell_neighbour(sender, receiver, _NOBODY)

    async def heal(self, sender: int, receiver: int) -> None:
        """Undo a cut."""
        await self._tell_neighbour(sender, receiver, _hardware(receiver))

    async def _tell_neighbour(self, sender: int, receiver: int, address: str) -> None:
        host = self.hosts[receiver]
        line = f"neigh replace {host} lladdr {address} dev member{sender} nud permanent"
        await _ip([line], self.launcher(sender))

    async def lay(self) -> None:
        """Make the bridge, and give each member its interface on it."""
        lines = [
            "link set lo up",
            f"link add {_BRIDGE} type bridge",
            f"address add {_NETWORK}.254/24 dev {_BRIDGE}",
            f"link set {_BRIDGE} up",
        ]
        for i, holder in enumerate(self._holders):
            lines += [
                f"link add port{i} type veth peer name member{i} address {_hardware(i)}",
                f"link set member{i} netns {holder.pid}",
                f"link set port{i} master {_BRIDGE} up",
            ]
        await _ip(lines)
        for i, host in enumerate(self.hosts):
            lines = ["link set lo up", f"address add {host}/24 dev member{i}"]
            await _ip([*lines, f"link set member{i} up"], self.launcher(i))
            for other in range(len(self.hosts)):
                if other != i:
                    await self.heal(i, other)


def _hardware(member: int) -> str:
    return f"02:00:00:00:00:{member + 1:02x}"


async def _ip(lines: Sequence[str], launcher: Sequence[str] = ()) -> None:
    """Run commands of `ip`.

    Raises:
        NamespaceError: a command fails; the message gives the reason.
    """
    try:
        await trio.run_process(
            [*launcher, "ip", "-batch", "-"],
            stdin="\n".join(lines).encode() + b"\n",
            capture_stderr=True,
        )
    except subprocess.CalledProcessError as error:
        said = bytes(error.stderr).decode(errors="replace").strip()
        raise NamespaceError(f"ip: {said}") from error


@asynccontextmanager
async def open_namespaces(members: int) -> AsyncGenerator[Namespaces]:
    """Make a network for `members` members, for the duration of a block.

    Raises:
        NamespaceError: this process is not permitted to; see :func:`namespace_command`.
    """
    holders: list[trio.Process] = []
    try:
        while len(holders) < members:
            holders.append(await _hold())
        network = Namespaces(holders)
        await network.lay()
        yield network
    finally:
        with trio.CancelScope(shield=True):
            for holder in holders:
                holder.kill()
                await holder.wait()


async def _hold() -> trio.Process:
    """Start a process in a new network namespace; it ends when its standard input closes."""
    holder = await trio.lowlevel.open_process(
        ["unshare", "--net", "--", "sh", "-c", "echo && exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,
    )
    assert holder.stdout is not None
    if not await holder.stdout.receive_some(1):
        raise NamespaceError("unshare --net: failed")
    return holder

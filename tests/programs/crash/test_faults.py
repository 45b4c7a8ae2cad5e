"""The faults of the torture are what they say: each does its harm, and mends it."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import pytest
import trio

from quorate.client.resp import RespClient, RespError
from quorate.local.cluster import MemberProcess, free_client_port, lay_out
from quorate.torture import disk
from quorate.torture.network import NamespaceError, namespace_command

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

START_SECONDS: Final = 60.0

# Full and slow disks ----------------------------------------------------------------------------


@asynccontextmanager
async def alone(directory: Path) -> AsyncGenerator[MemberProcess]:
    """A cluster of one member."""
    (config,) = lay_out(directory, members=1, client_port=free_client_port(1))
    member = MemberProcess(config)
    try:
        yield member
    finally:
        with trio.CancelScope(shield=True):
            await member.kill()


async def connect(member: MemberProcess) -> RespClient:
    """Start a member unless it runs, and wait until it serves."""
    if member.pid is None:
        await member.start()
    address = member.address
    with trio.fail_after(START_SECONDS):
        while True:
            try:
                client = await RespClient.connect(address.host, address.client_port)
                await client.call("GET", "x")
            except OSError:
                await trio.sleep(0.02)
            else:
                return client


async def test_a_member_whose_disk_is_full_begins_anew_with_what_it_acknowledged(
    tmp_path: Path,
) -> None:
    async with alone(tmp_path) as member:
        client = await connect(member)
        await client.call("SET", "first", "1")
        disk.fill(member)
        acknowledged = 0
        with suppress(OSError, RespError):
            while True:
                await client.call("SET", f"key-{acknowledged}", "x" * 1000)
                acknowledged += 1
        client.close()
        with trio.fail_after(START_SECONDS):
            words = f"starts again when there is room: {tmp_path}/member-0/"
            while words not in member.log.read_text():  # noqa: ASYNC110 - of another process
                await trio.sleep(0.02)
        pid = member.pid
        disk.empty(member)
        client = await connect(member)
        assert await client.call("GET", "first") == b"1"
        for n in range(acknowledged):
            assert await client.call("GET", f"key-{n}") == b"x" * 1000
        client.close()
        assert member.pid == pid is not None


async def test_a_disk_that_is_emptied_in_time_was_never_full(tmp_path: Path) -> None:
    async with alone(tmp_path) as member:
        client = await connect(member)
        disk.fill(member)
        disk.empty(member)
        for n in range(100):
            await client.call("SET", f"key-{n}", "x" * 1000)
        client.close()
        assert member.pid


SYNCS: Final = """
import os, sys, time, mmap
from pathlib import Path
from quorate.storage.writing.journal_writer import Writer, open_synced
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 4096)
map = mmap.mmap(file, 4096)
synced = os.open(sys.argv[1], os.O_RDWR | os.O_DSYNC)
syncs = (lambda: os.fsync(file), lambda: os.fdatasync(file), map.flush)
write = lambda: os.pwrite(synced, b"x", 0)
Path(sys.argv[1] + "j").touch()
journal, wake = open_synced(Path(sys.argv[1] + "j"), bytes(4096)), os.eventfd(0)
writer = Writer(wake)
in_c = lambda: writer.write(journal, 0, bytes(4096)) or os.eventfd_read(wake)
for sync in (*syncs, write, in_c, lambda: os.pwrite(file, b"x", 0)):
    began = time.monotonic()
    sync()
    print(int(1000 * (time.monotonic() - began)))
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    # Only this is a reason to skip: a source that is not found would hide that no disk is slow.
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    return disk.slow_library(tmp_path)


async def test_a_slow_disk_takes_longer_for_each_sync(tmp_path: Path, library: Path) -> None:
    async with alone(tmp_path / "cluster") as member:
        command = [sys.executable, "-c", SYNCS, str(tmp_path / "file")]
        environment = {**os.environ, **disk.environment(library, member)}

        def measure() -> list[int]:
            run = subprocess.run(command, env=environment, capture_output=True, check=True)
            return [int(time) for time in run.stdout.split()]

        disk.slow_down(member, 300)
        *syncs, nothing = measure()
        assert len(syncs) == 5
        assert min(syncs) >= 300
        assert nothing < 300
        disk.speed_up(member)
        assert len(measure()) == 6


def test_no_compiler_no_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(disk.DiskError, match="no C compiler"):
        disk.slow_library(tmp_path)
    monkeypatch.setenv("CC", str(tmp_path / "absent"))
    with pytest.raises(disk.DiskError, match="absent"):
        disk.slow_library(tmp_path)


# Partitions -------------------------------------------------------------------------------------

CUTS: Final = f"""
import errno, socket, sys
import trio
from quorate.torture.network import open_namespaces

ASK = '''
import socket, sys
with socket.socket() as s:
    s.settimeout(0.3)
    print(s.connect_ex((sys.argv[1], 9)))
'''

async def main():
    async with open_namespaces(3) as network:
        async def reach(sender, receiver):
            ask = [sys.executable, "-c", ASK, network.hosts[receiver]]
            ran = await trio.run_process([*network.launcher(sender), *ask], capture_stdout=True)
            return int(ran.stdout)

        async def reached():
            return [(a, b) for a in range(3) for b in range(3)
                    if a != b and await reach(a, b) == {errno.ECONNREFUSED}]

        print(await reached())
        await network.cut(0, 1)
        print(await reached())
        with socket.socket() as outside:
            print([outside.connect_ex((host, 9)) for host in network.hosts])
        await network.heal(0, 1)
        print(await reached())

trio.run(main)
"""


def test_a_cut_is_for_one_pair_alone_and_heals() -> None:
    try:
        command = namespace_command()
    except NamespaceError as error:
        pytest.skip(f"no network namespaces here: {error}")
    run = subprocess.run(
        [*command, sys.executable, "-c", CUTS], stdout=subprocess.PIPE, text=True, check=True
    )
    everyone = str([(a, b) for a in range(3) for b in range(3) if a != b])
    others = str([(0, 2), (1, 2), (2, 0), (2, 1)])  # a connection takes both directions
    outside = str([errno.ECONNREFUSED] * 3)
    assert run.stdout.splitlines() == [everyone, others, outside, everyone]


def test_no_namespaces_no_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NamespaceError, match="unshare"):
        namespace_command()
    false = tmp_path / "unshare"
    false.write_text(
        "#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n"
    )
    false.chmod(0o755)
    with pytest.raises(
        NamespaceError, match=r"unshare --net: .*permitted; unshare --map-root-user"
    ):
        namespace_command()

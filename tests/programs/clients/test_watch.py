"""Watches of a real cluster, while its members die; and the example of docs/watch.md."""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false

import re
import select
import subprocess
import sys
from pathlib import Path

import redis
import trio

from quorate.client.dialling import Dialler
from quorate.client.watch import RemoteWatch
from quorate.keyvalue.programs.watch import Watch
from quorate.keyvalue.state.changes import Change
from quorate.transport import Address
from tests.support.real import RealCluster, set_surely

DOCUMENT = Path(__file__).parents[3] / "docs" / "watch.md"
COUNT = 60


def write_all(cluster: RealCluster, leader: int) -> None:
    """Set a key to one number after the other, and kill the leader meanwhile."""
    with redis.Redis(port=cluster.ports[(leader + 1) % 3]) as client:
        for number in range(COUNT):
            if number == COUNT // 3:
                cluster.kill(leader)
            set_surely(client, "app/n", number)


async def changes_of(watch: Watch) -> list[Change]:
    found: list[Change] = []
    async with watch:
        while not found or found[-1].value != b"%d" % (COUNT - 1):
            found.append(await anext(watch))
    return found


async def watch_all(cluster: RealCluster, leader: int) -> list[list[Change]]:
    """Return what three watches have seen that began at one member each, and a later one."""
    members = [Address("127.0.0.1", port) for port in cluster.ports]
    found: list[list[Change]] = [[], [], []]

    async def follow(place: int, watch: RemoteWatch) -> None:
        found[place] = await changes_of(watch)

    began = -1
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for place in range(3):
                turned = members[place:] + members[:place]
                watch = RemoteWatch(Dialler(), turned, b"app/", -1, 30.0)
                await watch.__aenter__()
                began = watch.position
                nursery.start_soon(follow, place, watch)
            await trio.to_thread.run_sync(write_all, cluster, leader)
        found.append(await changes_of(RemoteWatch(Dialler(), members, b"app/", began, 30.0)))
    return found


def test_watches_see_every_change_once_while_the_leader_is_killed(whole: RealCluster) -> None:
    first, *others = trio.run(watch_all, whole, whole.leader)
    assert [other == first for other in others] == [True] * 3
    positions = [change.position for change in first]
    assert positions == sorted(set(positions))
    # A write whose answer was lost is sent again, and may be there twice.
    numbers = [int(change.value or b"") for change in first]
    assert sorted(set(numbers)) == [*range(COUNT)]
    assert numbers == sorted(numbers)


def test_the_example_prints_what_happens(whole: RealCluster) -> None:
    text = DOCUMENT.read_text().partition("With redis-py:")[2]
    (example, *_) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    port = whole.follower_port
    program = example.replace("7000", str(port)).replace("value)", "value, flush=True)")
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        with redis.Redis(port=port) as client:
            line = b""
            while not line:  # until it watches
                client.set("app/begin", 1)
                ready, _, _ = select.select([process.stdout], [], [], 0.1)
                line = process.stdout.readline() if ready else b""
            client.mset({"app/x": 1, "other": 2})
            client.delete("app/x")
            client.set("app/end", "")
        lines: list[bytes] = []
        while b"app/end" not in (line := process.stdout.readline()):
            lines.append(line.partition(b" ")[2])
        process.kill()
    assert lines[-2:] == [b"b'set' b'app/x' b'1'\n", b"b'deleted' b'app/x' None\n"]

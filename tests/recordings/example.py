"""Writes ``tests/web/data/leader-dies.qtrace``: three members, clients, and a leader that dies.

``python -m tests.recordings.example`` writes it anew. It is a simulation, so it is the same each
time, until the program changes.
"""

import random
import tempfile
from pathlib import Path
from typing import IO

import trio

from quorate import __version__
from quorate.node import Service
from quorate.recordings import Source
from quorate.recordings.head import VIRTUAL, Head, RecordedMember
from quorate.recordings.writing import open_to_write
from quorate.simulation import Observer, Setting, World, open_world, run
from quorate.simulation.door import Door, Serials
from quorate.simulation.store import stores
from quorate.simulation.watching.trace import Trace
from quorate.simulation.watching.watched import watch
from quorate.simulation.workloads import Strings, Workload

EXAMPLE = Path(__file__).parent.parent / "web" / "data" / "leader-dies.qtrace"
SEED = 7


async def leader_dies(directory: Path, file: IO[str], *, after: float = 1.0) -> None:
    """Kill the leader of a cluster with clients, and start it again.

    Args:
        directory: for the members' stores.
        file: gets the recording.
        after: seconds of virtual time before, between and after that.
    """
    members = tuple(RecordedMember(i) for i in range(3))
    trace = Trace(
        file, Head(Source.SIMULATION, __version__, "simulated", VIRTUAL, 0, members, seed=SEED)
    )
    observer = Observer([0, 1, 2])
    service = watch(stores(random.Random(SEED)), observer.tell, observer)
    setting = Setting(seed=SEED, jitter=0.002, fsync_jitter=0.002)
    async with open_world(directory, service, setting, trace=trace, observer=observer) as world:
        await world.start()
        await world.settled()
        async with trio.open_nursery() as nursery:
            serials, strings = Serials(), Strings()
            for i in range(2):
                door = Door(i, world, random.Random(f"{SEED}/{i}"), observer.tell, serials)
                nursery.start_soon(_work, door, strings)
            await _kill_leader(world, trace, after)
            trace.close()
            nursery.cancel_scope.cancel()


async def _work(door: Door, workload: Workload) -> None:
    while True:
        await workload.act(door)
        await trio.sleep(0.3 * door.rng.random())


async def _kill_leader(world: World[Service], trace: Trace, after: float) -> None:
    await trio.sleep(after)
    leader = await world.leader()
    trace.tell("fault", what="kill the leader", targets=[leader])
    await world.kill(leader)
    await world.leader()
    await trio.sleep(after)
    await world.start(leader)
    await world.settled()
    await trio.sleep(after)


def main() -> None:
    """Write the file."""
    with tempfile.TemporaryDirectory() as directory, open_to_write(EXAMPLE) as file:
        run(leader_dies, Path(directory), file, seed=SEED)


if __name__ == "__main__":
    main()

"""A cluster with partitions for benches: its machines as child processes, its leaders, its keys."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import trio

from quorate.keyvalue.protocol.resp import encode_command
from quorate.keyvalue.slots.cluster_map import META
from quorate.keyvalue.slots.hashing import key_slot
from quorate.keyvalue.slots.ranges import parse_slots_untrusted
from quorate.local.cluster import HOST, free_client_port
from quorate.machine.config import MachineConfig
from quorate.machine.layout import lay_out_machines, supervisor_of
from quorate.machine.maps import newest_map
from quorate.machine.partition_survey import GroupSeen, survey_groups

MACHINES: Final = 3
READY_SECONDS: Final = 120
TOGETHER: Final = 500
"""Commands that are sent together when keys are set."""


@attrs.frozen
class Machines:
    """The machines of a cluster that runs.

    Args:
        configs: theirs.
        pids: of their supervisors.
    """

    configs: Sequence[MachineConfig]
    pids: Sequence[int]

    async def groups(self) -> list[GroupSeen]:
        """Wait until all groups serve, with the leaders that they are meant to have.

        Returns:
            What they say, metadata first.
        """
        with trio.fail_after(READY_SECONDS):
            while True:
                known = newest_map(self.configs)
                seen = await survey_groups(known, figures=False)
                if all(each.is_ready and len(each.survey.said) == MACHINES for each in seen):
                    leaders = [leader_of(each) for each in seen[1:]]
                    if leaders == [each.preferred for each in known.partitions]:
                        return seen
                await trio.sleep(0.2)

    def pids_of(self, partition: int) -> dict[int, int]:
        """Return the process of each member of a partition, by machine."""
        name = "meta" if partition == META else f"partition-{partition}"
        return {
            config.machine_id: int((config.directory / name / "pid").read_text())
            for config in self.configs
        }

    def port(self, machine: int, partition: int) -> int:
        """Return the port for clients of a member."""
        return self.configs[machine].own.as_machine().client_port(partition)


@asynccontextmanager
async def open_machines(place: Path, partitions: int) -> AsyncGenerator[Machines]:
    """Run three machines for the length of a block."""
    configs = lay_out_machines(
        place, machines=MACHINES, partitions=partitions, client_port=free_client_port(9)
    )
    children = [supervisor_of(config) for config in configs]
    try:
        for child in children:
            await child.start()
        machines = Machines(configs, [child.pid or 0 for child in children])
        await machines.groups()
        yield machines
    finally:
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                for child in children:
                    nursery.start_soon(child.stop)


def leader_of(seen: GroupSeen) -> int:
    """Return the machine that leads a group which serves."""
    assert seen.survey.leader is not None
    return seen.survey.leader.member_id


def tag_of(seen: GroupSeen) -> str:
    """Return a word whose slot a partition owns."""
    owned = parse_slots_untrusted(seen.slots)
    return next(tag for n in range(10_000) if owned >> key_slot((tag := f"t{n}").encode()) & 1)


async def set_keys(port: int, keys: Iterator[str], value_bytes: int) -> int:
    """Set keys that a partition owns, at its leader; return how many.

    Raises:
        RuntimeError: a reply was an error.
    """
    value, count = b"v" * value_bytes, 0
    async with await trio.open_tcp_stream(HOST, port) as stream:
        while chunk := [key for _, key in zip(range(TOGETHER), keys, strict=False)]:
            await stream.send_all(b"".join(encode_command(["SET", key, value]) for key in chunk))
            reply = b""
            while len(reply) < len(b"+OK\r\n") * len(chunk):
                reply += await stream.receive_some()
            if reply != b"+OK\r\n" * len(chunk):
                raise RuntimeError(
                    f"a key was not set: {reply.replace(b'+OK', b'').strip()[:200]!r}"
                )
            count += len(chunk)
    return count

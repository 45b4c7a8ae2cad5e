"""Lines on their way to a ring: those that wait since the disk is nearly full, and late starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import trio
import trio.testing

from quorate.recordings.gathering import Gatherer
from quorate.recordings.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Clock = trio.testing.MockClock

T = TypeVar("T")


class Direct:
    """Runs calls in the loop, since a thread takes no virtual time."""

    async def read(self, fn: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        return fn()


def gatherer_at(
    path: Path,
    failures: list[OSError],
    held: Callable[[], bool] = lambda: False,
    prepare: Callable[[], None] = lambda: None,
) -> Gatherer:
    return Gatherer(
        Ring(path, file_bytes=1 << 20, files=2),
        most_waiting=1000,
        lost=lambda count: b"%d lost\n" % count,
        failed=failures.append,
        lane=Direct(),
        held=held,
        prepare=prepare,
    )


async def test_nothing_is_written_while_the_disk_is_nearly_full(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    path, full = tmp_path / "ring", True
    lines = gatherer_at(path, [], held=lambda: full)
    async with trio.open_nursery() as nursery:
        await nursery.start(lines.run)
        for _ in range(100):
            lines.put(b"x" * 19 + b"\n")
            await trio.sleep(0.5)
        assert not path.exists()
        full = False
        await trio.sleep(2)
        written = path.read_bytes().splitlines()
        assert [each for each in written if each != b"x" * 19] == [b"50 lost"]
        assert len(written) == 51
        full = True
        lines.put(b"why it ends\n")
        nursery.cancel_scope.cancel()
    # One that ends says why in any case.
    assert path.read_bytes().endswith(b"why it ends\n")


async def test_what_could_not_be_prepared_is_tried_again(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    directory, failures = tmp_path / "flight", list[OSError]()
    full = True

    def prepare() -> None:
        if full:
            raise OSError(28, "No space left on device")
        directory.mkdir(exist_ok=True)

    lines = gatherer_at(directory / "ring", failures, prepare=prepare)
    async with trio.open_nursery() as nursery:
        await nursery.start(lines.run)
        lines.put(b"one\n")
        await trio.sleep(1)
        assert len(failures) == 1
        full = False
        lines.put(b"two\n")
        await trio.sleep(1)
        assert (directory / "ring").read_bytes() == b"1 lost\ntwo\n"
        nursery.cancel_scope.cancel()

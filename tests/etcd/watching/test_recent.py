"""The latest changes are kept within bounds; older ones come from the rows."""

from unittest.mock import patch

from quorate.etcd.watching import recent
from tests.support.etcd_world import EtcdWorld, in_world

from .watcher import Watcher


@in_world
async def test_changes_are_the_same_from_memory_and_from_the_rows(world: EtcdWorld) -> None:
    state = world.member.state
    with (
        Watcher.opened(world) as watcher,
        patch.object(recent, "RECENT_REVISIONS", 3),
        patch.object(recent, "RECENT_BYTES", 5000),
    ):
        await watcher.created(b"a")
        for n in range(10):
            await world.put(b"a", b"%d" % n)
        await world.delete(b"a")
        read: list[int] = []

        def note(_state: object, revision: int) -> None:
            read.append(revision)

        with patch.object(type(state), "changes_of", note):
            for revision in range(2, 13):
                world.hub.recent.of(revision)
        # Revision 2 to 11 are puts, 12 is a deletion; three are kept.
        assert read == [*range(2, 10)]
        for revision in range(2, 13):
            assert [*world.hub.recent.of(revision)] == [*state.changes_of(revision)]
        # One that is larger than all that may be kept is not kept, and nothing else is.
        await world.put(b"a", b"x" * 6000)
        await world.put(b"a", b"y")
        with patch.object(type(state), "changes_of", note):
            world.hub.recent.of(13)
            world.hub.recent.of(14)
        assert read[-1] == 13

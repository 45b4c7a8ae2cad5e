"""The parts of a member whose figures are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ...storage import Store
    from ...transport import Links
    from ..clocks import Clocks
    from ..election.context import ElectionContext
    from ..requests.status import NodeStatus
    from ..state import MemberState
    from ..state_machine.applier import Applier
    from ..state_machine.snapshots import Snapshots
    from ..upkeep.disk_space import DiskSpaceWatch
    from ..upkeep.repair import Repair


class Parts(Protocol):
    """A member, as far as its figures are concerned; see `Member`."""

    state: MemberState
    store: Store
    links: Links
    applier: Applier
    snapshots: Snapshots
    election: ElectionContext
    repair: Repair
    disk_space: DiskSpaceWatch
    clocks: Clocks

    def status(self) -> NodeStatus:
        """Describe the member as it is now."""
        ...

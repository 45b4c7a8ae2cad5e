"""An endpoint without a cluster: a bare service, whose log is applied at once."""

from quorate.node.requests.request import UNSTAMPED, Stamp
from quorate.node.state_machine.service import Command
from tests.support.service_world import Fed


class LoneMember:
    """Applies each command at once.

    Attributes:
        payloads: those of the commands.
        queries: those of the queries.
    """

    def __init__(self, fed: Fed) -> None:
        self.fed = fed
        self.payloads: list[bytes] = []
        self.queries: list[bytes] = []

    async def command(self, payload: bytes, flags: int = 0, stamp: Stamp = UNSTAMPED) -> bytes:
        self.payloads.append(payload)
        fed = self.fed
        return fed.replay(Command(payload, flags, *stamp, 1, fed.position, 0, fed.now))

    async def query(self, payload: bytes, flags: int = 0) -> bytes:
        self.queries.append(payload)
        return self.fed.service.query(payload, flags)

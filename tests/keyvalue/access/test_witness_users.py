"""A witness has no tables, so it asks the leader for the users."""

from pathlib import Path

import attrs
import trio

from quorate.errors import NoLeaderError
from quorate.keyvalue.access.rules import DEFAULT
from quorate.keyvalue.access.users import DEFAULT_NAME, Users
from quorate.keyvalue.port.port_access import PortAccess
from quorate.keyvalue.port.port_state import ClientPortLimits, PortState
from quorate.keyvalue.port.witness_users import UNKNOWN, follow_users
from quorate.keyvalue.service import KeyValueService
from tests.support.client_port_world import OneMember


async def test_a_witness_takes_over_the_users_of_the_leader(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    service = KeyValueService.open(tmp_path, cluster="orders", member_id=0)
    member = OneMember(service)
    own = Users()
    own.replace({DEFAULT_NAME: UNKNOWN})
    state = PortState(member, ClientPortLimits(), access=PortAccess(own, spread_s=2.0))
    service.users.set(b"bob", [b"on", b"nopass", b"~a*", b"+get"], 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow_users, state)
        await trio.sleep(1.5)
        assert own.get(DEFAULT_NAME) == UNKNOWN  # it is no witness
        member.topology = attrs.evolve(member.topology, witness=True)
        await trio.sleep(1.5)
        assert [*own] == [b"bob", b"default"]
        assert own.get(DEFAULT_NAME) == DEFAULT
        assert own.get(b"bob") == service.users.get(b"bob")
        service.users.delete([b"bob"], 2)
        await trio.sleep(1.5)
        assert [*own] == [b"default"]
        # one lost answer changes nothing, a long silence closes the port to strangers
        member.error = NoLeaderError()
        await trio.sleep(1.5)
        assert own.get(DEFAULT_NAME) == DEFAULT
        await trio.sleep(3.0)
        assert own.get(DEFAULT_NAME) == UNKNOWN
        access = own.access(DEFAULT_NAME)
        assert access is not None
        assert not access.open
        assert access.joins == 0
        member.error = None
        await trio.sleep(1.5)
        assert own.get(DEFAULT_NAME) == DEFAULT
        nursery.cancel_scope.cancel()
    service.close()

"""The groups of members, through their client ports: what the director drives.

A group has a connection once it is asked, and a new one when the map puts its members elsewhere.
Requests of operators and questions for the status have connections of their own: they are few, and
some take long.

The user and the files of TLS are those of the command line: `QUORATE_USER`, `QUORATE_PASSWORD`,
`QUORATE_CA` and so on.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import attrs
import msgspec
import trio

from ..client.dialling import Dialler
from ..client.group import Group, StoreOptions
from ..client.resp import RespError, open_resp
from ..client.routing import ANSWER_SECONDS, Routes
from ..client.secure import port_of
from ..client.watch import RemoteWatches
from ..errors import NoLeaderError, RefusedError, UnknownOutcomeError
from ..keyvalue.protocol.resp import encode_command
from ..keyvalue.retry import Fate, fate_of_code
from ..local.survey import ask, survey
from ..node.one_error import one_error
from ..node.requests.status import MemberAddress
from ..transport import Address
from .login import login_of_environment

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from ..client.dialling import Value, Wire
    from ..keyvalue.programs.client import Argument, KeyValue
    from ..keyvalue.protocol.resp import Reply
    from ..keyvalue.slots.cluster_map import ClusterMap, Machine
    from ..partitions import groups

__all__ = [
    "RemoteGroup",
    "RemoteGroups",
    "address_in",
    "addresses_of",
    "open_group",
    "open_groups",
    "says_it_leads",
]

PATIENCE_SECONDS: Final = 4.0
"""How long a request waits for a leader. Shorter than an election under load takes, and it fails
for nothing. Longer, and a group without a quorum holds up the others."""

CONTROL_SECONDS: Final = 30.0
"""How long a request of an operator may take. Shorter, and an orderly transfer of a busy group is
not seen to its end. Longer, and a machine that is gone holds up the director."""

NO_STEPS: Final = 2**53
"""Steps of elections after so many: none."""

_DIAL_SECONDS: Final = 2.0
_STATUS: Final = encode_command(["QUORATE.STATUS"])
_SESSION_SECONDS: Final = 300.0  # no session is opened


def addresses_of(cluster_map: ClusterMap, partition: int) -> list[MemberAddress]:
    """Return where clients reach the members of a partition, or of `META`; preferred first."""
    ids = list(cluster_map.members_of(partition))
    if partition >= 0:
        preferred = cluster_map.partitions[partition].preferred
        ids.sort(key=lambda each: each != preferred)
    machines = [machine for each in ids if (machine := cluster_map.machine(each)) is not None]
    return [address_in(each, partition) for each in machines]


def address_in(machine: Machine, partition: int) -> MemberAddress:
    """Return where clients reach a machine's member of a partition, or of `META`."""
    return MemberAddress(
        machine.machine_id,
        machine.host,
        machine.client_port(partition),
        machine.port_of_member(partition),
        tls_port=machine.client_tls_port(partition),
    )


class _Routes(Routes):
    """Finds the leader of one group by the status of its members.

    The map and CLUSTER SLOTS, by which clients find leaders, are about all groups, and are not
    there before the cluster is founded.

    Args:
        dialler: opens connections.
        members: client ports of the members, by id.
    """

    def __init__(self, dialler: Dialler, members: Mapping[int, Address]) -> None:
        super().__init__(dialler, [*members.values()])
        self._members = members

    def serves(self, address: Address) -> bool:
        """Whether this may be a member of the group."""
        return address in self._members.values()

    async def _ask_leader(self, wire: Wire) -> Address | None:
        await wire.send(_STATUS)
        leader = _leader_untrusted(await wire.receive(ANSWER_SECONDS))
        return None if leader is None else self._members.get(leader)


class _Status(msgspec.Struct):
    """What is read of the reply to QUORATE.STATUS."""

    leader_id: int | None


def _leader_untrusted(reply: Value) -> int | None:
    """Return who leads, by the reply to QUORATE.STATUS; None if that does not say it."""
    # A user without the right to ask gets an error: then members pass its requests on.
    try:
        return msgspec.json.decode(
            reply if isinstance(reply, bytes) else b"", type=_Status
        ).leader_id
    except msgspec.MsgspecError:
        return None


class RemoteGroup:
    """A group of members; see `partitions.groups.Group`.

    Args:
        nursery: runs its connections.
        members: returns the client ports of its members.
    """

    def __init__(
        self, nursery: trio.Nursery, members: Callable[[], Sequence[MemberAddress]]
    ) -> None:
        self._nursery, self._members = nursery, members
        self._leader: MemberAddress | None = None
        self._opening = trio.Lock()
        self._opened: tuple[dict[int, Address], KeyValue, anyio.CancelScope] | None = None

    async def execute(self, *words: Argument) -> Reply:
        """Run a command of the state machine at the leader.

        Raises:
            KeyValueError: the store replied with an error.
            NoLeaderError: nothing happened.
            RefusedError: nothing happened: we may not log in, or writes are suspended.
            UnknownOutcomeError: it may have happened, and may still happen.
        """
        kv = await self._connected()
        try:
            return await kv.execute(*words)
        except RefusedError:
            # Perhaps users were changed under the connection. A new one logs in anew.
            if self._opened is not None and self._opened[1] is kv:
                self._opened[2].cancel()
                self._opened = None
            raise

    async def control(self, words: str) -> str:
        """Ask the leader for what only an operator may, through any member.

        Raises:
            RefusedError: it cannot be done, and nothing has changed.
            NoLeaderError: nothing happened.
            UnknownOutcomeError: it may have happened, and may still happen.
        """
        trouble = NoLeaderError("no member answers")
        for address in await self._leader_first():
            try:
                if (said := await _control(address, words)) is not None:
                    return said
            except NoLeaderError as error:  # it knows none, but nothing has happened there
                trouble = error
        raise trouble

    async def status(self) -> Mapping[str, Any]:
        """Return the leader's answer to QUORATE.STATUS, with what it has measured of late.

        Raises:
            NoLeaderError: no member says that it leads.
        """
        said = None if self._leader is None else await _leader_says(self._leader)
        if said is None:
            await self._find_leader()
            said = None if self._leader is None else await _leader_says(self._leader)
        if said is None:
            raise NoLeaderError("no member says that it leads")
        return said

    async def _find_leader(self) -> None:
        seen = await survey(self._members())
        leads = [each.address for each in seen.answers if each.status is seen.leader]
        self._leader = leads[0] if leads and seen.leader is not None else None

    async def _leader_first(self) -> list[MemberAddress]:
        """Return the members. One without a seat may hold a request for long, and knows nobody."""
        if self._leader not in self._members():
            await self._find_leader()
        return sorted(self._members(), key=lambda each: each != self._leader)

    async def _connected(self) -> KeyValue:
        """Return a store whose requests go to the present members."""
        async with self._opening:
            present = self._members()
            wanted = _places(present)
            if self._opened is not None:
                members, kv, scope = self._opened
                if members == wanted:
                    return kv
                scope.cancel()
            self._opened = None
            kv, scope = cast(
                "tuple[KeyValue, anyio.CancelScope]", await self._nursery.start(self._hold, present)
            )
            self._opened = wanted, kv, scope
            return kv

    async def _hold(
        self,
        members: Sequence[MemberAddress],
        *,
        task_status: trio.TaskStatus[tuple[KeyValue, anyio.CancelScope]],
    ) -> None:
        with anyio.CancelScope() as scope:
            async with open_group(members) as kv:
                task_status.started((kv, scope))
                await trio.sleep_forever()


@one_error
@asynccontextmanager
async def open_group(members: Sequence[MemberAddress]) -> AsyncGenerator[KeyValue]:
    """Open the store of one group for the length of a block; it needs no map of the cluster.

    Args:
        members: where its members may be.
    """
    # A group that has just begun knows no users; the director gives it some.
    dialler = Dialler(**login_of_environment(), or_nobody=True)
    places = _places(members)
    options = StoreOptions(False, _SESSION_SECONDS, PATIENCE_SECONDS, SystemRandom())
    group = Group(_Routes(dialler, places), options)
    watches = RemoteWatches(
        dialler, [*places.values()], patience_s=PATIENCE_SECONDS, rng=options.rng
    )
    group.kv.watches = watches
    try:
        async with anyio.create_task_group() as tasks:
            group.start(tasks)
            yield group.kv
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):  # it waits for no member
            await group.aclose()
            await watches.aclose()


def _places(members: Sequence[MemberAddress]) -> dict[int, Address]:
    return {each.member_id: Address(each.host, port_of(each)) for each in members}


async def _leader_says(address: MemberAddress) -> Mapping[str, Any] | None:
    """Return the status of a member; None if it does not answer, or does not lead."""
    answer = await ask(address, since=NO_STEPS)
    if answer.status is None or answer.status.role != "leader":
        return None
    return attrs.asdict(answer.status) | {"recent": answer.recent or {}}


async def says_it_leads(address: MemberAddress) -> bool | None:
    """Ask a member whether it leads; None if it does not answer."""
    answer = await ask(address, since=NO_STEPS)
    if answer.refused:
        return True  # it is not to be told to us, so what it has noted has to do
    return None if answer.status is None else answer.status.role == "leader"


async def _control(address: MemberAddress, words: str) -> str | None:
    """Send a request of an operator through a member; None if it did not get there.

    Raises:
        RefusedError: it cannot be done.
        NoLeaderError: nothing happened.
        UnknownOutcomeError: the outcome is unknown.
    """
    sent = False
    try:
        with trio.fail_after(CONTROL_SECONDS), trio.CancelScope() as scope:
            scope.deadline = trio.current_time() + _DIAL_SECONDS
            async with open_resp(address.host, port_of(address)) as client:
                await client.call("PING")
                scope.deadline, sent = float("inf"), True
                said = await client.call("QUORATE.CONTROL", *words.split())
                return said.decode() if isinstance(said, bytes) else str(said)
    except RespError as refusal:
        reason = str(refusal).partition(" ")[2]
        if fate_of_code(refusal.code) is Fate.ANSWERED:
            raise RefusedError(reason) from None
        kind = UnknownOutcomeError if refusal.code == "UNKNOWN" else NoLeaderError
        raise kind(reason) from None
    except (OSError, trio.TooSlowError) as trouble:
        if sent:
            raise UnknownOutcomeError(f"{words}: the reply is lost") from trouble
    return None


class RemoteGroups:
    """All groups of a cluster, where the newest map puts them; see `partitions.groups.Groups`.

    Args:
        nursery: runs their connections.
        newest: returns the newest map.
    """

    def __init__(self, nursery: trio.Nursery, newest: Callable[[], ClusterMap]) -> None:
        self._nursery, self._newest = nursery, newest
        self._groups: dict[int, RemoteGroup] = {}

    def group(self, partition: int) -> groups.Group:
        """Return the group of a partition, or of `META`. It need not answer."""
        found = self._groups.get(partition)
        if found is None:
            found = RemoteGroup(self._nursery, lambda: self._members_of(partition))
            self._groups[partition] = found
        return found

    def _members_of(self, partition: int) -> list[MemberAddress]:
        """Return where the members of a group are.

        Raises:
            NoLeaderError: the newest map that is known here does not have the partition yet.
        """
        newest = self._newest()
        if partition >= len(newest.partitions):
            raise NoLeaderError(f"map {newest.epoch} has no partition {partition} yet")
        return addresses_of(newest, partition)


@asynccontextmanager
async def open_groups(newest: Callable[[], ClusterMap]) -> AsyncGenerator[RemoteGroups]:
    """Open the groups of a cluster for the length of a block.

    Args:
        newest: returns the newest map.
    """
    async with trio.open_nursery() as nursery:
        yield RemoteGroups(nursery, newest)
        nursery.cancel_scope.cancel()

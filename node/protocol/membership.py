"""The members of a cluster as a value, the configuration, and the steps from one to the next.

A configuration is the whole list of seats, and the voters among them. Each change is a new value
with the next version, and becomes an entry of the log (:mod:`..membership` says when it counts). A
value is *joint* while the voters change: then the old voters (`outgoing`) decide together with the
new ones, by a majority of each set (:mod:`.quorum`).

::

    add a seat, claim it, move it        one entry: the voters stay the same
    promote, demote, remove a voter      two: `promoted` or `without_vote` (J), `completed` (F)

A seat says what its member is meant to be (`role`). Whether it votes is for `voters` to say: a seat
with the role of a voter that is not among them is *joining*. So the log itself says what is left to
do, and any later leader goes on with it.

A voter is a pair of a member id and a store. A store that replaces a lost one claims the seat of
its member, and joins like any other: the pair with the lost store stays a voter until the change.
"""

from __future__ import annotations

import enum
import json
import re
from typing import TYPE_CHECKING, Any, Final, cast

import attrs

from ...errors import RefusedError, WireError
from ...storage import LogEnd
from ...storage.rows.log_end import EMPTY_LOG
from .hosts import MAX_HOST_CHARACTERS
from .quorum import ANY_STORE, Quorums, VoterId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

MAX_SEATS: Final = 18
"""Most seats: nine voters, each of them being replaced. A configuration is sent in one entry."""

MAX_VOTERS: Final = 9
"""Most voters. If larger, every write waits for more disks, and no failure that really happens is
survived in addition."""

MAX_PAYLOAD_BYTES: Final = 32 << 10
"""Longest entry that is read. `MAX_SEATS` seats with the longest host names stay below it."""

UNKNOWN_STORE: Final = 1
"""The store of a voter whose store is not known when voters are first named with their stores. No
member has it, so that voter counts for nothing until a store claims its seat."""


class MemberRole(enum.Enum):
    """What a seat is meant to be."""

    VOTER = "voter"
    STANDBY = "standby"
    """It follows, and has no vote."""
    SPARE = "spare"
    """A standby that may take the place of a voter that is lost."""
    WITNESS = "witness"
    """It votes and keeps the log, and has no tables."""
    LEAVING = "leaving"
    """The change under way removes it."""


@attrs.frozen
class Seat:
    """One member, as the configuration has it.

    Args:
        member_id: its number; never used again after the seat is gone.
        host: under which members and clients reach it.
        member_port: for members.
        client_port: for clients, 0 for none.
        redirect_port: for cluster clients, 0 for none.
        priority: preference for leadership.
        role: what it is meant to be.
        instance: of its store, 0 until a store has claimed the seat.
        replaces: the member that leaves when this one becomes a voter, None for none.
        even: an operator allows that its promotion makes two voters of one.
        tls_port: for clients with TLS, 0 for none.
    """

    member_id: int
    host: str
    member_port: int
    client_port: int
    redirect_port: int = 0
    priority: int = 0
    role: MemberRole = MemberRole.VOTER
    instance: int = ANY_STORE
    replaces: int | None = None
    even: bool = False
    tls_port: int = 0

    @property
    def name(self) -> VoterId:
        """The voter that it is, or would be."""
        return VoterId(self.member_id, self.instance)

    @property
    def is_to_vote(self) -> bool:
        """Whether it is meant to have a vote."""
        return self.role in {MemberRole.VOTER, MemberRole.WITNESS}

    @property
    def may_be_spare(self) -> bool:
        """Whether it is to take a voter's place, and a spare could do that in its stead."""
        # One that nobody has started yet waits for its operator.
        return self.role is MemberRole.VOTER and self.replaces is not None and self.instance != 0

    @property
    def addresses(self) -> set[tuple[str, int]]:
        """Where it listens."""
        return {(self.host, port) for port in self.ports if port}

    @property
    def ports(self) -> tuple[int, int, int, int]:
        """Its ports for members, clients, cluster clients, and clients with TLS; 0 for none."""
        return self.member_port, self.client_port, self.redirect_port, self.tls_port


@attrs.frozen
class Membership:
    """A configuration of the cluster.

    Args:
        seats: the members, ascending by id.
        voters: the members and stores that decide; with `outgoing`, those after the change.
        outgoing: the voters before the change that is under way; empty without one.
        version: one more than that of the configuration before. 0 is what the founders' files say.
        next_id: the id of the next new seat; all ids in use are below.
        founders: member and store of the founders, as in the voting status of the voters.
        floor: of the cluster, likewise.
    """

    seats: tuple[Seat, ...]
    voters: tuple[VoterId, ...]
    outgoing: tuple[VoterId, ...] = ()
    version: int = 0
    next_id: int = 0
    founders: tuple[tuple[int, int], ...] = ()
    floor: LogEnd = EMPTY_LOG

    @property
    def joint(self) -> bool:
        """Whether the voters are changing."""
        return bool(self.outgoing)

    @property
    def quorums(self) -> Quorums[VoterId]:
        """The sets of voters by which decisions are made."""
        return Quorums.of(*filter(None, (self.outgoing, self.voters)))

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of all seats, ascending."""
        return tuple(seat.member_id for seat in self.seats)

    def seat(self, member_id: int) -> Seat | None:
        """Return the seat of a member, None if it has none."""
        return next((seat for seat in self.seats if seat.member_id == member_id), None)

    def has_vote(self, member_id: int) -> bool:
        """Say whether a member is a voter, with whichever store, before or after the change."""
        return any(voter.member_id == member_id for voter in (*self.voters, *self.outgoing))

    @property
    def joining(self) -> tuple[Seat, ...]:
        """The seats that are to become voters."""
        return tuple(
            seat for seat in self.seats if seat.is_to_vote and seat.name not in self.voters
        )

    @property
    def voters_to_be(self) -> set[int]:
        """The members that will have a vote once all that join have taken their places."""
        to_vote = [seat for seat in self.seats if seat.is_to_vote]
        return {seat.member_id for seat in to_vote} - {seat.replaces for seat in to_vote}

    def is_removed(self, member_id: int) -> bool:
        """Say whether a member has no seat, although its id was used, or might have been.

        So nobody talks to it. Also for an id that nobody has had, below one that is in use. Only an
        order that names the id gives it a seat, for a store that has nothing of the earlier ones.
        """
        # In version 0 nobody was removed.
        return self.version > 0 and member_id < self.next_id and self.seat(member_id) is None

    def may_stand(self, name: VoterId) -> bool:
        """Say whether a member may lead, if this is in force in its log.

        Not only voters: a member that joins may hold the newest log that others need (:mod:`
        tests.model.change`, rule 5). A member that leaves may stand until its own log says that it
        has left.

        Args:
            name: the member, and its store.
        """
        seat = self.seat(name.member_id)
        # The voters of the first configuration are named without their stores.
        counted = {name, VoterId(name.member_id)} & {*self.voters, *self.outgoing}
        return bool(counted) or (seat is not None and seat.is_to_vote and seat.name == name)


# --- steps ----------------------------------------------------------------------------------------


def named(now: Membership, stores: Mapping[int, int]) -> Membership:
    """Return the configuration with each seat and voter named with its store; version stays.

    Args:
        now: the configuration; one whose voters are named already is returned as it is.
        stores: the instance of each member's store that is known.
    """
    if now.version:
        return now

    # The old voters stay voters: a majority of them is needed as before. One whose store nobody
    # knows counts no more, which is safe: every quorum is one of the old ones, too.
    def name(member: int) -> VoterId:
        return VoterId(member, stores.get(member, UNKNOWN_STORE))

    voters = tuple(name(voter.member_id) for voter in now.voters)
    seats = tuple(attrs.evolve(s, instance=stores.get(s.member_id, ANY_STORE)) for s in now.seats)
    return attrs.evolve(now, seats=seats, voters=voters)


def with_seat(now: Membership, seat: Seat) -> Membership:
    """Return the next configuration, with a new seat or another one of the same member."""
    others = (each for each in now.seats if each.member_id != seat.member_id)
    seats = sorted((*others, seat), key=lambda each: each.member_id)
    return _next(now, seats=tuple(seats), next_id=max(now.next_id, seat.member_id + 1))


def with_spare(now: Membership, spare: int, lost: int) -> Membership:
    """Return the next configuration, in which a spare is to take the place of a lost voter.

    A member that was to do so until now is a spare itself from now on.
    """
    # Otherwise it would return as one more voter. A witness has no tables, so it is left alone.
    seats = tuple(
        attrs.evolve(seat, role=MemberRole.VOTER, replaces=lost)
        if seat.member_id == spare
        else attrs.evolve(seat, role=MemberRole.SPARE, replaces=None)
        if seat.replaces == lost and seat.may_be_spare
        else seat
        for seat in now.seats
    )
    return _next(now, seats=seats)


def without_seat(now: Membership, member_id: int) -> Membership:
    """Return the next configuration, without the seat of a member that is no voter."""
    assert not now.has_vote(member_id), f"member {member_id} votes in {now}"
    return _next(now, seats=_without(now.seats, {member_id}))


def promoted(now: Membership, members: Collection[int]) -> Membership:
    """Return the joint configuration in which joining members become voters.

    A member that one of them replaces leaves. Another store of the same member is no voter any
    more.
    """
    joining = [seat for seat in now.seats if seat.member_id in members]
    leave = {seat.replaces for seat in joining}
    # A joiner may be replaced by another one before it has become a voter.
    new = [seat for seat in joining if seat.member_id not in leave]
    gone = {seat.member_id for seat in new} | leave
    stay = [voter for voter in now.voters if voter.member_id not in gone]
    seats = tuple(
        attrs.evolve(seat, replaces=None, even=False)
        if seat in new
        else attrs.evolve(seat, role=MemberRole.LEAVING)
        if seat.member_id in leave
        else seat
        for seat in now.seats
    )
    return _joint(now, seats, [*stay, *(seat.name for seat in new)])


def without_vote(now: Membership, member_id: int, *, role: MemberRole) -> Membership:
    """Return the joint configuration in which a voter leaves or becomes a standby."""
    seats = tuple(
        attrs.evolve(seat, role=role, priority=0) if seat.member_id == member_id else seat
        for seat in now.seats
    )
    return _joint(now, seats, [each for each in now.voters if each.member_id != member_id])


def completed(now: Membership) -> Membership:
    """Return the configuration that ends a joint one; members that leave have no seat in it."""
    assert now.joint, f"{now} is not joint"
    leave = {seat.member_id for seat in now.seats if seat.role is MemberRole.LEAVING}
    return _next(now, seats=_without(now.seats, leave), outgoing=())


def _without(seats: tuple[Seat, ...], gone: Collection[int]) -> tuple[Seat, ...]:
    """Return the seats without those of some members, and without what was to replace them."""
    return tuple(
        attrs.evolve(seat, replaces=None) if seat.replaces in gone else seat
        for seat in seats
        if seat.member_id not in gone
    )


def _joint(now: Membership, seats: tuple[Seat, ...], voters: Iterable[VoterId]) -> Membership:
    assert not now.joint, f"{now} is joint already"
    return _next(now, seats=seats, voters=tuple(sorted(voters)), outgoing=now.voters)


def _next(now: Membership, **changes: Any) -> Membership:
    return attrs.evolve(now, version=now.version + 1, **changes)


# --- what no step may make ------------------------------------------------------------------------


def check(after: Membership) -> None:
    """Refuse a configuration that no cluster should have.

    Raises:
        RefusedError: it begins with a word for the reason, and a colon.
    """
    voters = {voter.member_id for voter in after.voters}
    if not voters:
        raise RefusedError("last-voter: a cluster needs at least one member with a vote")
    if len(after.voters_to_be) > MAX_VOTERS:
        raise RefusedError(f"too-many: expected at most {MAX_VOTERS} members with a vote")
    if len(after.seats) > MAX_SEATS:
        raise RefusedError(f"too-many: expected at most {MAX_SEATS} members")
    _check_witnesses(after)
    taken: dict[tuple[str, int], int] = {}
    for seat in after.seats:
        if len(seat.addresses) < len([port for port in seat.ports if port]):
            where = f"address: member {seat.member_id}: ports {seat.ports} of {seat.host}"
            raise RefusedError(f"{where}: expected one for each purpose")
        for host, port in sorted(seat.addresses):
            other = taken.setdefault((host, port), seat.member_id)
            if other != seat.member_id:
                raise RefusedError(f"address: {host}:{port} is the address of member {other}")


def _check_witnesses(after: Membership) -> None:
    """Refuse that witnesses alone are a majority, now or once all have joined.

    Raises:
        RefusedError: they would be.
    """
    witnesses = {seat.member_id for seat in after.seats if seat.role is MemberRole.WITNESS}
    for voters in ({voter.member_id for voter in after.voters}, after.voters_to_be):
        # What a majority of witnesses commits is perhaps applied nowhere, and then pruned.
        if len(voters & witnesses) > len(voters) // 2:
            raise RefusedError(
                f"role: {len(voters & witnesses)} of {len(voters)} voters would be witnesses: "
                f"expected at most {len(voters) // 2}, since each majority needs a member with "
                "tables"
            )


# --- as an entry of the log -----------------------------------------------------------------------


_INSTANCE: Final = re.compile("[0-9a-f]{16}")

_NO_NUMBER: Final = (ValueError, OverflowError)
"""What `int` raises for what is no number, and for an infinite one, which JSON may hold."""


def encode_membership(value: Membership) -> bytes:
    """Return the payload of the entry: JSON, stores in hexadecimal."""
    body = {
        "version": value.version,
        "next_id": value.next_id,
        "voters": _named(value.voters),
        "outgoing": _named(value.outgoing),
        "seats": [_seat_of(seat) for seat in value.seats],
        "founders": {str(member): _hex(instance) for member, instance in value.founders},
        "floor": value.floor,
    }
    # Not escaped: a host may be any text of its length, and would get six times as long.
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _seat_of(seat: Seat) -> dict[str, Any]:
    body = attrs.asdict(seat) | {"role": seat.role.value, "instance": _hex(seat.instance)}
    # Versions before TLS for clients know no such key. Left out, the entry is as they write it.
    if not seat.tls_port:
        del body["tls_port"]
    return body


def decode_membership_untrusted(payload: bytes) -> Membership | None:
    """Return the configuration of an entry; None if it is of the kind before there were any.

    Raises:
        WireError: it is none.
    """
    try:
        body = cast("dict[str, Any]", json.loads(payload[: MAX_PAYLOAD_BYTES + 1]))
        # Members used to admit a lost store by an entry of this kind.
        if "version" not in body and "instance" in body:
            return None
        seats = tuple(_seat_untrusted(each) for each in body["seats"])
        value = Membership(
            seats,
            _voters_untrusted(body["voters"]),
            _voters_untrusted(body["outgoing"]),
            _number(body["version"], 1 << 62),
            _number(body["next_id"], 1 << 31),
            _founders_untrusted(body["founders"]),
            LogEnd(*map(int, body["floor"])),
        )
        _check_shape(value)
    except (LookupError, TypeError, AttributeError, RecursionError, *_NO_NUMBER) as error:
        raise WireError(f"an entry of membership that can't be read: {error!r}") from error
    return value


def _check_shape(value: Membership) -> None:
    """Refuse what no step makes; votes would be counted wrongly by it.

    Raises:
        ValueError: it is such a value.
    """
    if not value.version or len(value.seats) > MAX_SEATS or [*value.ids] != sorted({*value.ids}):
        raise ValueError(f"version {value.version}, seats {value.ids}")
    if not value.voters or {*value.voters} == {*value.outgoing}:
        raise ValueError(f"voters {value.voters}, before the change {value.outgoing}")
    for voters in (value.voters, value.outgoing):
        members = [voter.member_id for voter in voters]
        # With two stores a member would have two votes, and without a seat nobody could reach it.
        if len({*members}) < len(members) or not {*members} <= {*value.ids}:
            raise ValueError(f"voters {voters}: expected each once, of the seats {value.ids}")


def _hex(instance: int) -> str:
    return f"{instance:016x}"


def _named(voters: tuple[VoterId, ...]) -> list[tuple[int, str]]:
    return [(member, _hex(instance)) for member, instance in voters]


def _number(value: object, limit: int) -> int:
    if not isinstance(value, int) or not 0 <= value < limit:
        raise ValueError(f"{value!r}: expected a number below {limit}")
    return value


def _voters_untrusted(pairs: list[tuple[int, str]]) -> tuple[VoterId, ...]:
    found = tuple(
        VoterId(_number(member, 1 << 31), _instance_untrusted(store)) for member, store in pairs
    )
    # Named with their stores, all of them: a store that nobody has named could be counted twice.
    if not all(voter.instance_id for voter in found):
        raise ValueError(f"voters {pairs}: expected a store for each")
    return found


def _founders_untrusted(founders: dict[str, str]) -> tuple[tuple[int, int], ...]:
    pairs = founders.items()
    return tuple(sorted((_number(int(m), 1 << 31), _instance_untrusted(s)) for m, s in pairs))


def _instance_untrusted(text: str) -> int:
    if not _INSTANCE.fullmatch(text):
        raise ValueError(f"store {text!r}: expected 16 hex digits")
    return int(text, 16)


def _seat_untrusted(seat: dict[str, Any]) -> Seat:
    host = seat["host"]
    fits = isinstance(host, str) and 0 < len(host) <= MAX_HOST_CHARACTERS
    if not fits or not host.isprintable():
        raise ValueError(f"host {host!r}")
    replaces = seat["replaces"]
    return Seat(
        member_id=_number(seat["member_id"], 1 << 31),
        host=host,
        member_port=_number(seat["member_port"], 1 << 16),
        client_port=_number(seat["client_port"], 1 << 16),
        redirect_port=_number(seat["redirect_port"], 1 << 16),
        priority=_number(seat["priority"], 1 << 31),
        role=MemberRole(seat["role"]),
        instance=_instance_untrusted(seat["instance"]),
        replaces=None if replaces is None else _number(replaces, 1 << 31),
        even=bool(seat["even"]),
        tls_port=_number(seat.get("tls_port", 0), 1 << 16),
    )

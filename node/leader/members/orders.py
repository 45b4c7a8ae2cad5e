"""What an operator may ask for about the members: the words, and what they mean.

::

    member list
    member add host=H member_port=N client_port=N [redirect_port=N] [tls_port=N] [priority=N]
               [role=voter|standby|witness|spare] [replaces=ID] [even] [if_version=N]
               [id=ID]
    member promote ID [even] [if_version=N]
    member demote ID [if_version=N]
    member remove ID [if_version=N]
    member move ID [host=H] [member_port=N] [client_port=N] [redirect_port=N] [tls_port=N]
                [if_version=N]

With a `tls_port`, `member add` may leave `client_port` out.

An order says what is to be, not what is to be done: one that is fulfilled already changes nothing,
so it may be repeated. With `if_version` it is refused if the configuration is another one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from ....errors import ConfigurationError, RefusedError
from ...config.config import MemberConfig
from ...protocol.membership import MemberRole, Seat

if TYPE_CHECKING:
    from collections.abc import Mapping

ROLES: Final = (MemberRole.VOTER, MemberRole.STANDBY, MemberRole.WITNESS, MemberRole.SPARE)
"""The roles that an operator may give."""

_NUMBER: Final = re.compile("[0-9]{1,18}")
_PORTS: Final = ("member_port", "client_port", "redirect_port", "tls_port")
_ADDRESS: Final[tuple[str, ...]] = ("host", *_PORTS)
_ADD: Final = {*_ADDRESS, "priority", "role", "replaces", "even", "if_version", "id"}


@attrs.frozen
class ListMembers:
    """Report the configuration, and how far each member is."""


@attrs.frozen
class Add:
    """Give a member a seat; its id is the next one, unless the order names one."""

    seat: Seat
    if_version: int | None = None
    member_id: int | None = None


@attrs.frozen
class Promote:
    """Make a member a voter once it is caught up."""

    member_id: int
    even: bool = False
    if_version: int | None = None


@attrs.frozen
class Demote:
    """Make a voter a standby."""

    member_id: int
    if_version: int | None = None


@attrs.frozen
class Remove:
    """Take a member's seat."""

    member_id: int
    if_version: int | None = None


@attrs.frozen
class Move:
    """Give a member another address."""

    member_id: int
    address: Mapping[str, str | int]
    if_version: int | None = None

    def seat_of(self, seat: Seat) -> Seat:
        """Return a seat with the new address."""
        return checked(attrs.evolve(seat, **self.address))  # type: ignore[arg-type] # checked below


MemberOrder: TypeAlias = Add | Promote | Demote | Remove | Move


def parse_member_order_untrusted(words: list[str]) -> MemberOrder | ListMembers:
    """Parse the words behind ``member``.

    Raises:
        RefusedError: they are no such order.
    """
    match words:
        case ["list"]:
            return ListMembers()
        case ["add", *rest]:
            return _add(_options(rest, _ADD))
        case ["promote", member, *rest]:
            options = _options(rest, {"even", "if_version"})
            return Promote(_number(member), "even" in options, _if_version(options))
        case ["demote", member, *rest]:
            return Demote(_number(member), _if_version(_options(rest, {"if_version"})))
        case ["remove", member, *rest]:
            return Remove(_number(member), _if_version(_options(rest, {"if_version"})))
        case ["move", member, *rest]:
            options = _options(rest, {*_ADDRESS, "if_version"})
            moved = {key: options[key] for key in _ADDRESS if key in options}
            if not moved:
                raise RefusedError(f"move: expected a new {', '.join(_ADDRESS)}")
            address = {
                key: value if key == "host" else _number(value) for key, value in moved.items()
            }
            return Move(_number(member), address, _if_version(options))
        case _:
            given = " ".join(words)
            expected = "expected list, add, promote, demote, remove or move"
            raise RefusedError(f"member {given}: {expected}, with what they need")


def _add(options: dict[str, str]) -> Add:
    needed = ("host", "member_port", *["client_port"] * ("tls_port" not in options))
    missing = [key for key in needed if key not in options]
    if missing:
        raise RefusedError(f"member add: {', '.join(missing)} is missing")
    role = options.get("role", MemberRole.VOTER.value)
    if role not in {each.value for each in ROLES}:
        known = ", ".join(each.value for each in ROLES)
        raise RefusedError(f"member add: role={role}: expected one of {known}")
    seat = Seat(
        # The leader gives it its id.
        member_id=0,
        host=options["host"],
        member_port=_number(options["member_port"]),
        client_port=_number(options.get("client_port", "0")),
        redirect_port=_number(options.get("redirect_port", "0")),
        priority=_number(options.get("priority", "0")),
        role=MemberRole(role),
        replaces=_number(options["replaces"]) if "replaces" in options else None,
        even="even" in options,
        tls_port=_number(options.get("tls_port", "0")),
    )
    member = _number(options["id"]) if "id" in options else None
    return Add(checked(seat), _if_version(options), member)


def checked(seat: Seat) -> Seat:
    """Return a seat whose address is one.

    Raises:
        RefusedError: it has a value that a file would be refused for.
    """
    try:
        MemberConfig(
            seat.member_id,
            seat.host,
            seat.member_port,
            seat.client_port,
            priority=seat.priority,
            standby=seat.role in {MemberRole.STANDBY, MemberRole.SPARE},
            redirect_port=seat.redirect_port,
            witness=seat.role is MemberRole.WITNESS,
            tls_port=seat.tls_port,
        )
    except ConfigurationError as error:
        raise RefusedError(f"address: {error}") from error
    return seat


def _options(words: list[str], known: set[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for word in words:
        key, _, value = word.partition("=")
        # Only `even` stands alone: `even=no` must not be taken for it.
        stands = word == key if key == "even" else bool(value)
        if key not in known or key in options or not stands:
            raise RefusedError(
                f"member: {word!r}: expected each of {', '.join(sorted(known))} once"
            )
        options[key] = value
    return options


def _if_version(options: dict[str, str]) -> int | None:
    return _number(options["if_version"]) if "if_version" in options else None


def _number(word: str) -> int:
    if not _NUMBER.fullmatch(word):
        raise RefusedError(f"member: {word!r}: expected a number")
    return int(word)

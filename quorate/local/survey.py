"""The status of every member, side by side, and the verdict that follows from it.

Each member is asked ``QUORATE.STATUS`` at its client port, all at the same time and with a limit.
The answers are kept as they are. If two members report that they lead, both are shown: an operator
looks for just that. A member that does not answer has a row, too.

The verdict is strict. *Agreed* means that every member answered, none is in an election, one of
them leads, and all name the same leader and term.

`until` waits for a state of the whole cluster; it is the one such loop in this project.
"""

import enum
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, cast

import attrs
import cattrs
import trio

from ..client.resp import RespError, open_resp
from ..client.secure import port_of
from ..errors import QuorateError
from ..node.clocks import MAX_SKEW_MS
from ..node.requests.status import MemberAddress, NodeStatus
from ..transport import Address
from .member_list import Listed, ListedMember, decode_list_untrusted
from .words import age

__all__ = [
    "ANSWER_SECONDS",
    "LOG_IN",
    "LOOK_SECONDS",
    "SETTLED",
    "Answer",
    "StuckError",
    "Survey",
    "Verdict",
    "agreed",
    "agreed_and_applied",
    "ask",
    "at",
    "in_words",
    "survey",
    "until",
    "with_list",
]

SETTLED: Final = "CLOSED"
"""The state of a member whose election is over."""

VOTING: Final = "member"
"""The `standing` of a store that has a vote."""

CERTIFICATE_SECONDS: Final = 14 * 86_400.0
"""How long before its end a certificate is warned of. Shorter: nobody is at work. Longer: nobody
reads it any more."""

FRESH: Final = "fresh"
"""The `standing` of a store whose cluster is not founded yet."""

STANDBY: Final = "standby"
"""The `standing`, and the role, of a member that never has one."""

ANSWER_SECONDS: Final = 2.0
"""How long a member has to answer. Smaller, and a busy member counts as dead. Larger, and `status`
waits longer for a dead one."""


LOG_IN: Final = (
    "Set QUORATE_USER and QUORATE_PASSWORD to those of a user with the right to run QUORATE.STATUS"
)
"""What to do if members answer, and refuse their status."""

_REFUSALS: Final = ("NOAUTH", "WRONGPASS", "NOPERM")


def at(address: MemberAddress) -> str:
    """Write the client port of a member as it is typed: ``127.0.0.1:7000``, ``[::1]:7000``."""
    return str(Address(address.host, port_of(address)))


class Verdict(enum.IntEnum):
    """The verdict on all answers; also the exit status of ``quorate status``."""

    AGREED = 0
    DISAGREED = 1
    UNREACHABLE = 2


@attrs.frozen
class Answer:
    """The answer of one member.

    Args:
        address: the member that was asked.
        status: its status; None if it did not answer.
        error: why it did not answer, in words.
        members: the members as it knows them.
        version: of the configuration that it has applied.
        recent: rates, quantiles and steps of elections, if it was asked for them.
    """

    address: MemberAddress
    status: NodeStatus | None = None
    error: str | None = None
    members: tuple[MemberAddress, ...] = ()
    version: int = 0
    recent: dict[str, Any] | None = None

    @property
    def refused(self) -> bool:
        """Whether it answered that this user may not ask, or that nobody has logged in."""
        return (self.error or "").startswith(_REFUSALS)


@attrs.frozen
class _Topology:
    members: tuple[MemberAddress, ...]
    version: int = 0


@attrs.frozen
class _Said(NodeStatus):
    """The JSON object of a reply: the status, and the members as that member knows them."""

    topology: _Topology = attrs.field(kw_only=True)
    recent: dict[str, Any] | None = attrs.field(default=None, kw_only=True)


def decode_status_untrusted(reply: object) -> _Said:
    """Read the reply to ``QUORATE.STATUS``.

    Raises:
        ValueError: no member answers so.
    """
    try:
        return cattrs.structure(json.loads(cast("bytes", reply)), _Said)
    except (ValueError, TypeError, RecursionError, cattrs.BaseValidationError) as error:
        raise ValueError(f"not a status: {reply!r:.80}") from error


async def ask(address: MemberAddress, since: int | None = None) -> Answer:
    """Ask one member.

    Args:
        address: of the member.
        since: ask for `Answer.recent`, too, with the steps of elections after so many.
    """
    words = ["QUORATE.STATUS"] if since is None else ["QUORATE.STATUS", str(since)]
    error = f"no answer within {ANSWER_SECONDS:g} s"
    with trio.move_on_after(ANSWER_SECONDS):
        try:
            async with open_resp(address.host, port_of(address)) as client:
                said = decode_status_untrusted(await client.call(*words))
            ports = {one.member_id: one.member_port for one in said.topology.members}
            own = attrs.evolve(
                address,
                member_id=said.member_id,
                member_port=ports.get(said.member_id, address.member_port),
                standby=said.standing == STANDBY,
            )
            known = said.topology
            return Answer(own, said, None, known.members, known.version, said.recent)
        except (OSError, RespError, ValueError) as trouble:
            error = in_words(trouble)
    return Answer(address, None, error)


def in_words(trouble: BaseException) -> str:
    """Return why a member could not be asked, in words."""
    match trouble:
        case BaseExceptionGroup(exceptions=(first, *_)):
            return in_words(cast("BaseException", first))
        case socket.gaierror(strerror=str(words)):  # its numbers mean nothing to os.strerror
            return words.lower()
        case OSError(errno=int(number)):
            return os.strerror(number).lower()
        case OSError(__cause__=BaseException() as cause):  # trio's, of several addresses
            return in_words(cause)
        case _:
            return str(trouble)


@attrs.frozen
class Survey:
    """The answers of all members, in ascending order of their ids.

    Args:
        answers: of the members that clients may use.
        listed: the leader's list of all members, None if it was not asked.
    """

    answers: tuple[Answer, ...]
    listed: Listed | None = None

    @property
    def said(self) -> list[NodeStatus]:
        """The status of each member that answered."""
        return [answer.status for answer in self.answers if answer.status]

    @property
    def leader(self) -> NodeStatus | None:
        """The member that reports that it leads; of several, the one with the newest term."""
        leaders = [status for status in self.said if status.role == "leader"]
        return max(leaders, key=lambda status: status.term, default=None)

    @property
    def head(self) -> int:
        """The append position that lags are counted from: the leader's, or the highest."""
        if self.leader:
            return self.leader.append_position
        return max((status.append_position for status in self.said), default=0)

    @property
    def spare(self) -> int:
        """How many voters that answered can be lost before writes stop; below 0 if they stopped."""
        return len(self.voting) - self.needed

    @property
    def voters(self) -> list[Answer]:
        """The answers of all members except standbys, as far as that is known."""
        return [answer for answer in self.answers if not answer.address.standby]

    @property
    def electorate(self) -> int:
        """How many voters there are, by the newest configuration that a member reports."""
        # Of a voter that lost its store there may be no answer: its successor is not listed yet.
        newest = max(self.said, key=lambda status: status.config_version, default=None)
        if newest is not None and newest.config_version:
            return len(newest.voters)
        return len(self.voters)

    @property
    def needed(self) -> int:
        """How many voters a write needs."""
        return self.electorate // 2 + 1

    @property
    def joining(self) -> list[ListedMember]:
        """The members that are to become voters, and are none yet."""
        return [one for one in self.listed.members if one.state == "joining"] if self.listed else []

    @property
    def voting(self) -> list[NodeStatus]:
        """The status of each voter that answered."""
        return [status for status in self.said if status.standing == VOTING]

    def heard(self, member_id: int) -> float | None:
        """Seconds since the leader last heard a member; without a leader, since any member did."""
        of = [self.leader] if self.leader else self.said
        ages = [
            peer.last_heard_s
            for status in of
            for peer in status.peers
            if peer.member_id == member_id and peer.last_heard_s is not None
        ]
        return min(ages, default=None)

    @property
    def problems(self) -> list[str]:
        """Everything that keeps the verdict from being agreed, each in a sentence."""
        found = [
            f"{_named(answer.address)} {_no_status(answer)}"
            for answer in self.answers
            if not answer.status
        ]
        if self.said and self.spare < 0 and not self.is_unfounded:
            have = f"{len(self.voting)} of {self.electorate}"
            found.append(f"{have} voters answer; writes need {self.needed}.")
        leaders = [status for status in self.said if status.role == "leader"]
        if not leaders and self.said and not self.is_unfounded:
            found.append("No member says that it leads.")
        if len(leaders) > 1:
            names = _listed([f"member {one.member_id} (term {one.term})" for one in leaders])
            found.append(f"{len(leaders)} members say that they lead: {names}.")
        found += [
            f"Member {status.member_id} is in an election: {status.state}."
            for status in self.said
            if status.state != SETTLED and status.standing != FRESH
        ]
        found += [
            f"Member {status.member_id} appends nothing: its disk is nearly full."
            for status in self.said
            if status.disk_full
        ]
        found += [
            f"Member {status.member_id}: {status.damage}." for status in self.said if status.damage
        ]
        found += [words for status in self.said if (words := _standing(status))]
        found += [words for status in self.said if (words := _skew(status))]
        if any(status.suspended for status in self.said):
            found.append("The cluster is suspended. To take writes again: quorate control resume.")
        for name, what in (("leader_id", "the leader"), ("term", "the term")):
            views = self._views(name)
            if len(views) > 1:
                found.append(f"They disagree about {what}: {'; '.join(views)}.")
        return found

    @property
    def warnings(self) -> list[str]:
        """What an operator has to do soon, although the members agree; each in a sentence."""
        found: list[str] = []
        for one in self.said:
            if one.certificate_trouble:
                words = f"does not use its new certificate: {one.certificate_trouble}"
                found.append(f"Member {one.member_id} {words}.")
            left = one.certificate_expires_ms / 1000 - time.time()
            if one.certificate_expires_ms and left < CERTIFICATE_SECONDS:
                words = f"ends in {age(left)}" if left > 0 else "has ended"
                found.append(f"The certificate of member {one.member_id} {words}.")
        return found

    @property
    def is_unfounded(self) -> bool:
        """Whether the cluster is new: members wait for each other, and none has a vote yet."""
        return not self.voting and any(status.standing == FRESH for status in self.said)

    def _views(self, name: str) -> list[str]:
        """What the members report about one thing, one sentence for each opinion."""
        holders: dict[int | None, list[str]] = {}
        for status in self.said:
            value = cast("int | None", getattr(status, name))
            holders.setdefault(value, []).append(str(status.member_id))
        sentences: list[str] = []
        for value, ids in holders.items():
            who = f"member {ids[0]} says" if len(ids) == 1 else f"members {_listed(ids)} say"
            said = f"member {value}" if name == "leader_id" else str(value)
            sentences.append(f"{who} {'no member' if value is None else said}")
        return sentences

    @property
    def verdict(self) -> Verdict:
        """Whether the members agree."""
        if not self.said:
            return Verdict.UNREACHABLE
        return Verdict.DISAGREED if self.problems else Verdict.AGREED

    def as_json(self) -> str:
        """The whole survey for programs."""
        return json.dumps(
            {
                "verdict": self.verdict.name.lower(),
                "leader_id": self.leader.member_id if self.leader else None,
                "version": self.leader.config_version if self.leader else None,
                "spare_members": self.spare,
                "problems": self.problems,
                "warnings": self.warnings,
                "members": [_plain(answer) for answer in self.answers],
                "joining": [_plain_joining(one) for one in self.joining],
            },
            indent=2,
        )


def _plain_joining(one: ListedMember) -> dict[str, object]:
    plain: dict[str, object] = {"member_id": one.member_id, "role": one.role.value}
    plain |= {"host": one.host, "client_port": one.client_port, "member_port": one.member_port}
    return plain | {
        "replaces": one.replaces,
        "live": one.live,
        "behind": one.behind,
        "waits": one.waits,
    }


def _plain(answer: Answer) -> dict[str, object]:
    plain: dict[str, object] = attrs.asdict(answer.address)
    plain["error"] = answer.error
    plain["status"] = answer.status and attrs.asdict(answer.status, filter=_is_status)
    return plain


def _is_status(field: "attrs.Attribute[Any]", _value: object) -> bool:
    return field.name not in {"topology", "recent"}


def _named(address: MemberAddress) -> str:
    if address.member_id >= 0:
        return f"Member {address.member_id}"
    return at(address)


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _skew(status: NodeStatus) -> str:
    """Return in words that a clock differs much from the log's time; else nothing."""
    skew_ms = status.clock_skew_ms
    if abs(skew_ms) <= MAX_SKEW_MS:
        return ""
    where = "ahead of" if skew_ms > 0 else "behind"
    apart = age(abs(skew_ms) / 1000)
    return f"Member {status.member_id}: its clock is {apart} {where} the log's time."


def _no_status(answer: Answer) -> str:
    """Return in words why there is no status: no answer, or one that refuses it."""
    error = (answer.error or "").removesuffix(".")
    if answer.refused:
        return f"answers, but refuses its status: {error}. {LOG_IN}."
    return f"does not answer: {error}."


def _standing(status: NodeStatus) -> str:
    """Return in words why a member has no vote; nothing if it has one."""
    if status.standing == "recovering":
        return f"Member {status.member_id} is not admitted yet: its store is new, and has no vote."
    if status.standing == FRESH:
        waits = [f"member {peer}" for peer in status.not_heard]
        heard = f"; it has not heard of {_listed(waits)}" if waits else ""
        return f"Member {status.member_id} waits for all members of a new cluster{heard}."
    return ""


async def survey(addresses: Sequence[MemberAddress]) -> Survey:
    """Ask one of these members who the members are, then ask them all.

    Args:
        addresses: the members to ask first, in order of preference; their ids do not matter.
    """
    firsts: list[Answer] = []
    for address in addresses:
        first = await ask(address)
        if first.status:
            others = [one for one in first.members if one.member_id != first.status.member_id]
            return Survey(_sorted([first, *await _ask_all(others)]))
        firsts.append(first)
    return Survey(tuple(firsts))


async def with_list(seen: Survey) -> Survey:
    """Add the leader's list of all members, unless no member ever changed or it does not answer."""
    leader = next((one.address for one in seen.answers if one.status is seen.leader), None)
    # Before the first change all members are voters or standbys, and each has a row.
    if leader is None or seen.leader is None or not seen.leader.config_version:
        return seen
    with trio.move_on_after(ANSWER_SECONDS), suppress(OSError, RespError, ValueError):
        async with open_resp(leader.host, port_of(leader)) as client:
            answer = await client.call("QUORATE.CONTROL", "member", "list")
            return attrs.evolve(seen, listed=decode_list_untrusted(answer))
    return seen


async def _ask_all(addresses: Sequence[MemberAddress]) -> list[Answer]:
    answers: list[Answer] = []

    async def ask_one(address: MemberAddress) -> None:
        answers.append(await ask(address))

    async with trio.open_nursery() as nursery:
        for address in addresses:
            nursery.start_soon(ask_one, address)
    return answers


def _sorted(answers: list[Answer]) -> tuple[Answer, ...]:
    return tuple(sorted(answers, key=lambda answer: answer.address.member_id))


LOOK_SECONDS: Final = 0.02
"""Pause between two surveys. Smaller, and the members notice the load. Larger, and the time that a
demo or a torture measures between two states is less exact."""


class StuckError(QuorateError):
    """The members did not get into the wanted state in time."""


async def until(
    addresses: Sequence[MemberAddress],
    condition: Callable[[Survey], bool],
    within: float,
) -> Survey:
    """Ask the members again and again until a condition holds of their answers; return those.

    Args:
        addresses: as for `survey`.
        condition: what to wait for, such as `agreed`.
        within: seconds.

    Raises:
        StuckError: time is over. The message says what the last survey found.
    """
    seen = Survey(())
    with trio.move_on_after(within):
        while True:
            seen = await survey(addresses)
            if condition(seen):
                return seen
            await trio.sleep(LOOK_SECONDS)
    positions = [status.applied_position for status in seen.said]
    raise StuckError(
        f"not there after {within:g} s: {' '.join(seen.problems)} Applied up to {positions}."
    )


def agreed(seen: Survey) -> bool:
    """Whether all members answer, none is in an election, and all name the same leader."""
    return seen.verdict is Verdict.AGREED


def agreed_and_applied(seen: Survey) -> bool:
    """Whether all members agree, and each has applied all of the log."""
    return agreed(seen) and all(one.applied_position == seen.head for one in seen.said)

"""What every member says of itself, side by side, and what follows from it.

Each member is asked by the command ``QUORATE.STATUS``, over its client port, at the same time as
the others and with a time limit. Its answer is shown as it is: if two members say that they
lead, both are shown so, since an operator who looks at this wants to know just that. Members
that don't answer are rows too.

The verdict is strict: *agreed* means that every member answered, none is in an election, one of
them leads, and all name that one and the same term.
"""

import enum
import json
import os
import socket
from collections.abc import Sequence
from typing import Any, Final, cast

import attrs
import cattrs
import trio

from ..cli.words import age
from ..client.resp import RespError, open_resp
from ..node.clocks import MAX_SKEW_MS
from ..node.requests.status import MemberAddress, NodeStatus

__all__ = ["SETTLED", "Answer", "Survey", "Verdict", "ask", "in_words", "survey"]

SETTLED: Final = "CLOSED"
"""The state of a member that is in no election."""

VOTING: Final = "member"
"""The standing of a store that has a vote."""

STANDBY: Final = "standby"
"""The standing, and the role, of a member that never has one."""

ANSWER_SECONDS: Final = 2.0
"""How long a member has to answer."""


class Verdict(enum.IntEnum):
    """What the members' answers amount to; also the exit status of ``quorate status``."""

    AGREED = 0
    DISAGREED = 1
    UNREACHABLE = 2


@attrs.frozen
class Answer:
    """What one member said.

    Args:
        address: whom we asked.
        status: what it says of itself; None if it did not answer.
        error: why it did not answer, in words.
        members: the members as it knows them.
    """

    address: MemberAddress
    status: NodeStatus | None = None
    error: str | None = None
    members: tuple[MemberAddress, ...] = ()


@attrs.frozen
class _Topology:
    members: tuple[MemberAddress, ...]


@attrs.frozen
class _Said(NodeStatus):
    """The JSON object of the reply: the status, and the members as that member knows them."""

    topology: _Topology = attrs.field(kw_only=True)


def decode_status_untrusted(reply: object) -> _Said:
    """Read the reply to ``QUORATE.STATUS``.

    Raises:
        ValueError: it is not what a member says.
    """
    try:
        return cattrs.structure(json.loads(cast("bytes", reply)), _Said)
    except (ValueError, TypeError, RecursionError, cattrs.BaseValidationError) as error:
        raise ValueError(f"not a status: {reply!r:.80}") from error


async def ask(address: MemberAddress) -> Answer:
    """Ask one member."""
    error = f"no answer within {ANSWER_SECONDS:g} s"
    with trio.move_on_after(ANSWER_SECONDS):
        try:
            async with open_resp(address.host, address.client_port) as client:
                said = decode_status_untrusted(await client.call("QUORATE.STATUS"))
            ports = {one.member_id: one.member_port for one in said.topology.members}
            own = attrs.evolve(
                address,
                member_id=said.member_id,
                member_port=ports.get(said.member_id, address.member_port),
                standby=said.standing == STANDBY,
            )
            return Answer(own, said, None, said.topology.members)
        except (OSError, RespError, ValueError) as trouble:
            error = in_words(trouble)
    return Answer(address, None, error)


def in_words(trouble: BaseException) -> str:
    """Say why a member could not be asked."""
    match trouble:
        case BaseExceptionGroup(exceptions=(first, *_)):
            return in_words(cast("BaseException", first))
        case socket.gaierror(strerror=str(words)):  # its numbers are not those of the system
            return words.lower()
        case OSError(errno=int(number)):
            return os.strerror(number).lower()
        case OSError(__cause__=BaseException() as cause):  # trio's, of all addresses
            return in_words(cause)
        case _:
            return str(trouble)


@attrs.frozen
class Survey:
    """The answers of all members, in ascending order of their ids."""

    answers: tuple[Answer, ...]

    @property
    def said(self) -> list[NodeStatus]:
        """What those said that answered."""
        return [answer.status for answer in self.answers if answer.status]

    @property
    def leader(self) -> NodeStatus | None:
        """The one that leads, by its own words; with several, the one of the newest term."""
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
        """How many of those that answered, and have a vote, can be lost before writes stop.

        It may be below 0.
        """
        return len(self.voting) - self.needed

    @property
    def voters(self) -> list[Answer]:
        """The answers of the members that are no standbys, as far as that is known."""
        return [answer for answer in self.answers if not answer.address.standby]

    @property
    def needed(self) -> int:
        """How many members with a vote writes need."""
        return len(self.voters) // 2 + 1

    @property
    def voting(self) -> list[NodeStatus]:
        """What those said that have a vote."""
        return [status for status in self.said if status.standing == VOTING]

    def heard(self, member_id: int) -> float | None:
        """Seconds since the leader last heard a member; since anyone did, without a leader."""
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
        """All that keeps this from being agreed, each in a sentence."""
        found = [
            f"{_named(answer.address)} does not answer: {answer.error}."
            for answer in self.answers
            if not answer.status
        ]
        if self.said and self.spare < 0:
            have = f"{len(self.voting)} of {len(self.voters)}"
            found.append(f"{have} answer and have a vote; writes need {self.needed}.")
        leaders = [status for status in self.said if status.role == "leader"]
        if not leaders and self.said:
            found.append("No member says that it leads.")
        if len(leaders) > 1:
            names = _listed([f"member {one.member_id} (term {one.term})" for one in leaders])
            found.append(f"{len(leaders)} members say that they lead: {names}.")
        found += [
            f"Member {status.member_id} is in an election: {status.state}."
            for status in self.said
            if status.state != SETTLED
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
            found.append("The cluster is suspended: it takes no writes until it is resumed.")
        for name, what in (("leader_id", "the leader"), ("term", "the term")):
            views = self._views(name)
            if len(views) > 1:
                found.append(f"They disagree about {what}: {'; '.join(views)}.")
        return found

    def _views(self, name: str) -> list[str]:
        """Who says what about one thing, one sentence for each opinion."""
        holders: dict[int | None, list[str]] = {}
        for status in self.said:
            value = cast("int | None", getattr(status, name))
            holders.setdefault(value, []).append(str(status.member_id))
        sentences: list[str] = []
        for value, ids in holders.items():
            who = f"member {ids[0]} says" if len(ids) == 1 else f"members {_listed(ids)} say"
            said = f"member {value}" if name == "leader_id" else str(value)
            sentences.append(f"{who} {'nobody' if value is None else said}")
        return sentences

    @property
    def verdict(self) -> Verdict:
        """What it amounts to."""
        if not self.said:
            return Verdict.UNREACHABLE
        return Verdict.DISAGREED if self.problems else Verdict.AGREED

    def as_json(self) -> str:
        """The whole survey for programs."""
        return json.dumps(
            {
                "verdict": self.verdict.name.lower(),
                "leader_id": self.leader.member_id if self.leader else None,
                "spare_members": self.spare,
                "problems": self.problems,
                "members": [_plain(answer) for answer in self.answers],
            },
            indent=2,
        )


def _plain(answer: Answer) -> dict[str, object]:
    plain: dict[str, object] = attrs.asdict(answer.address)
    plain["error"] = answer.error
    plain["status"] = answer.status and attrs.asdict(answer.status, filter=_is_status)
    return plain


def _is_status(field: "attrs.Attribute[Any]", _value: object) -> bool:
    return field.name != "topology"


def _named(address: MemberAddress) -> str:
    if address.member_id >= 0:
        return f"Member {address.member_id}"
    return f"{address.host}:{address.client_port}"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _skew(status: NodeStatus) -> str:
    """Say that a member's clock and the log's time differ, if it is by much."""
    skew_ms = status.clock_skew_ms
    if abs(skew_ms) <= MAX_SKEW_MS:
        return ""
    where = "ahead of" if skew_ms > 0 else "behind"
    apart = age(abs(skew_ms) / 1000)
    return f"Member {status.member_id}: its clock is {apart} {where} the log's time."


def _standing(status: NodeStatus) -> str:
    """Say why a member has no vote, if it has none."""
    if status.standing == "recovering":
        return f"Member {status.member_id} is not admitted yet: its store is new, and has no vote."
    if status.standing == "fresh":
        waits = [f"member {peer}" for peer in status.not_heard]
        heard = f"; it has not heard of {_listed(waits)}" if waits else ""
        return f"Member {status.member_id} waits for all members of a new cluster{heard}."
    return ""


async def survey(addresses: Sequence[MemberAddress]) -> Survey:
    """Ask one of these members who the members are, then ask them all.

    Args:
        addresses: where to begin, in order of preference; their ids don't matter.
    """
    firsts: list[Answer] = []
    for address in addresses:
        first = await ask(address)
        if first.status:
            others = [one for one in first.members if one.member_id != first.status.member_id]
            return Survey(_sorted([first, *await _ask_all(others)]))
        firsts.append(first)
    return Survey(tuple(firsts))


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

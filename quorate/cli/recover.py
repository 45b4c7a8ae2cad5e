"""`quorate recover`: a member whose disk was lost gets everything again, and its vote.

It may be called at any time. A store that has a vote is left alone. A store that is created here
has no vote until the other members admit it (:mod:`quorate.node.membership.admission`).
"""

import json
import logging
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import attrs
import trio
from cyclopts import Parameter
from rich.console import Console

from ..client.resp import RespError
from ..embed import Node, open_node
from ..errors import UsageError
from ..local.force_quorum import force_a_quorum
from ..local.log_lines import line_handler, unblocked_console
from ..local.member_list import STANDBYS, Listed, ListedMember, decode_list_untrusted
from ..local.survey import ANSWER_SECONDS, STANDBY, VOTING, Answer, Survey, survey
from ..local.words import size
from ..node.config.config import MAX_MEMBERS, MemberConfig, NodeConfig, load_config
from ..node.protocol.quorum import quorum
from ..node.requests.status import MemberAddress, NodeStatus
from ..storage import Identity, VotingRight, VotingStatus, make_store
from ..storage.lmdb.file_check import DATA_FILE
from .control import ask
from .params import Addresses, AsJson, parse_address

__all__ = ["recover"]

LOOK_SECONDS: Final = 0.2
HINT_SECONDS: Final = 5.0
"""Time without progress after which it prints why it waits. Shorter, and it prints that at each
start; longer, and an operator wonders."""

UNREACHABLE: Final = 2

ForceQuorum = Annotated[bool, Parameter(negative="", show_default=False)]


async def recover(
    file: Path,
    /,
    *more: Path,
    connect: Addresses = (),
    force_quorum: ForceQuorum = False,
    as_json: AsJson = False,
) -> int:
    """Recover a member whose disk was lost: it fetches everything, and the others admit it.

    Until then it has no vote, since its promises were lost with the disk. It may be interrupted,
    and goes on when it is called again.

    With --force-quorum: too many members are lost for good, and the rest is no quorum. The cluster
    is founded again with what the best of the rest has. What only lost members had is lost. The
    command shows what that may be, and asks for the name of the cluster.

    Exit status: 0 - the member is admitted, or the quorum is forced; start it with quorate run.
    1 - there is nothing to recover, or it was not confirmed. 2 - no other member answers, and
    nothing was done.

    Args:
        file: The member's configuration (TOML), in its new directory. With --force-quorum: that of
            a member that is left, with the members that the cluster is to have.
        more: With --force-quorum: the configurations of the other members that are left.
        connect: Client port of a member that runs, HOST:PORT; it names all others. Needed if the
            file names none that runs: it may be older than all present members. May be given
            several times: the first one that answers is asked.
        force_quorum: Found the cluster again with what is left of it.
        as_json: For programs; progress goes to standard error.
    """
    if force_quorum and connect:
        raise UsageError("quorate recover --force-quorum reads directories, and asks no member")
    if force_quorum:
        return await force_a_quorum([file, *more], as_json=as_json)
    if more:
        raise UsageError("quorate recover takes one configuration, unless with --force-quorum")
    return await _recover(file, connect, as_json=as_json)


async def _recover(file: Path, connect: Sequence[str], *, as_json: bool) -> int:
    """Recover the member of a file; return the exit status."""
    config = load_config(file)
    logging.basicConfig(level="WARNING", handlers=[line_handler(sys.stderr)], format="%(message)s")
    console = Console(stderr=as_json, highlight=False, markup=False, soft_wrap=True)
    there = await _look(config, connect)
    if (why_not := _why_not(config, file, there) or _prepare(config)) is not None:
        status, words = why_not
        console.print(words, style="red")
        return status
    _tell(config, there, console)
    with unblocked_console(console):
        last, seconds = await _run_until_admitted(there.seeds(config), there.others, console)
    own = config.member_id
    words = f"Member {own} has everything up to {last.applied_position:,}, {_vote(last)}"
    console.print(f"{words}, after {seconds:.1f} s. Start it: quorate run {file}", style="green")
    if as_json:
        print(json.dumps(_plain(last, there.others, seconds), indent=2))
    return 0


def _vote(status: NodeStatus) -> str:
    return "and a vote" if status.standing == VOTING else "and is a standby, without a vote"


@attrs.frozen
class _There:
    """What the other members answer.

    Args:
        seen: the answers.
        others: the status of each other member that answers.
        members: all members with a seat, as the newest answer has them.
        version: of that configuration; 0 if the members' files say who they are.
        own: what the leader's list says of this member; None without a leader, or a seat.
        listed: a leader has answered with its list.
    """

    seen: Survey
    others: list[NodeStatus]
    members: tuple[MemberAddress, ...]
    version: int
    own: ListedMember | None
    listed: Listed | None

    def standby(self, config: NodeConfig) -> bool:
        """Whether this member has no vote to lose."""
        if self.own is not None:
            return self.own.role in STANDBYS and self.own.state == STANDBY
        named = (each.standby for each in self.members if each.member_id == config.member_id)
        return next(named, config.own.standby)

    def silent(self, config: NodeConfig) -> list[int]:
        """The other members that do not answer."""
        members = {each.member_id for each in self.members} - {config.member_id}
        return sorted(members - {each.member_id for each in self.others})

    @property
    def needed(self) -> int:
        """How many other voters it takes to let this member in."""
        return quorum(len([each for each in self.members if not each.standby]))

    def seeds(self, config: NodeConfig) -> NodeConfig:
        """Return a configuration with the members that there are, as addresses to dial."""
        if not self.version:
            return config
        others = [
            MemberConfig(
                each.member_id,
                each.host,
                each.member_port,
                each.client_port,
                standby=each.standby,
                redirect_port=each.redirect_port,
                witness=each.witness,
                tls_port=each.tls_port,
            )
            for each in self.members
            if each.member_id != config.member_id and each.member_port
        ]
        # A file has at most so many. Voters come first: they are enough.
        others.sort(key=lambda each: each.standby)
        members = sorted([config.own, *others[: MAX_MEMBERS - 1]], key=lambda e: e.member_id)
        return attrs.evolve(config, members=tuple(members))


async def _look(config: NodeConfig, connect: Sequence[str]) -> _There:
    """Ask the members that are named, and those of the file; then all that the first one names."""
    named = [parse_address(text) for text in connect]
    seen = await survey([*named, *(_address(config, peer.member_id) for peer in config.peers)])
    others = [each for each in seen.said if each.member_id != config.member_id]
    answers = [each for each in seen.answers if each.status]
    newest = max(answers, key=lambda each: each.version, default=None)
    of_file = tuple(_address(config, each.member_id) for each in config.members)
    listed = await _listed(answers, seen.leader)
    return _There(
        seen=seen,
        others=others,
        members=of_file if newest is None else newest.members,
        version=0 if newest is None else newest.version,
        own=None if listed is None else listed.member(config.member_id),
        listed=listed,
    )


async def _listed(answers: Sequence[Answer], leader: NodeStatus | None) -> Listed | None:
    """Return the leader's list of the members; None if no leader answers."""
    for each in answers:
        if each.status is not leader:
            continue
        with trio.move_on_after(ANSWER_SECONDS):
            try:
                return decode_list_untrusted(await ask(each.address, "member", "list"))
            except (OSError, RespError, ValueError):
                return None  # the members themselves have said enough
    return None


async def _run_until_admitted(
    config: NodeConfig, others: list[NodeStatus], console: Console
) -> tuple[NodeStatus, float]:
    """Run the member until it has a vote; return its last status, and the seconds it took."""
    began = time.monotonic()
    last: NodeStatus | None = None
    async with open_node(config) as node:
        last = await _admitted(node, others, console)
    assert last is not None
    return last, time.monotonic() - began


def _address(config: NodeConfig, member_id: int) -> MemberAddress:
    (member,) = (each for each in config.members if each.member_id == member_id)
    return MemberAddress(member_id, member.host, member.client_port, tls_port=member.tls_port)


def _why_not(config: NodeConfig, file: Path, there: _There) -> tuple[int, str] | None:
    """Return an exit status and the reason if there is nothing to recover; else None."""
    own, others = config.member_id, there.others
    # A standby whose file says so begins anew by itself. One that was demoted would found.
    if there.standby(config) and (config.own.standby or config.join):
        return 1, "A standby has no vote, so nothing was lost with its disk. Start it: quorate run"
    if not others:
        return UNREACHABLE, (
            "No other member answers. Nothing was done; start the others first. If members run "
            f"that {file} does not name, name one: quorate recover {file} --connect HOST:PORT, "
            "with its port for clients."
        )
    if strangers := [each for each in others if each.cluster != config.cluster]:
        each = strangers[0]
        return 1, (
            f"Member {each.member_id} is of cluster {each.cluster!r}, and {file} of "
            f"{config.cluster!r}. Nothing was done; name a member of the right one."
        )
    if there.listed is not None and there.version and there.own is None:
        word = "was removed" if own < there.listed.next_id else "has no seat"
        return 1, (
            f"Member {own} {word}, by version {there.version} of the configuration. Add its "
            "machine as a new member: quorate member add."
        )
    if all(each.standing in {"fresh", STANDBY} for each in others):
        return 1, "The cluster begins once all its members run. Start this one: quorate run"
    if not _environment(config, "log") and _environment(config, "tables"):
        return 1, (
            f"{config.directory}: there are tables but no log. Move the directory away, keep it, "
            "and put node.toml into an empty one."
        )
    return None


def _environment(config: NodeConfig, name: str) -> bool:
    """Whether a folder of the member has data. An empty one may be the root of a volume."""
    return (config.directory / name / DATA_FILE).exists()


def _prepare(config: NodeConfig) -> tuple[int, str] | None:
    """Create the store, durably without a vote; or return why there is nothing to recover.

    Raises:
        StorageError: there is a store of another member.
    """
    drawn = random.SystemRandom().getrandbits(64)
    identity = Identity(config.cluster, config.member_id, drawn)
    there = make_store(config.directory / "log", identity, VotingStatus(VotingRight.RECOVERING))
    if there.kind is not VotingRight.VOTER:
        return None
    return 1, (
        f"{config.directory}: its store has a vote; there is nothing to recover. "
        "Start it: quorate run"
    )


def _tell(config: NodeConfig, there: _There, console: Console) -> None:
    """Print what the other members have, and what this one may have lost."""
    others = there.others
    for each in others:
        vote = "" if each.standing == VOTING else ", and has no vote itself"
        console.print(
            f"Member {each.member_id} is a {each.role} in term {each.term}; its log goes to "
            f"{each.append_position:,}, and is committed up to {each.commit_position:,}{vote}."
        )
    for words in _other_addresses(config, there.seen):
        console.print(words, style="red")
    for member in there.silent(config):
        console.print(f"Member {member} does not answer.", style="red")
    end, term = max(each.append_position for each in others), max(each.term for each in others)
    console.print(
        f"Member {config.member_id} may have acknowledged anything up to {end:,}, and voted up to "
        f"term {term}. It has no vote until the others have committed that they admit it."
    )
    voting, needed = len([each for each in there.seen.voting if each in others]), there.needed
    if voting < needed:
        console.print(
            f"That needs {needed} other voters, and {voting} answer. It waits for them.",
            style="red",
        )


def _other_addresses(config: NodeConfig, seen: Survey) -> list[str]:
    """Return which members have another address of this member in their configuration."""
    own = config.own
    return [
        f"Member {answer.address.member_id} expects this member at {one.host}:{one.member_port}, "
        f"not at {own.host}:{own.member_port}. Have the cluster know it: quorate member move "
        f"{own.member_id} --host {own.host} --port {own.member_port}"
        for answer in seen.answers
        for one in answer.members
        if one.member_id == own.member_id and (one.host, one.member_port) != _at(own)
    ]


def _at(member: MemberConfig) -> tuple[str, int]:
    return member.host, member.member_port


async def _admitted(node: Node, others: list[NodeStatus], console: Console) -> NodeStatus:
    """Wait until the member is admitted, and print its progress."""
    end, said, hinted = max(each.append_position for each in others), "", ""
    patience = trio.current_time() + HINT_SECONDS
    while not _has_all(status := node.status(), end):
        doing = status.snapshot_activity or f"{size(status.append_position)} of {size(end)}"
        words = f"{status.state}: {doing}"
        if words != said:
            console.print(words)
            said, patience = words, trio.current_time() + HINT_SECONDS
        if trio.current_time() > patience:
            hint = await _why_it_waits(status, node)
            if hint != hinted:
                console.print(hint, style="red")
                hinted = hint
            patience = trio.current_time() + HINT_SECONDS
        await trio.sleep(LOOK_SECONDS)
    return status


def _has_all(status: NodeStatus, end: int) -> bool:
    """Whether a member has its vote, or is a standby that has all of the log there was."""
    caught_up = status.standing == STANDBY and status.applied_position >= end
    return status.standing == VOTING or caught_up


async def _why_it_waits(status: NodeStatus, node: Node) -> str:
    """Return which links are missing, as both ends report it."""
    own = status.member_id
    words = [
        f"This member does not reach member {peer.member_id}: {peer.trouble}."
        for peer in status.peers
        if peer.trouble
    ]
    others = [one for one in node.topology.members if one.member_id != own]
    for each in (await survey(others)).said:
        words += [
            f"Member {each.member_id} does not reach this member: {peer.trouble}."
            for peer in each.peers
            if peer.member_id == own and peer.trouble
        ]
    return "\n".join(words) or "It waits for a leader; quorate status shows the other members."


def _plain(last: NodeStatus, others: list[NodeStatus], seconds: float) -> dict[str, object]:
    return {
        "member_id": last.member_id,
        "admitted": True,
        "term": last.term,
        "applied_position": last.applied_position,
        "seconds": seconds,
        "others": [
            attrs.asdict(each, filter=lambda field, _: field.name != "topology") for each in others
        ],
    }

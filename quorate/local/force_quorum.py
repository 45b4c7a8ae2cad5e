"""`quorate recover --force-quorum`: found a cluster again after its quorum is lost for good.

The directories of the members that are left show which of them has the most. The operator reads
what may be lost, and types the name of the cluster; nothing is written before. Then that member's
store becomes a fresh one, with all its contents and a new history
(:func:`quorate.storage.log.founding.force`). So no member of the old history can join the new
cluster. Its first election needs all of its members, the others with empty directories.
"""

import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs
from rich.console import Console

from ..errors import ConfigurationError
from ..node.config.config import MemberConfig, NodeConfig, load_config
from ..node.configurations import Configurations
from ..node.protocol.membership import Membership, Seat
from ..node.protocol.quorum import VoterId, quorum
from ..node.requests.status import MemberAddress
from ..node.store_opening import why_no_founder
from ..storage import VotingRight, open_readonly
from ..storage.log.founding import force
from ..transport import Address
from .survey import VOTING, survey
from .words import counted, utc

__all__ = ["Left", "force_a_quorum", "look_at", "why_refused"]

REFUSED: Final = 1


@attrs.frozen
class Left:
    """What the store of a remaining member holds. Positions are bytes of the log.

    Args:
        config: of the member.
        instance: of the store.
        term: of its last entry.
        append_position: where its log ends.
        commit_position: known to be committed.
        timestamp_ms: of its last entry.
        founders: how many members have founded the cluster.
        votes: whether the store has a vote.
        membership: the newest configuration of its log, committed or not.
    """

    config: NodeConfig
    instance: int
    term: int
    append_position: int
    commit_position: int
    timestamp_ms: int
    founders: int
    votes: bool
    membership: Membership

    @property
    def name(self) -> VoterId:
        """The voter that it is, if it is one."""
        return VoterId(self.config.member_id, self.instance)

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Sorts members by their logs, in the order in which members vote."""
        return self.votes, self.term, self.append_position


async def force_a_quorum(files: Sequence[Path], *, as_json: bool) -> int:
    """Lead an operator through the procedure; return the exit status.

    Args:
        files: configurations of the members that are left.
        as_json: print the result for programs, and everything else to standard error.

    Raises:
        ConfigurationError: a configuration does not belong to its directory.
        StorageError: a store is missing or damaged, or its member runs.
    """
    console = Console(stderr=as_json, highlight=False, markup=False, soft_wrap=True)
    left = [look_at(load_config(file)) for file in files]
    best = _best(left)
    refusal = why_refused(left) or await _running(best)
    if refusal:
        console.print(refusal, style="red")
        return REFUSED
    _tell(left, best, console)
    if not _confirmed(best.config.cluster, console):
        console.print("That is not the name. Nothing was done.", style="red")
        return REFUSED
    row = force(
        best.config.directory / "log",
        instance_id=random.SystemRandom().getrandbits(64),
        timestamp_ms=time.time_ns() // 1_000_000,
    )
    _tell_what_next(best.config, console)
    if as_json:
        print(json.dumps({"member_id": best.config.member_id, **attrs.asdict(row)}, indent=2))
    return 0


def look_at(config: NodeConfig) -> Left:
    """Read what a member that is stopped has.

    Raises:
        ConfigurationError: the configuration does not belong to the directory.
        StorageError: the store is missing or damaged.
    """
    with open_readonly(config.directory / "log") as store:
        found = store.identity
        if (found.cluster, found.member_id) != (config.cluster, config.member_id):
            raise ConfigurationError(
                f"{config.directory}: the store of member {found.member_id} of cluster "
                f'"{found.cluster}", and node.toml names another'
            )
        return Left(
            config,
            found.instance_id,
            store.log_term,
            store.append_position,
            store.last_commit_position,
            store.last_timestamp_ms,
            len(store.voting_status.founders),
            store.voting_status.kind is VotingRight.VOTER,
            Configurations(config, store).in_force,
        )


def _best(left: list[Left]) -> Left:
    return max(left, key=lambda each: each.rank)


def why_refused(left: list[Left]) -> str:
    """Return why it is impossible, or unnecessary; nothing if it may go on."""
    best = _best(left)
    if words := "\n".join(filter(None, (why_no_founder(each.config) for each in left))):
        return words
    if len({each.config.cluster for each in left}) > 1:
        return "These are members of several clusters."
    if len({each.config.member_id for each in left}) < len(left):
        return "A member is named twice."
    if not best.votes:
        return (
            "None of these stores has a vote, so any part of the log may be missing. If another "
            "member is left, name it. Else make a new cluster from a backup, or from the directory "
            "of a standby: quorate restore"
        )
    if words := _quorum_left(left, best):
        return (
            f"{words} are left, which is a quorum: nothing is lost. "
            "Start them, and recover the other members: quorate recover"
        )
    if best.config.own.witness:
        return (
            f"Member {best.config.member_id}, which has the most, is a witness and has no tables. "
            "Name only members with tables; what the witness alone has is lost then."
        )
    return ""


def _quorum_left(left: list[Left], best: Left) -> str:
    """Return which voters are left, in words, if they are a quorum; else nothing."""
    now = best.membership
    if not now.version:
        # No change was ever made. So the founders are the voters, with whichever store has a vote.
        voting = sum(each.votes for each in left)
        words = f"{voting} of {best.founders} members"
        return words if voting >= quorum(best.founders) else ""
    # A store that has a vote need not be counted: it may be that of a standby, of a member that
    # joins, or of one that was removed while it was down.
    names = {each.name for each in left if each.votes}
    if not now.quorums.agree(names):
        return ""
    numbers = ", ".join(str(name.member_id) for name in sorted(names & now.quorums.voters))
    return f"Members {numbers} of {len(now.quorums.voters)} voters (configuration {now.version})"


async def _running(best: Left) -> str:
    """Return which members still run with the old history, in words."""
    known: list[Seat | MemberConfig] = [*best.membership.seats, *best.config.members]
    addresses = {(each.host, each.client_port, each.tls_port): each.member_id for each in known}
    seen = await survey(
        [
            MemberAddress(member, host, port, tls_port=tls_port)
            for (host, port, tls_port), member in addresses.items()
        ]
    )
    running = [status.member_id for status in seen.said if status.standing == VOTING]
    names = ", ".join(map(str, sorted(running)))
    return f"Stop the members that still run first: {names}. Nothing was done." if running else ""


def _tell(left: list[Left], best: Left, console: Console) -> None:
    for each in left:
        vote = "" if each.votes else "; it has no vote, and any part may be missing"
        console.print(
            f"Member {each.config.member_id}: its log goes to {each.append_position:,} in term "
            f"{each.term}, written at {utc(each.timestamp_ms)}; it is known to be committed up to "
            f"{each.commit_position:,}{vote}."
        )
    own, end = best.config.member_id, best.append_position
    members = counted(len(best.config.members), "member", "members")
    console.print(
        f"\nMember {own} has the most. A cluster of {members} is founded with its log:\n"
        f"{_founders(best.config)}\n"
        f"- Everything in its log up to {end:,} is kept, also what was not acknowledged.\n"
        f"- Everything behind {end:,} that only lost members had is LOST for good, even if it was "
        "acknowledged to clients. No one can tell how much that is.\n"
        "- The stores of all other members become useless. If one of them comes back, it is "
        "refused.\n",
        style="bold",
    )
    removed = [m for m in best.config.members if best.membership.is_removed(m.member_id)]
    if removed:
        numbers = ", ".join(str(each.member_id) for each in removed)
        console.print(
            f"WARNING: members {numbers} of this list were removed from the cluster before, by its "
            f"configuration {best.membership.version}. The first election needs all members of the "
            "list. If their machines are gone, answer nothing now, and correct node.toml first.",
            style="red",
        )
    others = [str(each.config.member_id) for each in left if each is not best]
    if others:
        console.print(f"What else member {', '.join(others)} has is not used.")


def _founders(config: NodeConfig) -> str:
    """Return the members of the new cluster, one in a line, as the file has them."""
    lines = [f"Its members, as {config.directory}/node.toml lists them:"]
    for each in config.members:
        role = ", a standby" if each.standby else ", a witness" if each.witness else ""
        address = Address(each.host, each.member_port)
        lines.append(f"    member {each.member_id} at {address}{role}")
    return "\n".join(lines)


def _confirmed(cluster: str, console: Console) -> bool:
    console.print(f"To do it, type the name of the cluster, {cluster}: ", end="")
    return sys.stdin.readline().strip() == cluster


def _tell_what_next(config: NodeConfig, console: Console) -> None:
    own = config.member_id
    others = ", ".join(str(each.member_id) for each in config.members if each.member_id != own)
    console.print(f"Done: the cluster starts with member {own}.", style="green")
    if others:
        console.print(
            f"1. Members {others}: move the old directory of each away, and keep it. Make an empty "
            "one, with a node.toml that names the same members.\n"
            f"2. Start all members: quorate run. They fetch everything from member {own}. The "
            "first election needs all of them."
        )
    else:
        console.print("Start it with quorate run.")

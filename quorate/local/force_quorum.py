"""`quorate recover --force-quorum`: so many members are lost that no quorum is left, for good.

Which of the members that are left has the most is found out from their directories; what may be
lost is said in words, and the operator types the name of the cluster before anything is written.
Then that member's store is made a fresh one with all that is in it, of a history of its own
(:func:`quorate.storage.log.founding.force`). So no member of the old history can be mixed with the
new one, and all members of the new one must be there for it to begin: the others with empty
directories.
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
from ..node.config.config import NodeConfig, load_config
from ..node.protocol.quorum import quorum
from ..node.requests.status import MemberAddress
from ..storage import VotingRight, open_readonly
from ..storage.log.founding import force
from .survey import VOTING, survey
from .words import counted, utc

__all__ = ["force_a_quorum"]

REFUSED: Final = 1


@attrs.frozen
class Left:
    """A member that is left: what its store holds. Positions are bytes of the log."""

    config: NodeConfig
    term: int
    append_position: int
    commit_position: int
    timestamp_ms: int
    founders: int
    votes: bool

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Who has more is greater: the order in which members vote for each other's logs."""
        return self.votes, self.term, self.append_position


async def force_a_quorum(files: Sequence[Path], *, as_json: bool) -> int:
    """Lead an operator through it; return the exit status.

    Raises:
        ConfigurationError: the configurations are not of members of one cluster.
        StorageError: a store is missing, damaged, or its member runs.
    """
    console = Console(stderr=as_json, highlight=False, markup=False, soft_wrap=True)
    left = [_look(load_config(file)) for file in files]
    best = max(left, key=lambda each: each.rank)
    refusal = _refusal(left, best) or await _running(best.config)
    if refusal:
        console.print(refusal, style="red")
        return REFUSED
    _tell(left, best, console)
    if not _confirmed(best.config.cluster, console):
        console.print("That is not its name. Nothing was done.", style="red")
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


def _look(config: NodeConfig) -> Left:
    with open_readonly(config.directory / "log") as store:
        found = store.identity
        if (found.cluster, found.member_id) != (config.cluster, config.member_id):
            raise ConfigurationError(
                f"{config.directory}: the store of member {found.member_id} of cluster "
                f'"{found.cluster}", and node.toml names another'
            )
        return Left(
            config,
            store.log_term,
            store.append_position,
            store.last_commit_position,
            store.last_timestamp_ms,
            len(store.voting_status.founders),
            store.voting_status.kind is VotingRight.VOTER,
        )


def _refusal(left: list[Left], best: Left) -> str:
    """Say why it can't be done, or need not."""
    if len({each.config.cluster for each in left}) > 1:
        return "These are members of several clusters."
    if len({each.config.member_id for each in left}) < len(left):
        return "A member is named twice."
    if not best.votes:
        return (
            "None of these stores has a vote: they may lack anything. If a member of the cluster "
            "is left name that; else make a new cluster of a backup, or of the directory of a "
            "standby: quorate restore"
        )
    voting, needed = sum(each.votes for each in left), quorum(best.founders)
    if voting >= needed:
        return (
            f"{voting} of {best.founders} members are left, which is a quorum: nothing needs to be "
            "lost. Start them, and have the others recover: quorate recover"
        )
    return ""


async def _running(config: NodeConfig) -> str:
    """Say which members still run with the old history."""
    seen = await survey(
        [MemberAddress(each.member_id, each.host, each.client_port) for each in config.members]
    )
    running = [status.member_id for status in seen.said if status.standing == VOTING]
    names = ", ".join(map(str, sorted(running)))
    return f"Stop the members that still run first: {names}. Nothing was done." if running else ""


def _tell(left: list[Left], best: Left, console: Console) -> None:
    for each in left:
        vote = "" if each.votes else "; it has no vote, and may lack anything"
        console.print(
            f"Member {each.config.member_id}: its log goes to {each.append_position:,} in term "
            f"{each.term}, the last of it is of {utc(each.timestamp_ms)}; up to "
            f"{each.commit_position:,} it knows that it is committed{vote}."
        )
    own, end = best.config.member_id, best.append_position
    members = counted(len(best.config.members), "member", "members")
    console.print(
        f"\nMember {own} has the most. A cluster of {members} begins anew with what it has:\n"
        f"- Everything in its log up to {end:,} is kept, also what was not acknowledged.\n"
        f"- Whatever the members that are lost had behind {end:,} is LOST, for good, though it "
        "was acknowledged to clients. How much that is nobody can say any more.\n"
        "- The stores of all other members are of no use any more. If one of them turns up again "
        "it is refused.\n",
        style="bold",
    )
    others = [str(each.config.member_id) for each in left if each is not best]
    if others:
        console.print(f"What member {', '.join(others)} has in addition is not taken over.")


def _confirmed(cluster: str, console: Console) -> bool:
    console.print(f"To do it, type the name of the cluster, {cluster}: ", end="")
    return sys.stdin.readline().strip() == cluster


def _tell_what_next(config: NodeConfig, console: Console) -> None:
    own = config.member_id
    others = ", ".join(str(each.member_id) for each in config.members if each.member_id != own)
    console.print(f"Done: member {own} is what the cluster begins with.", style="green")
    if others:
        console.print(
            f"1. Members {others}: an empty directory each, with a node.toml that names the same "
            "members. Keep what was in it elsewhere.\n"
            "2. Start all of them, with quorate run. They fetch everything from member "
            f"{own}; the first election needs all of them."
        )
    else:
        console.print("Start it with quorate run.")

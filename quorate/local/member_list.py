"""The leader's list of the members, the words in it, and the file of a member that joins.

A leader answers `member list` with one JSON object, and each change with another. It refuses with a
word and a colon, and names with such a word why a joining member waits. `MEANINGS` says for each
word what it means, and what an operator does about it.
"""

import json
import re
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import attrs
import cattrs

from ..client.resp import Reply
from ..node.config.config import MAX_MEMBERS, MemberConfig, NodeConfig, Security
from ..node.protocol.hosts import MAX_HOST_CHARACTERS
from ..node.protocol.membership import MAX_SEATS, MAX_VOTERS, MemberRole
from ..node.protocol.quorum import ANY_STORE
from ..node.requests.status import MemberAddress

__all__ = [
    "MEANINGS",
    "STANDBYS",
    "Changed",
    "Listed",
    "ListedMember",
    "decode_changed_untrusted",
    "decode_list_untrusted",
    "joiner_file",
    "meaning_of",
    "plain",
    "why_waiting",
    "word_of",
]

MEANINGS: Final = {
    "in-flight": (
        "Another change is under way, and the cluster makes one at a time. A joining member waits "
        "by itself. Repeat a refused command once `quorate member list` shows no change under way."
    ),
    "not-settled": (
        "The leader is new, and has committed nothing of its own term yet. This takes a moment. If "
        "it lasts, too few voters run: see `quorate status`."
    ),
    "version": (
        "The members have changed since the version that you named. Look at `quorate member list`. "
        "If you still want the change, repeat it with the version shown there."
    ),
    "id": (
        "The order names an id, and another member has it. Name another id, or none: then the "
        "leader chooses one."
    ),
    "unknown-member": (
        "No member has this id. `quorate member list` shows the ids of all members."
    ),
    "removed": (
        "A member that was removed never returns under its id. Add its machine as a new member, "
        "with an empty directory: `quorate member add`."
    ),
    "last-voter": (
        "Without its last voter a cluster can do nothing. Add another voter first, or replace this "
        "one: `quorate member replace`."
    ),
    "even": (
        "With two voters the loss of either one stops all writes. To get from one voter to three, "
        "add both: they become voters together, once both are ready. If you do want two voters, "
        "allow it: `quorate member promote ID --even`."
    ),
    "too-many": (
        f"A cluster has at most {MAX_VOTERS} voters and {MAX_SEATS} members. Remove one first."
    ),
    "address": (
        "Another member has this host and port. Choose another port, or move or remove that member "
        "first. A new disk in the same machine is no new member: use `quorate recover`."
    ),
    "would-lose-quorum": (
        "Too few voters answer the leader for this change: the cluster could stop in the middle of "
        "it. Start the voters that are down, or replace those that are gone for good."
    ),
    "role": (
        "The change does not fit what the member is now. `quorate member list` shows what each "
        "member is. A witness that joins waits until enough members with tables have joined."
    ),
    "not-claimed": (
        "The leader does not reach its process. Start it with its file: `quorate run node.toml`. "
        "If it runs, read its log lines, and check its address and the firewalls."
    ),
    "not-ready": (
        "It does not follow the leader at the moment: it has just begun, or does not answer. If it "
        "lasts, read its log lines. Check that its file has `join = true`, and that it and the "
        "members reach each other's member ports."
    ),
    "lagging": (
        "It fetches the log, and more than 16 MiB of it are missing. There is nothing to do. If it "
        "does not come nearer, its disk or its network is too slow for the load."
    ),
    "behind": (
        "It is nearly there: it has to keep up with new writes for a moment. If it lasts, its disk "
        "or its network is too slow for the load."
    ),
    "disk-room": (
        "Its disk is nearly full, so it would be a voter that takes no writes. Make room there."
    ),
}
"""What each word of a leader means: why it refuses a change, or why a joining member waits."""

MAX_ANSWER_BYTES: Final = 64 << 10
"""Longest answer that is read. If smaller, a list of `MAX_SEATS` members with the longest names is
refused. If larger, a wrong port can fill the memory."""

STANDBYS: Final = (MemberRole.STANDBY, MemberRole.SPARE)
"""The roles without a vote."""

_MAX_WORD: Final = 32
_MAX_SENTENCE: Final = 4096


def _is_store(_: object, attribute: "attrs.Attribute[Any]", value: str) -> None:
    if re.fullmatch("[0-9a-f]{16}", value) is None:
        raise ValueError(f"{attribute.name}: {value!r:.80}")


def _is_text(limit: int) -> Any:
    def check(_: object, attribute: "attrs.Attribute[Any]", value: str) -> None:
        # It is printed, so it must not control a terminal.
        if len(value) > limit or not value.isprintable():
            raise ValueError(f"{attribute.name}: {value!r:.80}")

    return check


@attrs.frozen
class ListedMember:
    """One member, as the leader reports it.

    Args:
        member_id: its number.
        role: what it is meant to be.
        state: what it is: ``voter``, ``witness``, ``joining``, ``standby`` or ``leaving``.
        instance: of its store, in hexadecimal; zeros until a store has claimed the seat.
        host: under which members and clients reach it.
        member_port: for members.
        client_port: for clients.
        redirect_port: for cluster clients, 0 for none.
        priority: preference for leadership.
        replaces: the member that leaves when this one becomes a voter.
        live: whether the leader hears it.
        match: bytes of the leader's log that it has; None if this leader has not heard it yet.
        behind: bytes of the leader's log that it has not; None likewise.
        waits: a word for why it is no voter yet, empty if it does not wait.
        tls_port: for clients with TLS, 0 for none.
    """

    member_id: int
    role: MemberRole
    state: str = attrs.field(validator=_is_text(_MAX_WORD))
    instance: str = attrs.field(validator=_is_store)
    host: str = attrs.field(validator=_is_text(MAX_HOST_CHARACTERS))
    member_port: int
    client_port: int
    live: bool
    match: int | None
    behind: int | None
    redirect_port: int = 0
    priority: int = 0
    replaces: int | None = None
    waits: str = attrs.field(default="", validator=_is_text(_MAX_WORD))
    tls_port: int = 0

    @property
    def votes(self) -> bool:
        """Whether it is a voter, and stays one."""
        return self.state in {MemberRole.VOTER.value, MemberRole.WITNESS.value}

    @property
    def is_claimed(self) -> bool:
        """Whether a store has claimed the seat."""
        return int(self.instance, 16) != ANY_STORE

    @property
    def address(self) -> MemberAddress:
        """Where it serves clients."""
        return MemberAddress(self.member_id, self.host, self.client_port, tls_port=self.tls_port)


def _are_few(_: object, attribute: "attrs.Attribute[Any]", value: tuple[object, ...]) -> None:
    if len(value) > MAX_SEATS:
        raise ValueError(f"{attribute.name}: {len(value)}")


@attrs.frozen
class Listed:
    """All members, as the leader reports them.

    Args:
        version: of the configuration.
        joint: whether the voters are changing.
        next_id: the id of the next new member.
        leader: id of the leader.
        term: of the leader.
        members: ascending by id.
    """

    version: int
    joint: bool
    next_id: int
    leader: int
    term: int
    members: tuple[ListedMember, ...] = attrs.field(validator=_are_few)

    def member(self, member_id: int) -> ListedMember | None:
        """Return a member, None if there is none of this id."""
        return next((each for each in self.members if each.member_id == member_id), None)

    def replacement_of(self, member_id: int) -> ListedMember | None:
        """Return the member that is to replace another one, None without one."""
        return next((each for each in self.members if each.replaces == member_id), None)


@attrs.frozen
class Changed:
    """The answer to a change.

    Args:
        version: of the configuration that has it.
        member: id of the member that was changed.
        done: what was done, for people.
    """

    version: int
    member: int
    done: str = attrs.field(validator=_is_text(_MAX_SENTENCE))


_T = TypeVar("_T", Listed, Changed)


def decode_list_untrusted(answer: Reply | str) -> Listed:
    """Read the answer to ``member list``.

    Raises:
        ValueError: no leader answers so.
    """
    return _decode_untrusted(answer, Listed)


def decode_changed_untrusted(answer: Reply | str) -> Changed:
    """Read the answer to a change of the members.

    Raises:
        ValueError: no leader answers so.
    """
    return _decode_untrusted(answer, Changed)


def _decode_untrusted(answer: Reply | str, kind: type[_T]) -> _T:
    short = isinstance(answer, str | bytes) and len(answer) <= MAX_ANSWER_BYTES
    text = cast("str | bytes", answer) if short else ""  # which is no JSON
    try:
        return cattrs.structure(cast("object", json.loads(text)), kind)
    except (ValueError, TypeError, RecursionError, cattrs.BaseValidationError) as error:
        raise ValueError(f"no answer of a leader about members: {answer!r:.80}") from error


def plain(listed: Listed) -> dict[str, Any]:
    """Return a list for programs: as the leader sent it."""
    return cast("dict[str, Any]", cattrs.unstructure(listed))


def word_of(words: str) -> str:
    """Return the word with which a refusal begins; empty if it is none of `MEANINGS`."""
    word = words.partition(":")[0].strip()
    return word if word in MEANINGS else ""


def meaning_of(words: str) -> str:
    """Return what a word means with which a refusal begins; empty if none is known."""
    return MEANINGS.get(word_of(words), "")


def why_waiting(word: str, member_id: int) -> str:
    """Return what a word means for which a member waits; empty if it is not known."""
    return MEANINGS.get(word, "").replace("promote ID", f"promote {member_id}")


def joiner_file(
    cluster: str,
    listed: Listed,
    member_id: int,
    directory: Path,
    security: Security | None = None,
) -> str:
    """Return the ``node.toml`` of a member that has a seat, for its first start.

    Args:
        cluster: its name.
        listed: its members.
        member_id: of the new member.
        directory: of its stores.
        security: how it proves who it is; the operator adds it unless given.

    Raises:
        ConfigurationError: the list has values that no file may have.
    """
    own = listed.member(member_id)
    assert own is not None, f"member {member_id} has no seat in {listed}"
    # A file has at most so many members. Those that can answer the new one come first.
    others = sorted(
        (each for each in listed.members if each is not own),
        key=lambda each: (not each.live, not each.votes, each.member_id),
    )
    entries = sorted((own, *others[: MAX_MEMBERS - 1]), key=lambda each: each.member_id)
    config = NodeConfig(
        cluster,
        member_id,
        directory,
        tuple(map(_entry, entries)),
        join=True,
        security=security or Security(),
    )
    return (
        f"# Member {member_id} joins the running cluster {cluster!r}: quorate run node.toml\n"
        "# If another member's file has other values of profile, [timeouts], [limits], [snapshot]\n"
        f"# or [security], copy them from it.\n{config.to_toml()}"
    )


def _entry(listed: ListedMember) -> MemberConfig:
    standby, witness = listed.role in STANDBYS, listed.role is MemberRole.WITNESS
    return MemberConfig(
        listed.member_id,
        listed.host,
        listed.member_port,
        listed.client_port,
        priority=0 if standby or witness else listed.priority,
        standby=standby,
        redirect_port=listed.redirect_port,
        witness=witness,
        tls_port=listed.tls_port,
    )

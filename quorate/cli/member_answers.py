"""How `quorate member` asks a leader, reads its answer, and explains a refusal."""

import sys
from collections.abc import Callable
from typing import Final, TypeVar

import attrs

from ..local.member_list import (
    Changed,
    Listed,
    decode_changed_untrusted,
    decode_list_untrusted,
    meaning_of,
    word_of,
)
from .control import DONE, REFUSED, UNREACHABLE, Answered, ask_one_of
from .params import Addresses

__all__ = ["ask_for_change", "ask_for_list", "command", "tell"]

_NO_LEADER: Final = "CLUSTERDOWN"
_T = TypeVar("_T", Listed, Changed)


async def ask_for_list(connect: Addresses, request: str = "list") -> tuple[Answered, Listed | None]:
    """Ask for all members; return the answer, and its contents unless it failed.

    Args:
        connect: client ports of members, HOST:PORT.
        request: the command that needs the list, as it was typed behind ``quorate member``.
    """
    answered = await ask_one_of(connect, "member", "list")
    return _decoded(answered, request, decode_list_untrusted)


async def ask_for_change(
    connect: Addresses, request: str, *words: str
) -> tuple[Answered, Changed | None]:
    """Ask for a change; return the answer, in its own words, and its contents unless it failed.

    Args:
        connect: client ports of members, HOST:PORT.
        request: the command, as it was typed behind ``quorate member``.
        words: what the leader is asked.
    """
    answered = await ask_one_of(connect, "member", *words)
    answered, changed = _decoded(answered, request, decode_changed_untrusted)
    return (attrs.evolve(answered, words=changed.done) if changed else answered), changed


def _decoded(
    answered: Answered, request: str, decode: Callable[[str], _T]
) -> tuple[Answered, _T | None]:
    answered = attrs.evolve(answered, request=f"member {request}")
    if answered.status != DONE:
        status = UNREACHABLE if answered.code == _NO_LEADER else answered.status
        return attrs.evolve(answered, status=status), None
    try:
        return answered, decode(answered.words)
    except ValueError as error:
        # Something was answered, so something may have been done.
        print(error, file=sys.stderr)
        failed = attrs.evolve(answered, status=UNREACHABLE, words=str(error), unknown=True)
        return failed, None


def tell(
    answered: Answered, connect: Addresses, *, as_json: bool, changed: Changed | None = None
) -> int:
    """Print an answer, and what to do if it failed; return the exit status.

    Args:
        answered: the answer.
        connect: where the operator asks, for the commands that are shown.
        as_json: for programs.
        changed: what was done, if something was.
    """
    if as_json:
        facts = {"version": changed.version, "member": changed.member} if changed else {}
        word = {"word": word_of(answered.words)} if answered.status == REFUSED else {}
        print(answered.as_json(**facts, **word), flush=True)
    elif answered.status == DONE:
        print(answered.words)
    else:
        for line in filter(None, _advice(answered, connect)):
            print(line, file=sys.stderr)
    return answered.status


def _advice(answered: Answered, connect: Addresses) -> tuple[str, ...]:
    if answered.status == REFUSED:
        return answered.words, meaning_of(answered.words)
    # `ask_one_of` has printed the words of the others.
    if answered.unknown:
        return (
            "It may be done or not. The command may be repeated: what is so already is a success.",
            f"To see what there is: {command('list', connect)}",
        )
    if answered.code == _NO_LEADER:
        return answered.words, "Too few voters run, or can't reach each other: quorate status."
    return ()


def command(verb: str, connect: Addresses) -> str:
    """Return a command of this family as it is typed."""
    return " ".join(("quorate member", verb, *(f"--connect {each}" for each in connect)))

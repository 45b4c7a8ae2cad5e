"""`quorate trace start` and `stop`: members record all their messages for a while."""

import re
import sys
from collections.abc import Sequence
from typing import Annotated, Final

from cyclopts import Parameter

from ...client.resp import RespError
from ...errors import UsageError
from ...local.survey import Answer, at, in_words, survey
from ...node.live.messages import MAX_SECONDS
from ..control import DONE, REFUSED, UNREACHABLE, ask
from ..params import Addresses, parse_address

__all__ = ["start", "stop"]

_HERE: Final = ("127.0.0.1:7000",)
_SPAN: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)(ms|s|m|)")
_UNITS: Final = {"ms": 1, "s": 1000, "": 1000, "m": 60_000}

_Members = Annotated[Sequence[int], Parameter(negative="", name="MEMBER", show_default=False)]
_Messages = Annotated[bool, Parameter(negative="", show_default=False)]
_For = Annotated[str, Parameter(name="--for")]


async def start(
    members: _Members = (),
    /,
    *,
    messages: _Messages = False,
    for_: _For = "10s",
    connect: Addresses = _HERE,
) -> int:
    """Have members record all messages that they send and hear, for a while.

    They are written into each member's flight recorder, which always has those of elections. It
    ends by itself, also after 16 MiB. Merge the files then: quorate trace merge.

    Exit status: 0 - all do; 1 - one refuses; 2 - one can't be reached.

    Args:
        members: Ids of the members; all that can be reached if none is given.
        messages: Record messages. There is nothing else to record yet, so say it.
        for_: How long: 30s, 2m or 500ms; ten minutes at most.
        connect: Client port of a member, HOST:PORT. May be given several times: the first one that
            answers says where the other ones are. 127.0.0.1:7000 if left out.
    """
    if not messages:
        raise UsageError("trace start: expected what to record: --messages")
    span = _milliseconds(for_)
    return await _ask_each(members, connect, "trace", "start", "messages", str(span))


async def stop(members: _Members = (), /, *, connect: Addresses = _HERE) -> int:
    """Have members record only messages of elections, as they always do.

    Exit status: 0 - all do; 1 - one refuses; 2 - one can't be reached.

    Args:
        members: Ids of the members; all that can be reached if none is given.
        connect: Client port of a member, HOST:PORT. May be given several times: the first one that
            answers says where the other ones are. 127.0.0.1:7000 if left out.
    """
    return await _ask_each(members, connect, "trace", "stop")


def _milliseconds(text: str) -> int:
    """Read a span of time.

    Raises:
        UsageError: it is none, or too long.
    """
    found = _SPAN.fullmatch(text)
    span = round(float(found[1]) * _UNITS[found[2]]) if found else 0
    if not 0 < span <= 1000 * MAX_SECONDS:
        raise UsageError(f'--for "{text}": expected 30s, 2m or 500ms, at most {MAX_SECONDS} s')
    return span


async def _ask_each(members: Sequence[int], connect: Addresses, *words: str) -> int:
    """Ask each of these members, or all; print what they answer.

    Raises:
        UsageError: there is no such member.
    """
    seen = await survey([parse_address(text) for text in connect])
    wanted = list(seen.answers)
    if members and any(each.status for each in seen.answers):
        known = [each.address.member_id for each in seen.answers]
        if unknown := [str(member) for member in members if member not in known]:
            expected = ", ".join(map(str, known))
            raise UsageError(f"member {', '.join(unknown)}: expected one of {expected}")
        wanted = [each for each in seen.answers if each.address.member_id in members]
    return max([await _ask_one(each, *words) for each in wanted])


async def _ask_one(answer: Answer, *words: str) -> int:
    address, member = answer.address, answer.address.member_id
    name = f"member {member}" if member >= 0 else at(address)
    where = f"member {member} at {at(address)}" if member >= 0 else at(address)
    try:
        said = await ask(address, *words)
    except OSError as trouble:
        print(f"{where} does not answer: {in_words(trouble)}", file=sys.stderr)
        return UNREACHABLE
    except RespError as refusal:
        print(f"{name}: {str(refusal).partition(' ')[2]}", file=sys.stderr)
        return REFUSED
    print(f"{name}: {said.decode() if isinstance(said, bytes) else said}")
    return DONE

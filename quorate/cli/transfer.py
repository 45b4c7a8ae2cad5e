"""`quorate transfer`: hand the leadership to a member that an operator names."""

from collections.abc import Sequence
from typing import Annotated, Final

import attrs
import trio
from cyclopts import Parameter

from ..local.survey import survey
from ..node.requests.status import MemberAddress
from .control import DONE, REFUSED, ask_one_of
from .status import Addresses, AsJson, parse_address
from .words import span

__all__ = ["transfer"]

_PATIENCE_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.02

To = Annotated[int, Parameter(show_default=False)]
EvenIfBehind = Annotated[bool, Parameter(negative="")]


async def transfer(
    *,
    to: To,
    connect: Addresses = ("127.0.0.1:7000",),
    even_if_behind: EvenIfBehind = False,
    as_json: AsJson = False,
) -> int:
    """Hand the leadership to a member, in order.

    The leader lets its writes land, gives the member all of its log, and asks it to stand. New
    writes wait meanwhile and go to the new leader; none is lost.

    Exit status: 0 - the member leads; 1 - it was refused, and nothing has changed, or the member
    does not lead in the end; 2 - no member can be reached.

    Parameters
    ----------
    to
        Id of the member.
    connect
        Where a member listens for clients, HOST:PORT. May be given several times: the first one
        that answers is asked. 127.0.0.1:7000 if left out.
    even_if_behind
        Do not bring the member level first: it is elected with the log that it has, and fetches
        what it lacks before it leads. No acknowledged write is lost; the pause is longer.
    as_json
        For programs.
    """
    addresses = [parse_address(text) for text in connect]
    began = trio.current_time()
    words = ["transfer", str(to), *["even-if-behind"] * even_if_behind]
    answered = await ask_one_of(connect, *words)
    if answered.status == DONE:
        if not as_json:
            answered.tell(as_json=False)
        status, said = await _wait_until_it_leads(to, addresses, began)
        answered = attrs.evolve(answered, status=status, words=said)
    return answered.tell(as_json=as_json)


async def _wait_until_it_leads(
    to: int, addresses: Sequence[MemberAddress], began: float
) -> tuple[int, str]:
    with trio.move_on_after(_PATIENCE_SECONDS):
        while True:
            seen = await survey(addresses)
            if (
                seen.leader is not None
                and seen.leader.member_id == to
                and seen.leader.state == "CLOSED"
            ):
                took = span(trio.current_time() - began)
                return DONE, f"member {to} leads term {seen.leader.term}, after {took}"
            await trio.sleep(_POLL_SECONDS)
    return REFUSED, f"member {to} does not lead after {span(_PATIENCE_SECONDS)}"

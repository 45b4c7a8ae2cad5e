"""`quorate control`, `quorate transfer`: what an operator asks of the leader.

Each request goes to the first member that answers, which forwards it to the leader.

With ``--json`` the answer is one object. It always has `request`, `outcome` and `words`; what else
is in it depends on the request. `quorate member` prints the same object.
"""

import errno
import json
import math
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Final

import attrs
import trio
from cyclopts import App, Parameter

from ..client.resp import Reply, RespError, open_resp
from ..client.secure import port_of
from ..local.survey import ANSWER_SECONDS, SETTLED, StuckError, Survey, at, in_words, until
from ..local.words import span
from ..node.leader.operator import positions_of
from ..node.requests.status import MemberAddress
from .params import Addresses, AsJson, parse_address

__all__ = [
    "Answered",
    "abort",
    "ask",
    "ask_one_of",
    "control",
    "found",
    "resume",
    "shutdown",
    "snapshot",
    "suspend",
    "transfer",
]

DONE: Final = 0
REFUSED: Final = 1
UNREACHABLE: Final = 2
_UNKNOWN: Final = "UNKNOWN"
_PATIENCE_SECONDS: Final = 10.0

To = Annotated[int, Parameter(show_default=False)]
EvenIfBehind = Annotated[bool, Parameter(negative="")]

control = App(
    name="control",
    help="Ask the leader to act on the whole cluster.",
    help_epilogue="Exit status: 0 - done; 1 - refused, for the reason given; 2 - no member can be "
    "reached, or the outcome is unknown.",
)


@control.command(help_epilogue="")
async def snapshot(*, connect: Addresses = ("127.0.0.1:7000",), as_json: AsJson = False) -> int:
    """Take a snapshot on all members, at one position of the log, and wait for the leader's.

    The cluster goes on serving. A member that is down takes this snapshot, or a newer one, later.

    Args:
        connect: Client port of a member, HOST:PORT. May be given several times: the first one that
            answers is asked. 127.0.0.1:7000 if left out.
        as_json: For programs.
    """
    return (await ask_one_of(connect, "snapshot")).tell(as_json=as_json)


@control.command(help_epilogue="")
async def found(
    *,
    without: Annotated[tuple[int, ...], Parameter(consume_multiple=True, negative="")],
    connect: Addresses = ("127.0.0.1:7000",),
    as_json: AsJson = False,
) -> int:
    """Found a new cluster without some members; these join when they start.

    A new cluster waits for all its members, since each must prove that its store is new. This
    request starts it with the others, which must be a majority. Ask a member that waits.

    Args:
        without: Ids of the members that do not run yet.
        connect: Where a waiting member listens for clients, HOST:PORT. May be given several times.
        as_json: For programs.
    """
    ids = [str(member) for member in without]
    return (await ask_one_of(connect, "found", *ids)).tell(as_json=as_json)


@control.command(help_epilogue="")
async def suspend(*, connect: Addresses = ("127.0.0.1:7000",), as_json: AsJson = False) -> int:
    """Refuse writes until `resume`, also after a restart or a change of the leader.

    A write gets an error at once, and has no effect. Reads go on.

    Args:
        connect: Client port of a member, HOST:PORT. May be given several times: the first one that
            answers is asked. 127.0.0.1:7000 if left out.
        as_json: For programs.
    """
    return (await ask_one_of(connect, "suspend")).tell(as_json=as_json)


@control.command(help_epilogue="")
async def resume(*, connect: Addresses = ("127.0.0.1:7000",), as_json: AsJson = False) -> int:
    """Take writes again, after `suspend`.

    Args:
        connect: Client port of a member, HOST:PORT. May be given several times: the first one that
            answers is asked. 127.0.0.1:7000 if left out.
        as_json: For programs.
    """
    return (await ask_one_of(connect, "resume")).tell(as_json=as_json)


@control.command(help_epilogue="")
async def shutdown(*, connect: Addresses = ("127.0.0.1:7000",), as_json: AsJson = False) -> int:
    """Take a snapshot on all members, and stop them all at the same position of the log.

    Requests sent before are done and answered. Nothing is lost, and no election is held.

    Args:
        connect: Client port of a member, HOST:PORT. May be given several times: the first one that
            answers is asked. 127.0.0.1:7000 if left out.
        as_json: For programs.
    """
    return (await ask_one_of(connect, "shutdown")).tell(as_json=as_json)


@control.command(help_epilogue="")
async def abort(*, connect: Addresses = ("127.0.0.1:7000",), as_json: AsJson = False) -> int:
    """Stop all members at the same position of the log, without a snapshot.

    Args:
        connect: Client port of a member, HOST:PORT. May be given several times: the first one that
            answers is asked. 127.0.0.1:7000 if left out.
        as_json: For programs.
    """
    return (await ask_one_of(connect, "abort")).tell(as_json=as_json)


async def transfer(
    *,
    to: To,
    connect: Addresses = ("127.0.0.1:7000",),
    even_if_behind: EvenIfBehind = False,
    as_json: AsJson = False,
) -> int:
    """Hand the leadership to a member. No write is lost.

    The leader finishes its writes, sends the member all of its log, and asks it to take over. New
    writes wait, and go to the new leader.

    Exit status: 0 - the member leads; 1 - refused, and nothing changed, or the member does not lead
    in the end; 2 - no member can be reached.

    Args:
        to: Id of the member.
        connect: Client port of a member, HOST:PORT. May be given several times: the first one that
            answers is asked. 127.0.0.1:7000 if left out.
        even_if_behind: Do not send it the rest of the log first. It is elected with the log that it
            has, and fetches the rest before it leads. No write is lost; the pause is longer.
        as_json: For programs.
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
    def leads(seen: Survey) -> bool:
        leader = seen.leader
        return leader is not None and leader.member_id == to and leader.state == SETTLED

    try:
        leader = (await until(addresses, leads, _PATIENCE_SECONDS)).leader
    except StuckError:
        return REFUSED, f"member {to} does not lead after {span(_PATIENCE_SECONDS)}"
    assert leader is not None
    return DONE, f"member {to} leads term {leader.term}, after {span(trio.current_time() - began)}"


@attrs.frozen
class Answered:
    """The outcome of a control request.

    Args:
        request: its words.
        status: the exit status.
        words: what was done, or why not.
        unknown: it was sent to a leader that was lost, and may be done or not.
        code: the first word of an error reply, such as ``CLUSTERDOWN``; empty without one.
        connect: the addresses to ask next, the one that answered first.
    """

    request: str
    status: int
    words: str
    unknown: bool = False
    code: str = ""
    connect: Addresses = ()

    @property
    def outcome(self) -> str:
        """One word for programs: ``done``, ``refused``, ``unknown`` or ``unreachable``."""
        if self.unknown:
            return "unknown"
        return {DONE: "done", REFUSED: "refused"}.get(self.status, "unreachable")

    def as_json(self, **facts: Any) -> str:
        """Return it for programs, with what else is known."""
        found = {"request": self.request, "outcome": self.outcome, "words": self.words}
        return json.dumps(found | facts)

    @property
    def positions(self) -> list[int]:
        """Positions of the log in the leader's answer, in its order."""
        return positions_of(self.words)

    def tell(self, *, as_json: bool) -> int:
        """Print it; return the exit status."""
        if as_json:
            print(self.as_json(positions=self.positions if self.status == DONE else []))
        elif self.status != UNREACHABLE:  # `ask_one_of` has printed that
            print(self.words, file=sys.stdout if self.status == DONE else sys.stderr)
        return self.status


async def ask_one_of(connect: Addresses, *words: str) -> Answered:
    """Ask the first member that answers; print which ones before it do not."""
    request, silent = " ".join(words), list[str]()
    for number, text in enumerate(connect):
        # The silent ones come last from now on, so each is asked, and printed, only once.
        known = (*connect[number:], *connect[:number])
        address = parse_address(text)
        try:
            said = await ask(address, *words)
        except OSError as trouble:
            silent.append(f"{at(address)}: {in_words(trouble)}")
            print(silent[-1], file=sys.stderr)
        except RespError as refusal:
            reason = str(refusal).partition(" ")[2]
            if refusal.code != _UNKNOWN:
                return Answered(request, REFUSED, reason, code=refusal.code, connect=known)
            print(reason, file=sys.stderr)
            return Answered(request, UNREACHABLE, reason, True, refusal.code, known)
        else:
            words_said = said.decode() if isinstance(said, bytes) else str(said)
            return Answered(request, DONE, words_said, connect=known)
    return Answered(request, UNREACHABLE, "\n".join(silent), connect=connect)


async def ask(address: MemberAddress, *words: str) -> Reply:
    """Send a control request through a member; return the leader's answer.

    Raises:
        OSError: the member cannot be reached, or does not answer in time.
        RespError: the request is refused.
    """
    # A machine that is gone refuses no connection, and a process that hangs accepts one. The
    # request itself may take minutes, so something short is asked before.
    with trio.move_on_after(ANSWER_SECONDS) as scope:
        async with open_resp(address.host, port_of(address)) as client:
            with suppress(RespError):
                await client.call("PING")
            scope.deadline = math.inf
            return await client.call("QUORATE.CONTROL", *words)
    raise TimeoutError(errno.ETIMEDOUT, f"no answer within {ANSWER_SECONDS:g} s")

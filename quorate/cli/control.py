"""`quorate control`: what an operator may ask of the whole cluster, by way of its leader."""

import json
import sys
from typing import Annotated, Final

import attrs
from cyclopts import App, Parameter

from ..client.resp import Reply, RespError, open_resp
from ..local.survey import in_words
from ..node.leader.operator import positions_of
from ..node.requests.status import MemberAddress
from .status import Addresses, AsJson, parse_address

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
]

DONE: Final = 0
REFUSED: Final = 1
UNREACHABLE: Final = 2
_UNKNOWN: Final = "UNKNOWN"

control = App(
    name="control",
    help="Ask the leader for what concerns the whole cluster.",
    help_epilogue="Exit status: 0 - done; 1 - refused, with the reason; 2 - no member can be "
    "reached, or the outcome is not known.",
)


@control.command(help_epilogue="")
async def snapshot(*, connect: Addresses = ("127.0.0.1:7000",), as_json: AsJson = False) -> int:
    """Have all members take a snapshot at one position of the log; wait for the leader's.

    The cluster serves meanwhile. Members that are down take it when they come back, or a newer one.

    Parameters
    ----------
    connect
        Where a member listens for clients, HOST:PORT. May be given several times: the first one
        that answers is asked. 127.0.0.1:7000 if left out.
    as_json
        For programs.
    """
    return (await ask_one_of(connect, "snapshot")).tell(as_json=as_json)


@control.command(help_epilogue="")
async def found(
    *,
    without: Annotated[tuple[int, ...], Parameter(consume_multiple=True, negative="")],
    connect: Addresses = ("127.0.0.1:7000",),
    as_json: AsJson = False,
) -> int:
    """Begin a new cluster without members that do not run yet; they join when they are started.

    A new cluster waits for all its members, since each must prove that its store is new. With this
    word the others, a majority at least, begin alone. Ask a member that waits.

    Parameters
    ----------
    without
        Ids of the members to begin without.
    connect
        Where a waiting member listens for clients, HOST:PORT. May be given several times.
    as_json
        For programs.
    """
    ids = [str(member) for member in without]
    return (await ask_one_of(connect, "found", *ids)).tell(as_json=as_json)


@control.command(help_epilogue="")
async def suspend(*, connect: Addresses = ("127.0.0.1:7000",), as_json: AsJson = False) -> int:
    """Take no writes from now on, whoever leads and whoever restarts; reads go on.

    Writes are refused at once with an error that says so, and have no effect.

    Parameters
    ----------
    connect
        Where a member listens for clients, HOST:PORT. May be given several times.
    as_json
        For programs.
    """
    return (await ask_one_of(connect, "suspend")).tell(as_json=as_json)


@control.command(help_epilogue="")
async def resume(*, connect: Addresses = ("127.0.0.1:7000",), as_json: AsJson = False) -> int:
    """Take writes again.

    Parameters
    ----------
    connect
        Where a member listens for clients, HOST:PORT. May be given several times.
    as_json
        For programs.
    """
    return (await ask_one_of(connect, "resume")).tell(as_json=as_json)


@control.command(help_epilogue="")
async def shutdown(*, connect: Addresses = ("127.0.0.1:7000",), as_json: AsJson = False) -> int:
    """Have all members take a snapshot and then stop, all at the same position of the log.

    What was asked before is done and answered; nothing is lost, and no election is held.

    Parameters
    ----------
    connect
        Where a member listens for clients, HOST:PORT. May be given several times.
    as_json
        For programs.
    """
    return (await ask_one_of(connect, "shutdown")).tell(as_json=as_json)


@control.command(help_epilogue="")
async def abort(*, connect: Addresses = ("127.0.0.1:7000",), as_json: AsJson = False) -> int:
    """Have all members stop at the same position of the log, without a snapshot.

    Parameters
    ----------
    connect
        Where a member listens for clients, HOST:PORT. May be given several times.
    as_json
        For programs.
    """
    return (await ask_one_of(connect, "abort")).tell(as_json=as_json)


@attrs.frozen
class Answered:
    """What became of a control request.

    Args:
        request: its words.
        status: the exit status.
        words: what was done, or why not.
        unknown: it was sent to the leader, which has ended: it may be done or not.
    """

    request: str
    status: int
    words: str
    unknown: bool = False

    @property
    def positions(self) -> list[int]:
        """Those of the log that the leader's answer names, in its order."""
        return positions_of(self.words)

    def tell(self, *, as_json: bool) -> int:
        """Print it; return the exit status."""
        if as_json:
            outcome = {DONE: "done", REFUSED: "refused"}.get(self.status, "unreachable")
            outcome = "unknown" if self.unknown else outcome
            positions = self.positions if self.status == DONE else []
            found = {"request": self.request, "outcome": outcome, "words": self.words}
            print(json.dumps(found | {"positions": positions}))
        elif self.status != UNREACHABLE:  # which was told
            print(self.words, file=sys.stdout if self.status == DONE else sys.stderr)
        return self.status


async def ask_one_of(connect: Addresses, *words: str) -> Answered:
    """Ask the first member that answers."""
    request, silent = " ".join(words), list[str]()
    for text in connect:
        address = parse_address(text)
        try:
            said = await ask(address, *words)
        except OSError as trouble:
            silent.append(f"{address.host}:{address.client_port}: {in_words(trouble)}")
            print(silent[-1], file=sys.stderr)
        except RespError as refusal:
            reason = str(refusal).partition(" ")[2]
            if refusal.code != _UNKNOWN:
                return Answered(request, REFUSED, reason)
            print(reason, file=sys.stderr)
            return Answered(request, UNREACHABLE, reason, unknown=True)
        else:
            return Answered(request, DONE, said.decode() if isinstance(said, bytes) else str(said))
    return Answered(request, UNREACHABLE, "\n".join(silent))


async def ask(address: MemberAddress, *words: str) -> Reply:
    """Send a control request by way of a member; return what the leader says.

    Raises:
        OSError: the member can't be reached.
        RespError: the request is refused.
    """
    async with open_resp(address.host, address.client_port) as client:
        return await client.call("QUORATE.CONTROL", *words)

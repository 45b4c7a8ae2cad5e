"""`quorate control`: what an operator may ask of the whole cluster, by way of its leader."""

import sys
from typing import Final

from cyclopts import App

from .cli_status import Addresses, parse_address
from .node.gateway import MemberAddress
from .respclient import Reply, RespError, open_resp
from .status import in_words

__all__ = ["abort", "ask", "ask_one_of", "control", "resume", "shutdown", "snapshot", "suspend"]

DONE: Final = 0
REFUSED: Final = 1
UNREACHABLE: Final = 2

control = App(
    name="control",
    help="Ask the leader for what concerns the whole cluster.",
    help_epilogue="Exit status: 0 - done; 1 - refused, with the reason; 2 - no member can be "
    "reached.",
)


@control.command(help_epilogue="")
async def snapshot(*, connect: Addresses = ("127.0.0.1:7000",)) -> int:
    """Have all members take a snapshot at one position of the log; wait for the leader's.

    The cluster serves meanwhile. Members that are down take it when they come back, or a newer one.

    Parameters
    ----------
    connect
        Where a member listens for clients, HOST:PORT. May be given several times: the first one
        that answers is asked. 127.0.0.1:7000 if left out.
    """
    return await ask_one_of(connect, "snapshot")


@control.command(help_epilogue="")
async def suspend(*, connect: Addresses = ("127.0.0.1:7000",)) -> int:
    """Take no writes from now on, whoever leads and whoever restarts; reads go on.

    Writes are refused at once with an error that says so, and have no effect.

    Parameters
    ----------
    connect
        Where a member listens for clients, HOST:PORT. May be given several times.
    """
    return await ask_one_of(connect, "suspend")


@control.command(help_epilogue="")
async def resume(*, connect: Addresses = ("127.0.0.1:7000",)) -> int:
    """Take writes again.

    Parameters
    ----------
    connect
        Where a member listens for clients, HOST:PORT. May be given several times.
    """
    return await ask_one_of(connect, "resume")


@control.command(help_epilogue="")
async def shutdown(*, connect: Addresses = ("127.0.0.1:7000",)) -> int:
    """Have all members take a snapshot and then stop, all at the same position of the log.

    What was asked before is done and answered; nothing is lost, and no election is held.

    Parameters
    ----------
    connect
        Where a member listens for clients, HOST:PORT. May be given several times.
    """
    return await ask_one_of(connect, "shutdown")


@control.command(help_epilogue="")
async def abort(*, connect: Addresses = ("127.0.0.1:7000",)) -> int:
    """Have all members stop at the same position of the log, without a snapshot.

    Parameters
    ----------
    connect
        Where a member listens for clients, HOST:PORT. May be given several times.
    """
    return await ask_one_of(connect, "abort")


async def ask_one_of(connect: Addresses, *words: str) -> int:
    """Ask the first member that answers; print what it says, and give the exit status."""
    for text in connect:
        address = parse_address(text)
        try:
            said = await ask(address, *words)
        except OSError as trouble:
            print(f"{address.host}:{address.client_port}: {in_words(trouble)}", file=sys.stderr)
        except RespError as refusal:
            print(str(refusal).partition(" ")[2], file=sys.stderr)
            return REFUSED
        else:
            print(said.decode() if isinstance(said, bytes) else said)
            return DONE
    return UNREACHABLE


async def ask(address: MemberAddress, *words: str) -> Reply:
    """Send a control request by way of a member; return what the leader says.

    Raises:
        OSError: the member can't be reached.
        RespError: the request is refused.
    """
    async with open_resp(address.host, address.client_port) as client:
        return await client.call("QUORATE.CONTROL", *words)

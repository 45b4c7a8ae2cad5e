"""`quorate lock`, `quorate elect`: the two commands, and their exit statuses."""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Final, TypeAlias

import trio
from cyclopts import Parameter

from ...client.connect import connect as connected
from ...client.resp import PASSWORD_VARIABLE, USER_VARIABLE
from ...client.secure import tls_of_environment
from ...errors import ConfigurationError, HandshakeError, LeaseLostError, RequestError, UsageError
from ...keyvalue.programs.client import KeyValue
from ...keyvalue.retry import check_seconds
from ...recipes import Lease, election
from ...recipes import lock as recipe_lock
from ...recipes.lease import MAX_TTL_S, MIN_TTL_S
from ...recipes.names import prefix_of
from ..params import Addresses, parse_address
from .child import Child, NotStartedError

__all__ = ["elect", "lock"]

LOST: Final = 122
NOT_IN_TIME: Final = 124
UNREACHABLE: Final = 125

_LONGEST_S: Final = 86_400.0
_PATIENCE_S: Final = 60.0
"""Waiting for a first member without --wait. Shorter, and a command that is started together with
its cluster fails. Longer, and a wrong address is reported late."""

Seconds = Annotated[float, Parameter(show_default=True)]
Wait = Annotated[float | None, Parameter(show_default=False)]
Word = Annotated[str, Parameter(show_default=False)]
Entering: TypeAlias = Callable[[KeyValue, float | None], AbstractAsyncContextManager[Lease]]


async def lock(
    name: Word,
    /,
    *command: Word,
    connect: Addresses = ("127.0.0.1:7000",),
    ttl: Seconds = 10.0,
    wait: Wait = None,
    grace: Seconds = 5.0,
) -> int:
    """Wait for a lock of the cluster, and run a command while this process holds it.

    quorate lock backup --ttl 30 --wait 0 -- pg_dump orders

    The command finds the fencing token in QUORATE_TOKEN: a number that rises from owner to owner.
    If the lock is lost, the command and what it has started get SIGTERM, and SIGKILL after --grace.
    Another owner may begin a tenth of --ttl after that SIGTERM. SIGTERM and Ctrl-C are passed on.

    Exit status: that of the command, 128 and the signal if one has ended it; 122 - the lock was
    lost, and the command was ended; 124 - the lock was not free within --wait; 125 - no member
    answers, or it refuses; 126 - the command can't be run; 127 - it is not found.

    Args:
        name: Name of the lock.
        command: The command and its arguments, behind --.
        connect: Client port of a member, HOST:PORT. May be given several times; give all of them,
            so that one that is down does no harm. 127.0.0.1:7000 if left out.
        ttl: Seconds after which the lock of a process that died is free.
        wait: Seconds to wait for the lock; 0 to try once. For ever if left out.
        grace: Seconds between SIGTERM and SIGKILL.
    """
    _check("lock", name, command, ttl=ttl, wait=wait, grace=grace)

    def enter(kv: KeyValue, wait_s: float | None) -> AbstractAsyncContextManager[Lease]:
        return recipe_lock(kv, name, ttl_s=ttl, wait_s=wait_s)

    return await _hold(enter, Child(command, grace), connect, wait)


async def elect(
    name: Word,
    /,
    *command: Word,
    connect: Addresses = ("127.0.0.1:7000",),
    ttl: Seconds = 10.0,
    wait: Wait = None,
    grace: Seconds = 5.0,
) -> int:
    """Wait to be elected among the processes that call this, and run a command as the leader.

    quorate elect mailer -- ./send-mails

    It is `quorate lock` with another kind of key: programs can observe who leads. When the
    leadership is lost the command is ended, and so is this process; have a supervisor start it
    again. SIGTERM and Ctrl-C are passed on.

    Exit status: as for `quorate lock`. 122 - the leadership was lost; 124 - others led for all of
    --wait.

    Args:
        name: Of what is led.
        command: The command and its arguments, behind --.
        connect: Client port of a member, HOST:PORT. May be given several times; give all of them,
            so that one that is down does no harm. 127.0.0.1:7000 if left out.
        ttl: Seconds after which a leader that died is replaced.
        wait: Seconds to wait for the leadership; 0 to try once. For ever if left out.
        grace: Seconds between SIGTERM and SIGKILL.
    """
    _check("election", name, command, ttl=ttl, wait=wait, grace=grace)

    def enter(kv: KeyValue, wait_s: float | None) -> AbstractAsyncContextManager[Lease]:
        return election(kv, name, ttl_s=ttl).lead(wait_s=wait_s)

    return await _hold(enter, Child(command, grace), connect, wait)


def _check(
    recipe: str,
    name: str,
    command: tuple[str, ...],
    *,
    ttl: float,
    wait: float | None,
    grace: float,
) -> None:
    if not command:
        verb = "elect" if recipe == "election" else recipe
        raise UsageError(
            f"{verb} {name}: expected a name, and a command behind --: {verb} NAME -- sleep 10"
        )
    try:
        prefix_of(recipe, name)
        check_seconds("--ttl", ttl, MIN_TTL_S, MAX_TTL_S)
        check_seconds("--wait", 0 if wait is None else wait, 0, _LONGEST_S)
        check_seconds("--grace", grace, 0, _LONGEST_S)
    except ConfigurationError as error:
        raise UsageError(str(error)) from None


async def _hold(enter: Entering, child: Child, connect: Addresses, wait: float | None) -> int:
    """Run the command in the block; return the exit status of this process."""
    stopped: list[int] = []
    status = UNREACHABLE
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def obey() -> None:
                async for number in signals:
                    if not child.pass_on(number):
                        stopped.append(128 + number)
                        nursery.cancel_scope.cancel()

            nursery.start_soon(obey)
            try:
                status = await _run(enter, child, connect, wait)
            except (TimeoutError, LeaseLostError, RequestError, HandshakeError) as error:
                print(f"quorate: {error}", file=sys.stderr)
                status = _status_of(error)
            except NotStartedError as error:
                print(f"quorate: {error}", file=sys.stderr)
                status = error.status
            nursery.cancel_scope.cancel()
    return stopped[0] if stopped else status


def _status_of(error: Exception) -> int:
    match error:
        case TimeoutError():
            return NOT_IN_TIME
        case LeaseLostError():
            return LOST
        case _:
            return UNREACHABLE


async def _run(enter: Entering, child: Child, connect: Addresses, wait: float | None) -> int:
    members = [(each.host, each.client_port) for each in map(parse_address, connect)]
    password = os.environ.get(PASSWORD_VARIABLE)
    user = None if password is None else os.environ.get(USER_VARIABLE, "default")
    until = None if wait is None else trio.current_time() + wait
    # Without a session: a lease finds out by itself what became of its requests.
    async with connected(
        members,
        tls=tls_of_environment(),
        user=user,
        password=password,
        exactly_once=False,
        patience_s=_PATIENCE_S if wait is None else max(wait, 1.0),
    ) as kv:
        left = None if until is None else round(max(until - trio.current_time(), 0.0), 1)
        async with enter(kv, left) as held:
            return await child.run(held.token)

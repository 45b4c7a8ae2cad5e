"""`quorate top`: watch a cluster in a terminal, live or from a recording."""

from __future__ import annotations

import os
import signal
import sys
import termios
import tty
from contextlib import contextmanager
from pathlib import Path  # noqa: TC003 - the command line needs it
from typing import TYPE_CHECKING, Annotated, Final

import trio
from cyclopts import Parameter
from cyclopts.validators import Number
from rich.live import Live

from ...errors import UsageError
from ...local.show import make_console
from ..params import AsJson, parse_address
from ..recordings.paths import one_file
from .drawing import draw
from .feeds import LOOK_SECONDS, Members, Replay, open_replay
from .lines import as_json as as_line

if TYPE_CHECKING:
    from collections.abc import Generator

    from rich.console import Console

    from .model import Cluster

__all__ = ["top"]

_KEYS: Final = "q ends"
_OVER: Final = "The recording is over. q ends"

Addresses = Annotated[str, Parameter(show_default=False)]
Speed = Annotated[float, Parameter(validator=Number(gt=0))]


async def top(
    *addresses: Addresses,
    once: Annotated[bool, Parameter(negative="")] = False,
    as_json: AsJson = False,
    replay: Annotated[Path | None, Parameter(show_default=False)] = None,
    speed: Speed = 1.0,
) -> int:
    """Watch a cluster: the members' states, positions and lags, rates, and the last elections.

    The picture is drawn twice a second until q or Ctrl-C. Where the output is no terminal it is
    printed once. What was not heard for 2 s is marked STALE.

    Exit status: 0 - done; with --once: 1 - not just one member leads, or writes have stopped; 2 -
    no member can be reached.

    Args:
        addresses: Client port of a member, HOST:PORT; it names the other members. Several: the
            first one that answers is asked. 127.0.0.1:7000 if left out.
        once: Print one picture, and end.
        as_json: Print one JSON object a line instead, twice a second, for programs.
        replay: Play this recording instead.
        speed: With --replay: seconds of the recording in one second.
    """
    console = make_console()
    live = console.is_terminal and not console.is_dumb_terminal
    if replay is not None:
        if addresses:
            raise UsageError(f"--replay asks no member: expected no address, not {addresses[0]}")
        one_file(replay)
        with open_replay(replay, speed) as played:
            if as_json or once or not live:
                return _print_replay(played, console, once=once, as_json=as_json)
            await _watch(played, console)
            return 0
    members = Members([parse_address(text) for text in addresses or ("127.0.0.1:7000",)])
    if troubles := await members.begin():
        for line in troubles:
            print(line, file=sys.stderr)
        return 2
    if once or not (live or as_json):
        return await _print_once(members, console, as_json=as_json)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(members.run)
        if as_json:
            await _print_lines(members)
        else:
            await _watch(members, console)
        nursery.cancel_scope.cancel()
    return 0


async def _print_once(members: Members, console: Console, *, as_json: bool) -> int:
    """Print one picture; return the exit status."""
    members.cluster.sample()
    # A rate needs two answers of a member.
    await trio.sleep(LOOK_SECONDS)
    await members.ask_all()
    members.cluster.sample()
    _print(members.cluster, console, as_json=as_json)
    return _verdict(members.cluster)


def _verdict(cluster: Cluster) -> int:
    if not cluster.fresh:
        return 2
    return int(len(cluster.leaders) != 1 or cluster.spare < 0)


def _print(cluster: Cluster, console: Console, *, as_json: bool) -> None:
    if as_json:
        print(as_line(cluster, 0))
    else:
        console.print(draw(cluster, console))


def _print_replay(played: Replay, console: Console, *, once: bool, as_json: bool) -> int:
    steps, cluster = 0, played.cluster
    for cluster in played.pictures():
        if as_json and not once:
            print(as_line(cluster, steps))
            steps = cluster.step_count
    if once or not as_json:
        _print(cluster, console, as_json=as_json)
    return 0


async def _print_lines(members: Members) -> None:
    steps = 0
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
        while True:
            members.advance()
            members.cluster.sample()
            print(as_line(members.cluster, steps), flush=True)
            steps = members.cluster.step_count
            with trio.move_on_after(LOOK_SECONDS):
                await anext(received)
                return


async def _watch(feed: Members | Replay, console: Console) -> None:
    """Draw the picture again and again, until a key or a signal."""
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(_stop_on_signals, stop)
        with (
            _keys_at_once() as keys,
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            if keys:
                nursery.start_soon(_stop_on_q, stop)
            while not stop.is_set():
                more = feed.advance()
                if more:
                    feed.cluster.sample()
                live.update(draw(feed.cluster, console, keys=_KEYS if more else _OVER))
                live.refresh()
                with trio.move_on_after(LOOK_SECONDS):
                    await stop.wait()
        nursery.cancel_scope.cancel()


async def _stop_on_signals(
    stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
        task_status.started()
        await anext(received)
        stop.set()


async def _stop_on_q(stop: trio.Event) -> None:
    while not stop.is_set():
        await trio.lowlevel.wait_readable(sys.stdin.fileno())
        # Past the buffer of `sys.stdin`, which would wait for a whole line.
        typed = os.read(sys.stdin.fileno(), 64)
        if not typed or b"q" in typed.lower():
            stop.set()


@contextmanager
def _keys_at_once() -> Generator[bool]:
    """Get each key when it is typed, for the length of the block; False if there are no keys."""
    if not sys.stdin.isatty():
        yield False
        return
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    tty.setcbreak(number)
    try:
        yield True
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)

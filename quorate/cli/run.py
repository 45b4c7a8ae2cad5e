"""`quorate run`: one member, until a signal stops it.

The first SIGTERM or SIGINT stops it in order, a second one at once. SIGHUP has a member with TLS
look for a new certificate. While it runs, the file ``pid`` in its directory holds its process id.
"""

import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import trio
from cyclopts import Parameter

from .._version import __version__
from ..embed import Node, open_node
from ..errors import DamagedTablesError, StoreFullError, leaves
from ..keyvalue.port.listener import RESERVED_DESCRIPTORS
from ..local.log_lines import LineHandler, line_handler
from ..log_events import HumanLines, JsonLines, log_event
from ..machine.config import MachineConfig, is_machine_file, load_machine
from ..node.config.config import LogFormat, LogLevel, LogLines, NodeConfig, load_config
from ..storage.lmdb.environment import free_bytes
from ..transport import Address
from .app import GARBAGE_THRESHOLD

__all__ = ["run"]

_LOG: Final = logging.getLogger("quorate.run")

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 5.0
"""Pauses before a member starts again that met a full disk or damaged tables. Shorter, and it fails
again before anything has changed. Longer, and the cluster is without it for longer than needed."""


async def run(
    file: Path,
    /,
    *,
    log_level: LogLevel | None = None,
    log_format: LogFormat | None = None,
    stop_at_eof: Annotated[bool, Parameter(show=False, negative="")] = False,
    own_logs: Annotated[bool, Parameter(show=False, negative="")] = False,
) -> int:
    """Run one member, or all members of a machine, until a signal stops them.

    SIGTERM or Ctrl-C stops them in order, a second one at once. Log lines go to standard error.

    Args:
        file: The configuration (TOML) of the member, or of the machine in a cluster with
            partitions: that one has [[machines]].
        log_level: The least level that is logged; that of the file if left out.
        log_format: human or json, one object a line; that of the file if left out.
        stop_at_eof: Stop in order when standard input ends, as it does when the parent is gone.
        own_logs: Of a machine: each member logs to a file in its folder.
    """
    if is_machine_file(file):
        machine = load_machine(file)
        handler = _log_to_stderr((machine.machine_id, None), machine.log, log_level, log_format)
        _log_machine(machine)
        serve = partial(_supervise_until, machine, own_logs=own_logs)
        return await _run_until_stopped(serve, handler, stop_at_eof=stop_at_eof)
    config = load_config(file)
    place = config.member_id, config.partition.number if config.partition.folder else None
    handler = _log_to_stderr(place, config.log, log_level, log_format)
    _log_start(config)
    _raise_descriptor_limit(config.limits.max_clients + 2 * RESERVED_DESCRIPTORS)
    if config.security.tls is not None:
        # While it opens, or waits for room on its disk. Otherwise a word to read its new files
        # would end it; it reads them soon anyway.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    serve = partial(_serve_until, config)
    return await _run_until_stopped(serve, handler, stop_at_eof=stop_at_eof)


async def _run_until_stopped(
    serve: Callable[[trio.Event], Awaitable[None]], handler: logging.Handler, *, stop_at_eof: bool
) -> int:
    """Run something until a signal, or the end of standard input, sets the event that it gets."""
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        if isinstance(handler, LineHandler):
            await nursery.start(handler.lines.run)
        await nursery.start(_stop_on_signals, stop, handler)
        if stop_at_eof:
            nursery.start_soon(_stop_at_eof, stop)
        await serve(stop)
        nursery.cancel_scope.cancel()
    log_event(_LOG, logging.INFO, "ends", "the member has ended")
    return 0


async def _supervise_until(config: MachineConfig, stop: trio.Event, *, own_logs: bool) -> None:
    """Run the members of a machine until `stop`."""
    from ..machine.supervisor import supervise  # noqa: PLC0415 - members need none of it

    pid = config.directory / "pid"
    _write_pid(pid)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_at, stop, nursery.cancel_scope, trio.CancelScope())
        await supervise(config, own_logs=own_logs)
    pid.unlink(missing_ok=True)


async def _serve_until(config: NodeConfig, stop: trio.Event) -> None:
    """Run the member until `stop`; start it again after a full disk or damaged tables.

    The reserve of the store prevents a full disk, unless other programs fill it. Nothing of a write
    that failed is on the disk, and everything acknowledged is, so the member starts as after a
    crash. Damaged tables are rebuilt at the start.

    Raises:
        StoreFullError: the disk was full at the first start.
    """
    began, pause = trio.Event(), FIRST_PAUSE_SECONDS
    while not stop.is_set():
        full: BaseException | None = None
        damaged: BaseException | None = None
        try:
            await _serve(config, stop, began)
        except* StoreFullError as group:
            full = next(leaves(group))
            if not began.is_set():
                raise
        except* DamagedTablesError as group:
            damaged = next(leaves(group))
        if damaged is not None:
            words = "the tables are damaged, the member starts again: %(why)s"
            log_event(_LOG, logging.ERROR, "fails", words, why=str(damaged))
            with trio.move_on_after(pause):
                await stop.wait()
            continue
        if full is None:
            return
        words = "the disk is full, the member starts again when there is room: %(why)s"
        log_event(_LOG, logging.ERROR, "fails", words, why=str(full))
        await _room(config, stop, pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


async def _room(config: NodeConfig, stop: trio.Event, pause: float) -> None:
    """Wait until the disk has room, or until `stop`; at least for `pause` seconds.

    Under a quota there may be less room than the system reports. The member fails again then, and
    waits again.
    """
    enough = False
    while not (enough or stop.is_set()):
        with trio.move_on_after(pause):
            await stop.wait()
        enough = free_bytes(config.directory) >= 2 * config.limits.reserve_bytes


def _write_pid(file: Path) -> None:
    """Write our process id. A script that reads the file meanwhile finds it whole."""
    new = file.with_name("pid.new")
    new.write_text(f"{os.getpid()}\n", encoding="ascii")
    new.replace(file)


async def _serve(config: NodeConfig, stop: trio.Event, began: trio.Event) -> None:
    """Run the member until `stop`, or until the cluster shuts down; set `began` once it runs."""
    pid = config.directory / "pid"
    opening = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        # A member that is still opening has no request to answer, so a signal just cancels it.
        nursery.start_soon(_cancel_at, stop, nursery.cancel_scope, opening)
        async with open_node(config) as node:
            opening.cancel()
            began.set()
            _collect_seldom()
            _write_pid(pid)
            async with trio.open_nursery() as waiting:
                waiting.start_soon(_cancel_at, stop, waiting.cancel_scope, trio.CancelScope())
                if config.security.tls is not None:
                    waiting.start_soon(_reload_on_hangup, node)
                await node.wait()
                waiting.cancel_scope.cancel()
    pid.unlink(missing_ok=True)


async def _cancel_at(stop: trio.Event, scope: trio.CancelScope, unless: trio.CancelScope) -> None:
    with unless:
        await stop.wait()
        scope.cancel()


async def _reload_on_hangup(node: Node) -> None:
    """Look at the files of the certificate at each SIGHUP."""
    with trio.open_signal_receiver(signal.SIGHUP) as received:
        async for _ in received:
            node.reload_certificates()


async def _stop_on_signals(
    stop: trio.Event,
    handler: logging.Handler,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
        task_status.started()
        # If the parent is gone `stop` is set already; this signal is still the first one.
        name = signal.Signals(await anext(received)).name
        log_event(_LOG, logging.INFO, "stops", "%(why)s: stopping in order", why=name)
        stop.set()
        number = await anext(received)
        name, words = signal.Signals(number).name, "%(why)s again: stopping at once"
        log_event(_LOG, logging.WARNING, "stops", words, why=name)
        if isinstance(handler, LineHandler):
            await handler.lines.written()
        os._exit(128 + number)


async def _stop_at_eof(stop: trio.Event) -> None:
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stream:
        async for _ in stream:
            pass
    why = "standard input has ended"
    log_event(_LOG, logging.INFO, "stops", "%(why)s: stopping in order", why=why)
    stop.set()


def _raise_descriptor_limit(wanted: int) -> None:
    """Raise the limit of open files to this number, or to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _collect_seldom() -> None:
    """Make the garbage collector run seldom, and skip what lives as long as the process.

    A member makes many tuples but hardly any cycles, so the collector finds almost nothing. A full
    collection stops the event loop, and walks through all modules, too. So objects that exist now
    are frozen. Nothing is collected first: there are only some hundred objects to find, and the new
    member would wait for it. But after a restart in this process the old member is garbage, with
    all its tables.
    """
    if gc.get_freeze_count():
        gc.unfreeze()
        gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD, 20, 50)


def _log_to_stderr(
    place: tuple[int, int | None],
    lines: LogLines,
    level: LogLevel | None,
    form: LogFormat | None,
) -> logging.Handler:
    """Log to standard error, as the file says or the command line.

    Args:
        place: the member, and its partition if it belongs to one.
        lines: what the file says.
        level: what the command line says; None for nothing.
        form: likewise.
    """
    handler = line_handler(sys.stderr)
    kind = JsonLines if (form or lines.format) == "json" else HumanLines
    handler.setFormatter(kind(*place))
    logging.basicConfig(level=level or lines.level, handlers=[handler])
    return handler


def _log_machine(config: MachineConfig) -> None:
    log_event(
        _LOG,
        logging.INFO,
        "starts",
        "machine %(member)d of cluster %(cluster)s starts: quorate %(version)s, process %(pid)d, "
        "clients at %(address)s and above",
        member=config.machine_id,
        cluster=config.cluster,
        version=__version__,
        pid=os.getpid(),
        address=str(Address(config.own.host, config.own.port)),
    )


def _log_start(config: NodeConfig) -> None:
    log_event(
        _LOG,
        logging.INFO,
        "starts",
        "member %(member)d of cluster %(cluster)s starts: quorate %(version)s, process %(pid)d, "
        "clients at %(address)s",
        member=config.member_id,
        cluster=config.cluster,
        version=__version__,
        pid=os.getpid(),
        address=str(Address(config.own.host, config.own.client_port or config.own.tls_port)),
    )

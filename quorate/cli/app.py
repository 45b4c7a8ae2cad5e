"""The command line: `quorate run`, `cluster`, `status`, `control`, `log`, `simulate` and so on.

Each verb lives in a module of its own (``cli_*``). This module is the border of the process:
whatever rises to here is told once, in the operator's words, and becomes an exit status of
``sysexits.h``.
"""

import gc
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Final

from cyclopts import App, CycloptsError

from .. import errors
from .._version import __version__
from ..errors import leaves

__all__ = ["app", "main", "run"]

EX_USAGE: Final = 64
EX_NOINPUT: Final = 66
EX_SOFTWARE: Final = 70
EX_OSERR: Final = 71
EX_IOERR: Final = 74
EX_TEMPFAIL: Final = 75
EX_PROTOCOL: Final = 76
EX_CONFIG: Final = 78
INTERRUPTED: Final = 130
TERMINATED: Final = 143

STATUS: Final[tuple[tuple[type[Exception], int], ...]] = (
    (errors.UsageError, EX_USAGE),
    (errors.ConfigurationError, EX_CONFIG),
    (errors.StoreMismatchError, EX_CONFIG),  # the configuration names somebody else's store
    (errors.StoreBusyError, EX_TEMPFAIL),
    (errors.LostStoreError, EX_NOINPUT),
    (errors.StoreAccessError, EX_OSERR),
    (errors.StorageError, EX_IOERR),
    (errors.SafetyViolationError, EX_PROTOCOL),
    (OSError, EX_OSERR),
)
"""Errors and their exit statuses, the first that fits; any other error is a bug in quorate."""

GARBAGE_THRESHOLD: Final = 10_000
"""With the usual 700 the collector runs a hundred times while modules are imported, for nothing."""

_HELP: Final = frozenset(("--help", "-h"))

_UNSAFE: Final = """\
The member has stopped rather than lose data. It saw what can't be while every member keeps all that
it has written: a disk that lost writes, a directory that was put back from an older copy or is used
twice, or a bug in quorate. Keep the directories and log lines of all members; `quorate log verify`
looks into a recording.\
"""

_EPILOGUE: Final = """\
Exit status:

- 0 - done
- 1 - no, and the reason is told: refused, or what was looked at is not as it should be
- 2 - nobody answers, or the outcome is not known
- 64 - a wrong call
- 66 - the member's store is new, but the cluster has a history
- 70 - a bug in quorate
- 71 - the system refused something: a port, a directory, a permission
- 74 - the store is damaged, or there is no room on its disk to begin with
- 75 - another process has the store open
- 76 - the member stopped rather than lose data
- 78 - a wrong configuration, or a store of another member
- 130 - Ctrl-C
- 143 - SIGTERM; run, cluster and whatever has --follow end in order then, with 0

`quorate demo` shows all of it in a minute; README.md says the rest.\
"""

app = App(
    name="quorate",
    help="A replicated, recorded log and a linearizable Redis-compatible store.",
    help_epilogue=_EPILOGUE,
    version=__version__,
    help_format="markdown",
    backend="trio",
    result_action="return_value",
)
log = App(name="log", help="Look into the recording of a member, running or not.", help_epilogue="")
pipeline = App(name="pipeline", help="The recorded log on Spark (an extra).", help_epilogue="")
app.command(log)
app.command(pipeline)

# A verb's module is imported when it is called: a member that starts has no time for the others.
app.command("quorate.cli.control:control")
for _verb, _name in (
    ("cli.run:run", "run"),
    ("cli.recover:recover", "recover"),
    ("cli.cluster:cluster", "cluster"),
    ("cli.status:status", "status"),
    ("cli.status:is_leader", "is-leader"),
    ("cli.control:transfer", "transfer"),
    ("cli.backup:backup", "backup"),
    ("cli.restore:restore", "restore"),
    ("demo.story:demo", "demo"),
    ("cli.simulate:simulate_seeds", "simulate"),
    ("cli.torture:torture_members", "torture"),
):
    app.command(f"quorate.{_verb}", name=_name, help_epilogue="")
for _verb in ("describe", "verify", "dump"):
    log.command(f"quorate.cli.log:{_verb}")
log.command("quorate.cli.log:recovery_plan", name="recovery-plan")
for _verb in ("export", "state", "audit", "report", "check"):
    pipeline.command(f"quorate.cli.pipeline:{_verb}")


def main() -> None:
    """Run the command line of this process, and exit."""
    gc.set_threshold(GARBAGE_THRESHOLD)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that a terminal lacks is no error
            stream.reconfigure(errors="replace")
    terminated: list[int] = []

    def end_as_at_ctrl_c(number: int, _frame: object) -> None:
        """End in order: a reader that is killed leaves its slot in a member's store."""
        terminated.append(number)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)  # which trio hears at a moment that suits it

    signal.signal(signal.SIGTERM, end_as_at_ctrl_c)
    status = run(sys.argv[1:])
    sys.exit(TERMINATED if terminated and status == INTERRUPTED else status)


def run(arguments: Sequence[str]) -> int:
    """Run one command.

    Returns:
        The exit status of the process.
    """
    try:
        if len(arguments) <= 1 or not _HELP.isdisjoint(arguments):
            _import_verbs()
        result: object = app(arguments, exit_on_error=False)
    except CycloptsError:  # told already
        return EX_USAGE
    except BaseException as error:  # noqa: BLE001 - the border
        return _told(error)
    return result if isinstance(result, int) else 0


def _import_verbs() -> None:
    """Import all verbs, whose help is then in that of their group."""
    for group in (app, log, pipeline):
        for name in group:
            _ = group[name]


def _told(error: BaseException) -> int:
    """Tell an error once; return its exit status."""
    found = [_told_leaf(leaf) for leaf in leaves(error)]
    return next((code for code in (EX_PROTOCOL, EX_SOFTWARE) if code in found), found[0])


def _told_leaf(leaf: BaseException) -> int:
    match leaf:
        case KeyboardInterrupt():
            return INTERRUPTED
        case BrokenPipeError():  # `quorate log dump | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        case SystemExit():  # rich's way with a broken pipe
            return leaf.code if isinstance(leaf.code, int) else 1
        case _:
            pass
    status = next((code for kind, code in STATUS if isinstance(leaf, kind)), EX_SOFTWARE)
    if status == EX_SOFTWARE:
        lines = [
            *traceback.format_exception(leaf),
            "quorate: the lines above are a bug in quorate\n",
        ]
    else:
        text = _in_words(leaf) if isinstance(leaf, OSError) else str(leaf)
        words = [*text.splitlines(), *(_UNSAFE.splitlines() if status == EX_PROTOCOL else [])]
        lines = [f"quorate: {line}\n" for line in words]
    from ..local.log_lines import print_bounded  # noqa: PLC0415 - it imports much

    print_bounded(sys.stderr, "".join(lines))
    return status


def _in_words(error: OSError) -> str:
    """The error without its number, behind the file it is about."""
    if error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror

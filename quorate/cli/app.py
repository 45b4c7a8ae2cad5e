"""The command line: `quorate run`, `cluster`, `status`, `control`, `log`, `simulate` and so on.

Each verb is a function in a module of this folder, which is imported when the verb is called. This
module is the border of the process: an error that rises to here is printed once, in words for an
operator, and becomes an exit status of ``sysexits.h``.
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
from ..errors import check_interpreter, leaves

__all__ = ["app", "main", "run"]

EX_USAGE: Final = 64
EX_DATAERR: Final = 65
EX_NOINPUT: Final = 66
EX_SOFTWARE: Final = 70
EX_OSERR: Final = 71
EX_IOERR: Final = 74
EX_TEMPFAIL: Final = 75
EX_PROTOCOL: Final = 76
EX_NOPERM: Final = 77
EX_CONFIG: Final = 78
INTERRUPTED: Final = 130
TERMINATED: Final = 143

STATUS: Final[tuple[tuple[type[Exception], int], ...]] = (
    (errors.UsageError, EX_USAGE),
    (errors.ConfigurationError, EX_CONFIG),
    (errors.StoreMismatchError, EX_CONFIG),  # the configuration names the store of another member
    (errors.StoreBusyError, EX_TEMPFAIL),
    (errors.LostStoreError, EX_NOINPUT),
    (errors.RemovedError, EX_NOPERM),
    (errors.StoreAccessError, EX_OSERR),
    (errors.StorageError, EX_IOERR),
    (errors.RecordingError, EX_DATAERR),
    (errors.SafetyViolationError, EX_PROTOCOL),
    (OSError, EX_OSERR),
)
"""Exit statuses by error: the first that fits counts. Any other error is a bug in quorate."""

GARBAGE_THRESHOLD: Final = 10_000
"""With Python's 700 the collector runs a hundred times during the imports, and finds nothing. Much
larger, and cyclic garbage of a member stays for longer."""

_HELP: Final = frozenset(("--help", "-h"))
_LISTS: Final = frozenset(((), ("log",), ("pipeline",), ("trace",), ("etcd",)))
"""The whole line of a call that prints the help of a group."""

_UNSAFE: Final = """\
The member has stopped, so that no data is lost. It saw what cannot happen while every member keeps
what it has written. The cause is a disk that lost writes, a directory that is an older copy or is
used twice, or a bug in quorate. Keep the directories and log lines of all members;
`quorate log verify` checks a recording.\
"""

_EPILOGUE: Final = """\
Exit status:

- 0 - done
- 1 - failed, see the message: refused, or a check found something wrong
- 2 - no member answers, or the outcome is unknown
- 64 - usage error
- 65 - a file is no recording, or is damaged
- 66 - the member's store is new, but the cluster has a history
- 70 - a bug in quorate
- 71 - the system refused something: a port, a directory, a permission
- 74 - the store is damaged, or its disk was full at the start
- 75 - another process has the store open
- 76 - the member stopped, so that no data is lost
- 77 - the member was removed from its cluster
- 78 - a wrong configuration, or a store of another member
- 122 - lock, elect: the lease was lost, and the command was ended
- 124 - lock, elect: not free in time
- 125 - lock, elect: no member answers
- 126 - lock, elect: the command can't be run
- 127 - lock, elect: the command is not found
- 130 - Ctrl-C
- 143 - SIGTERM; run, cluster and everything with --follow stop in order instead, with 0

`quorate demo` shows it all in a minute; README.md is the introduction.\
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
trace = App(
    name="trace", help="Record messages; merge, convert and check recordings.", help_epilogue=""
)
etcd = App(name="etcd", help="Move keys between etcd and members.", help_epilogue="")
app.command(log)
app.command(etcd)
app.command(trace)
app.command(pipeline)

# A module is named, not imported: `quorate run` must not wait for the imports of other verbs.
app.command("quorate.cli.control:control")
app.command("quorate.cli.member:member")
app.command("quorate.cli.partition:partition")
app.command("quorate.cli.machine:machine")
app.command("quorate.cli.certs:certs")
for _verb, _name in (
    ("cli.run:run", "run"),
    ("cli.recover:recover", "recover"),
    ("cli.cluster:cluster", "cluster"),
    ("cli.status:status", "status"),
    ("cli.watch.top:top", "top"),
    ("cli.status:is_leader", "is-leader"),
    ("cli.control:transfer", "transfer"),
    ("cli.holding.verbs:lock", "lock"),
    ("cli.holding.verbs:elect", "elect"),
    ("cli.backup:backup", "backup"),
    ("cli.archive:archive", "archive"),
    ("cli.restore:restore", "restore"),
    ("cli.trouble.doctor:doctor", "doctor"),
    ("cli.trouble.support_bundle:support_bundle", "support-bundle"),
    ("demo.story:demo", "demo"),
    ("cli.simulate:simulate_seeds", "simulate"),
    ("cli.torture:torture_members", "torture"),
    ("cli.recordings.view:view", "view"),
):
    app.command(f"quorate.{_verb}", name=_name, help_epilogue="")
for _verb in ("describe", "verify", "dump"):
    log.command(f"quorate.cli.log:{_verb}")
log.command("quorate.cli.log:recovery_plan", name="recovery-plan")
etcd.command("quorate.cli.etcd:export_to", name="export")
etcd.command("quorate.cli.etcd:import_from", name="import")
for _verb in ("merge", "convert", "check"):
    trace.command(f"quorate.cli.recordings.trace:{_verb}")
for _verb in ("start", "stop"):
    trace.command(f"quorate.cli.recordings.messages:{_verb}")
for _verb in ("export", "state", "audit", "report", "check"):
    pipeline.command(f"quorate.cli.pipeline:{_verb}")


def main() -> None:
    """Run the command line of this process, and exit."""
    gc.set_threshold(GARBAGE_THRESHOLD)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without a character shows "?"
            stream.reconfigure(errors="replace")
    terminated: list[int] = []

    def end_as_at_ctrl_c(number: int, _frame: object) -> None:
        """Raise KeyboardInterrupt: a reader that is killed keeps its slot in a member's store."""
        terminated.append(number)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)  # trio delivers it at a safe moment

    signal.signal(signal.SIGTERM, end_as_at_ctrl_c)
    status = run(sys.argv[1:])
    sys.exit(TERMINATED if terminated and status == INTERRUPTED else status)


def run(arguments: Sequence[str]) -> int:
    """Run one command.

    Returns:
        The exit status of the process.
    """
    try:
        check_interpreter()
        if tuple(arguments) in _LISTS or not _HELP.isdisjoint(arguments):
            _import_verbs()
        result: object = app(arguments, exit_on_error=False)
    except CycloptsError:  # cyclopts has printed it
        if arguments[0] in {"lock", "elect"} and "--" not in arguments:
            print(
                f"Put -- before the command: quorate {arguments[0]} NAME -- COMMAND",
                file=sys.stderr,
            )
        return EX_USAGE
    except BaseException as error:  # noqa: BLE001 - the border
        return _report(error)
    return result if isinstance(result, int) else 0


def _import_verbs() -> None:
    """Import all verbs: the help of a group shows the first line of each."""
    for group in (app, log, pipeline, trace, etcd):
        for name in group:
            _ = group[name]


def _report(error: BaseException) -> int:
    """Print an error once; return its exit status."""
    found = [_report_leaf(leaf) for leaf in leaves(error)]
    return next((code for code in (EX_PROTOCOL, EX_SOFTWARE) if code in found), found[0])


def _report_leaf(leaf: BaseException) -> int:
    match leaf:
        case KeyboardInterrupt():
            return INTERRUPTED
        case BrokenPipeError():  # `quorate log dump | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        case SystemExit():  # rich raises it for a broken pipe
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
    """Return an error of the system as its file and its text, without the number."""
    if error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror

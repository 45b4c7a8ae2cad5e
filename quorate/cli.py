"""The command line: `quorate run`, `cluster`, `status`, `log`, `simulate` and `demo`.

Each verb lives in a module of its own (``cli_*``). This module is the border of the process:
whatever rises to here is told once, in the operator's words, and becomes an exit status of
``sysexits.h``.
"""

import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Final, cast

from cyclopts import App, CycloptsError

from . import cli_cluster, cli_log, cli_run, cli_simulate, cli_status, demo, errors
from ._version import __version__

__all__ = ["app", "main", "run"]

EX_USAGE: Final = 64
EX_SOFTWARE: Final = 70
EX_OSERR: Final = 71
EX_IOERR: Final = 74
EX_TEMPFAIL: Final = 75
EX_CONFIG: Final = 78
INTERRUPTED: Final = 130

_STATUS: Final[tuple[tuple[type[Exception], int], ...]] = (
    (errors.ConfigurationError, EX_CONFIG),
    (errors.StoreMismatchError, EX_CONFIG),  # the configuration names somebody else's store
    (errors.StoreBusyError, EX_TEMPFAIL),
    (errors.StorageError, EX_IOERR),
    (OSError, EX_OSERR),
)
"""Expected trouble and its exit status; what is not here is a bug."""

app = App(
    name="quorate",
    help="A replicated, recorded log and a linearizable Redis-compatible store.",
    help_epilogue="`make demo` shows all of it in a minute; README.md says the rest.",
    version=__version__,
    help_format="markdown",
    backend="trio",
    result_action="return_value",
)
log = App(name="log", help="Look into the recording of a member, running or not.")
app.command(log)

for _verb in (cli_run.run, cli_cluster.cluster, cli_status.status, demo.demo):
    app.command(_verb)
app.command(cli_simulate.simulate_seeds, name="simulate")
for _log_verb in (cli_log.describe, cli_log.verify, cli_log.dump):
    log.command(_log_verb)


def main() -> None:
    """Run the command line of this process, and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command.

    Returns:
        The exit status of the process.
    """
    try:
        result: object = app(arguments, exit_on_error=False)
    except CycloptsError:  # told already
        return EX_USAGE
    except BaseException as error:  # noqa: BLE001 - the border
        return _told(error)
    return result if isinstance(result, int) else 0


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _told(error: BaseException) -> int:
    """Tell an error once; return its exit status."""
    found = [_told_leaf(leaf) for leaf in _leaves(error)]
    return EX_SOFTWARE if EX_SOFTWARE in found else found[0]


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
    status = next((code for kind, code in _STATUS if isinstance(leaf, kind)), EX_SOFTWARE)
    if status == EX_SOFTWARE:
        traceback.print_exception(leaf)
        print("quorate: the lines above are a bug in quorate", file=sys.stderr)
    else:
        for line in str(leaf).splitlines():
            print(f"quorate: {line}", file=sys.stderr)
    return status

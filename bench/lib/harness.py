"""What all benches share: options, working directories, and results."""

import os
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, cast

import attrs
from cyclopts import App, Parameter
from rich.console import Console

from bench.lib.checking import LostError
from bench.report.results import FIGURES, Results, Row, save, tell_circumstances
from bench.report.tables import section
from quorate.local.cluster import HOST, free_client_port, lay_out
from quorate.local.show import make_console
from quorate.node.config.config import Limits, NodeConfig, SnapshotPolicy, Timeouts
from quorate.node.config.security import Security

NEVER: Final = SnapshotPolicy(interval_bytes=2**50, margin_bytes=2**50)
"""No snapshot by rule: the whole log is kept."""

KEPT: Final = SnapshotPolicy(margin_bytes=2**32)
"""Snapshots as usual, but the log that a load wrote is kept until it was checked."""

ALL_KEPT: Final = SnapshotPolicy(margin_bytes=2**50)
"""The same for a load that may last for hours."""


@attrs.frozen
class Options:
    """Options of every bench.

    Args:
        quick: small sizes and single short runs, to test the bench; not a measure of speed.
        directory: an existing directory on the disk to use; that of temporary files if left out.
        figures: directory for the results, as NAME.json.
    """

    quick: Annotated[bool, Parameter(negative="")] = False
    directory: Annotated[Path | None, Parameter(name="--dir", show_default=False)] = None
    figures: Annotated[Path, Parameter(show_default=False)] = FIGURES


Common: TypeAlias = Annotated[Options, Parameter(name="*")]
USUAL: Final = Options()


@attrs.define
class Bench:
    """A running bench.

    Args:
        place: an empty directory, removed at the end.
        console: prints progress.
        rows: the results, one for each line of the table.
    """

    place: Path
    console: Console
    rows: list[Row] = attrs.field(factory=list[Row])

    def found(self, row: Row) -> None:
        """Keep a result, and print it."""
        self.rows.append(row)
        plain = (
            f"{name} {_short(value)}"
            for name, value in row.items()
            if name not in {"runs", "samples"} and value is not None
        )
        self.console.print(f"[dim]{', '.join(plain)}[/dim]", highlight=False)


def _short(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) and abs(value) < 1000 else f"{value}"


@contextmanager
def open_bench(name: str, options: Options, **settings: object) -> Generator[Bench]:
    """Run a bench in a new directory; at the end, write and print its results.

    Raises:
        SystemExit: a check has failed; no results are written.
    """
    console = make_console()
    with tempfile.TemporaryDirectory(
        prefix=f"quorate-{name}-", dir=options.directory, ignore_cleanup_errors=True
    ) as folder:
        bench = Bench(Path(folder), console)
        _keep_bytecode(bench.place)
        circumstances = tell_circumstances(bench.place, console)
        lost: list[BaseException] = []
        try:
            yield bench
        except* LostError as group:
            lost += leaves(group)
    if lost:
        sys.exit(f"{name}: no figures are written: {'; '.join(map(str, lost))}")
    results = Results(name, circumstances, {"quick": options.quick, **settings}, bench.rows)
    shown = section(results)  # raises an error for a table without rows, before anything is written
    file = save(results, options.figures)
    console.print(f"\n{shown}\n\n{file}", markup=False, highlight=False, soft_wrap=True)


def _keep_bytecode(place: Path) -> None:
    """Let members run from bytecode, as installed ones do, even if the sources are read-only.

    Otherwise each start compiles all modules again, which adds half to the time of a start.
    """
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        os.environ["PYTHONPYCACHEPREFIX"] = str(place / "bytecode")


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Return the errors of a group and of its inner groups."""
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for one in cast("BaseExceptionGroup[BaseException]", error).exceptions:
        yield from leaves(one)


def lay_out_members(
    place: Path,
    count: int,
    *,
    snapshot: SnapshotPolicy | None = None,
    limits: Limits | None = None,
    timeouts: Timeouts | None = None,
    hosts: Sequence[str] = (),
    etcd_port: int = 0,
) -> list[NodeConfig]:
    """Configure members on free ports, with the usual settings except those given."""
    port, hosts = free_client_port(count), hosts or [HOST] * count
    named = partial(lay_out, place, cluster="bench", hosts=hosts)
    laid = named(members=count, client_port=port, etcd_port=etcd_port)
    changes: dict[str, Any] = {"snapshot": snapshot, "limits": limits, "timeouts": timeouts}
    # Other hosts than our own are network namespaces, which nobody else reaches.
    changes["security"] = Security(insecure_network=any(host != HOST for host in hosts))
    given = {name: value for name, value in changes.items() if value is not None}
    configs = [attrs.evolve(config, **given) for config in laid]
    for config in configs:
        write(config)
    return configs


def write(config: NodeConfig) -> None:
    """Write a member's configuration to the file that its process reads."""
    text = attrs.evolve(config, directory=Path()).to_toml()
    (config.directory / "node.toml").write_text(text, encoding="utf-8")


def make_app() -> App:
    """Return the command line of a bench."""
    return App(help_format="markdown", backend="trio", result_action="return_value")


def stop_without(program: str, package: str, *, by: str = "on Debian: apt install") -> str:
    """Return the path of a program in PATH, or in the directory of this Python.

    Raises:
        SystemExit: the program is missing; nothing is measured or written.
    """
    beside = str(Path(sys.executable).parent)  # where pip puts it, also in an inactive venv
    path = shutil.which(program) or shutil.which(program, path=beside)
    if path is None:
        sys.exit(f"{program} not found, so nothing was measured: {by} {package}")
    return path

"""`quorate pipeline`: the recorded log on Spark, as tables and as answers."""

import json
import random
import re
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter
from rich.console import Console

from .. import errors
from ..keyvalue.slots.cluster_map import META, partition_in
from ..local.show import make_console
from ..local.words import counted
from ..storage.tools.restore import check_empty
from .params import AsJson, parse_point
from .pipeline_show import (
    plain_audit,
    show_audit,
    show_export,
    show_frame,
    show_groups,
    show_state,
    show_whole_state,
    show_written,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..pipeline.jobs.report import Report, WholeReport
    from ..pipeline.source.logs import Moment, Origin

__all__ = ["audit", "check", "export", "report", "state"]

Follow = Annotated[bool, Parameter(negative="")]
Settings = Annotated[Sequence[str], Parameter(name="--conf", negative="", show_default=False)]
Master = Annotated[str, Parameter(show_default=True)]
To = Annotated[Path | None, Parameter(show_default=False)]
Directories = Annotated[Sequence[Path], Parameter(negative="")]
Connects = Annotated[str | None, Parameter(show_default=False)]
SecurityFile = Annotated[Path | None, Parameter(show_default=False)]

_OURS: Final = re.compile(rf"\b{re.escape(errors.__name__)}\.(\w+): (.+)")
"""An error of quorate in the text of a traceback; Spark passes on no more of it than that."""


@contextmanager
def _spark(master: str, settings: Sequence[str]) -> "Generator[SparkSession]":
    """Open a session, and raise errors of quorate inside Spark as themselves.

    Raises:
        ConfigurationError: a setting is malformed; PySpark or Java is missing.
    """
    pairs: dict[str, str] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not (equals and name):
            raise errors.UsageError(f'--conf "{text}": expected NAME=VALUE')
        pairs[name] = value
    if sys.stderr.isatty():
        pairs.setdefault("spark.ui.showConsoleProgress", "true")
    try:
        from ..pipeline.session import open_session  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise errors.ConfigurationError(
            'the pipeline is an extra: pip install ".[pipeline]" in a checkout of quorate '
            f"({error})"
        ) from error
    with open_session(master=master, settings=pairs) as spark, _translating_errors():
        yield spark


@contextmanager
def _translating_errors() -> Generator[None]:
    """Raise the error of quorate that an error of Spark quotes, if it does."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    try:
        yield
    except PySparkException as error:
        said = str(error)
        if damaged := errors.DamagedRecordError.quoted_in(said):
            raise damaged from error
        for name, text in reversed(_OURS.findall(said)):
            kind = getattr(errors, name, None)
            if isinstance(kind, type) and issubclass(kind, errors.QuorateError):
                raise kind(text) from error
        raise


def export(
    directories: Directories = (),
    /,
    *,
    connect: Connects = None,
    security: SecurityFile = None,
    to: Path,
    follow: Follow = False,
    master: Master = "local[*]",
    conf: Settings = (),
    as_json: AsJson = False,
) -> int:
    """Write a member's log as tables of Parquet: log, kv_history and kv_current.

    A second call adds what was committed since. A call that was interrupted may be repeated.

    Args:
        directories: Directory of a member, running or not, or a copy of one. With that of a
            machine, or several, the log of each group of members is written into a folder of its
            own. Or give:
        connect: Client ports of members, HOST:PORT,HOST:PORT. The log is read from a follower, if
            there is one.
        security: A file with a table [security], if members ask who we are: with a certificate for
            quorate://CLUSTER/reader/NAME, or with the cluster key. A member's file will do.
        to: Folder of the tables; created if it is missing.
        follow: Stay, and add what is committed, until SIGTERM or Ctrl-C.
        master: Master URL of Spark.
        conf: A setting of Spark, NAME=VALUE; may be given several times.
        as_json: For programs.
    """
    _either(directories, connect)
    with _spark(master, conf) as spark:
        from ..pipeline.jobs import export as job  # noqa: PLC0415 - an extra

        origins = _origins(directories, connect, security)
        if not follow:
            for name, origin in origins.items():
                show_export(job.export(spark, origin, to / name), to / name, as_json=as_json)
            return 0
        with suppress(KeyboardInterrupt):
            for name, done in job.follow_each(spark, origins, to):
                show_export(done, to / name, as_json=as_json)
    return 0


def state(
    directories: Directories = (),
    /,
    *,
    connect: Connects = None,
    security: SecurityFile = None,
    at: Annotated[str | None, Parameter(show_default=False)] = None,
    snapshot: To = None,
    to: To = None,
    master: Master = "local[*]",
    conf: Settings = (),
) -> int:
    """Show the key-value store as of a point of the log, by applying the log up to there.

    With the directories of machines, each key is shown as the partition had it that owned its slot.

    Args:
        directories: Directory of a member, running or not, or a copy of one; those of machines, or
            a folder with those. Or give:
        connect: Client ports of members, HOST:PORT,HOST:PORT. The log is read from a follower, if
            there is one.
        security: A file with a table [security], if members ask who we are: with a certificate for
            quorate://CLUSTER/reader/NAME, or with the cluster key. A member's file will do.
        at: A log position, or a time such as 2026-11-21T12:00:00Z; the end of the log if left out.
            With several partitions it is a time.
        snapshot: Of one log only: write it into this directory as a snapshot, for
            `quorate restore --new-cluster`. Sessions are left out.
        to: Write all keys there, as Parquet; an older result is replaced, anything else is not.
        master: Master URL of Spark.
        conf: A setting of Spark, NAME=VALUE; may be given several times.
    """
    _either(directories, connect)
    if snapshot is not None:
        check_empty(snapshot)
    with _spark(master, conf) as spark:
        origins = _of_keys(_origins(directories, connect, security))
        if len(origins) > 1:
            if snapshot is not None:
                raise _only_one("--snapshot", origins)
            _whole_state(spark, origins, at, to)
        else:
            _state(spark, next(iter(origins.values())), at, to, snapshot)
    return 0


def _state(
    spark: "SparkSession", origin: "Origin", at: str | None, to: Path | None, snapshot: Path | None
) -> None:
    from ..pipeline.jobs.results import write_result  # noqa: PLC0415 - an extra
    from ..pipeline.jobs.versions import (  # noqa: PLC0415 - an extra
        NOT_OF_STATE,
        moment_at,
        present,
    )

    position, timestamp_ms = parse_point(at)
    moment = moment_at(origin, position=position, timestamp_ms=timestamp_ms)
    there = present(spark, origin, moment).persist()
    found = there.drop(*NOT_OF_STATE)
    if to is not None:
        write_result(found, to)
    show_state(make_console(), found, moment)
    if snapshot is not None:
        _write_snapshot(spark, origin, moment, snapshot, there)


def _whole_state(
    spark: "SparkSession", origins: "dict[str, Origin]", at: str | None, to: Path | None
) -> None:
    """Show the state of all partitions.

    Raises:
        UsageError: the point is a log position.
    """
    from ..pipeline.jobs.results import write_result  # noqa: PLC0415 - an extra
    from ..pipeline.jobs.whole import cut_at, whole_state  # noqa: PLC0415 - an extra

    position, timestamp_ms = parse_point(at)
    if position is not None:
        raise _only_one(f"--at {at}", origins)
    of = {partition_in(name): origin for name, origin in origins.items()}
    cut = cut_at({number: each for number, each in of.items() if number is not None}, timestamp_ms)
    found = whole_state(spark, cut).persist()
    if to is not None:
        write_result(found, to)
    show_whole_state(make_console(), found, cut)


def _write_snapshot(
    spark: "SparkSession", origin: "Origin", moment: "Moment", to: Path, there: "DataFrame"
) -> None:
    from ..pipeline.jobs.restorable import write_snapshot  # noqa: PLC0415 - an extra

    rng = random.Random(random.SystemRandom().getrandbits(64))  # noqa: S311 - not for secrets
    show_written(write_snapshot(spark, origin, moment, to, rng=rng, there=there), to)


def _either(directory: object, connect: str | None) -> None:
    """Check that a call names one source of the log.

    Raises:
        UsageError: it names none, or both.
    """
    if bool(directory) == bool(connect):
        raise errors.UsageError("expected either a directory or --connect HOST:PORT")


def _origins(
    directories: Sequence[Path], connect: str | None, security: Path | None
) -> "dict[str, Origin]":
    """Return the longest log of each group of members by its cluster name; "" for the only one.

    Raises:
        UsageError: the groups are of several clusters.
    """
    from ..pipeline.source.groups import by_group, longest  # noqa: PLC0415 - an extra
    from ..pipeline.source.logs import Connect  # noqa: PLC0415 - an extra

    if connect is not None:
        # The tasks of Spark have other directories.
        return {"": Connect(connect, security=str(security.absolute()) if security else "")}
    groups = by_group(directories)
    if len(groups) == 1:
        ((_, those),) = groups.items()
        return {"": longest(those)}
    clusters = {name if partition_in(name) is None else name.rpartition(".")[0] for name in groups}
    if len(clusters) > 1:
        raise errors.UsageError(
            f"recordings of {', '.join(sorted(clusters))}: expected those of one cluster"
        )
    return {name: longest(those) for name, those in groups.items()}


def _of_keys(origins: "dict[str, Origin]") -> "dict[str, Origin]":
    """Leave the metadata group out, which has no keys of clients."""
    return {name: each for name, each in origins.items() if partition_in(name) != META} or origins


def _only_one(what: str, origins: "dict[str, Origin]") -> errors.UsageError:
    return errors.UsageError(
        f"{what}: it is of one log: expected the directory of one member, found those of "
        f"{', '.join(origins)}"
    )


def audit(
    directories: Directories = (),
    /,
    *,
    connect: Connects = None,
    security: SecurityFile = None,
    master: Master = "local[*]",
    conf: Settings = (),
    as_json: AsJson = False,
) -> int:
    """Compare the logs of members, and check the rules of the protocol on them.

    With directories of machines each group of members is checked, and whether the logs of the
    partitions agree on who owned which slot.

    Exit status: 0 - no rule is broken; 1 - some rule is.

    Args:
        directories: The members' directories, those of machines, a folder with those, or copies
            of them; or else:
        connect: Where members of a running cluster listen for clients, HOST:PORT,HOST:PORT. All
            members that they name are compared.
        security: A file with a table [security], if members ask who we are: with a certificate for
            quorate://CLUSTER/reader/NAME, or with the cluster key. A member's file will do.
        master: Master URL of Spark.
        conf: A setting of Spark, NAME=VALUE; may be given several times.
        as_json: For programs.
    """
    _either(directories, connect)
    with _spark(master, conf) as spark:
        from ..pipeline.jobs.audit import audit as run  # noqa: PLC0415 - an extra
        from ..pipeline.jobs.audit import each_member  # noqa: PLC0415 - an extra
        from ..pipeline.jobs.partitions import audit_groups  # noqa: PLC0415 - an extra
        from ..pipeline.source.groups import by_group  # noqa: PLC0415 - an extra

        file = str(security.absolute()) if security else ""
        groups = {} if connect is not None else by_group(directories)
        if len(groups) > 1 and any(partition_in(name) is not None for name in groups):
            every = audit_groups(spark, groups)
            show_groups(make_console(), every, as_json=as_json)
            return 1 if every.findings else 0
        places = [place for those in groups.values() for place in those]
        found = run(spark, each_member(connect, file) if connect is not None else places)
    if as_json:
        print(json.dumps(plain_audit(found), indent=2))
    else:
        show_audit(make_console(), found)
    return 1 if found.findings else 0


def report(
    directories: Directories = (),
    /,
    *,
    connect: Connects = None,
    security: SecurityFile = None,
    to: Path,
    separator: str = ":",
    master: Master = "local[*]",
    conf: Settings = (),
) -> int:
    """Write a page of HTML about a member's log (elections, load, growth, hot keys), and tables.

    With the directories of machines there is a page for each partition, and one for all of them.

    Args:
        directories: Directory of a member, running or not, or a copy of one; those of machines, or
            a folder with those. Or give:
        connect: Client ports of members, HOST:PORT,HOST:PORT. The log is read from a follower, if
            there is one.
        security: A file with a table [security], if members ask who we are: with a certificate for
            quorate://CLUSTER/reader/NAME, or with the cluster key. A member's file will do.
        to: Folder of report.html, and of the tables as Parquet.
        separator: What the prefix of a key ends with.
        master: Master URL of Spark.
        conf: A setting of Spark, NAME=VALUE; may be given several times.
    """
    _either(directories, connect)
    with _spark(master, conf) as spark:
        from ..pipeline.jobs.report import report as run  # noqa: PLC0415 - an extra
        from ..pipeline.jobs.report import report_whole  # noqa: PLC0415 - an extra

        origins = _of_keys(_origins(directories, connect, security))
        if len(origins) > 1:
            _write_whole_report(report_whole(spark, origins, separator=separator), to)
        else:
            _write_report(run(spark, next(iter(origins.values())), separator=separator), to)
    return 0


def _write_report(found: "Report", to: Path) -> None:
    from ..pipeline.jobs.page import render  # noqa: PLC0415 - an extra

    _write_tables(found, ("terms", "load", "operations", "keys", "prefixes"), to)
    page = to / "report.html"
    page.write_text(render(found), encoding="utf-8")
    console = make_console()
    terms = found.terms.drop("base", "began", "ended", "batches", "bytes")
    show_frame(console, terms, spare=("entries", "pause_seconds", "election_seconds"))
    show_frame(console, found.operations)
    console.print(f"Written: {page}", markup=False, soft_wrap=True)


def _write_whole_report(found: "WholeReport", to: Path) -> None:
    from ..pipeline.jobs.page import render_whole  # noqa: PLC0415 - an extra

    for name, part in found.parts.items():
        _write_report(part, to / name)
    _write_tables(found, ("operations", "keys", "prefixes"), to)
    page = to / "report.html"
    page.write_text(render_whole(found), encoding="utf-8")
    console = make_console()
    show_frame(console, found.operations)
    console.print(f"Written: {page}", markup=False, soft_wrap=True)


def _write_tables(found: "Report | WholeReport", names: Sequence[str], to: Path) -> None:
    from ..pipeline.jobs.results import write_result  # noqa: PLC0415 - an extra

    for name in names:
        frame: DataFrame = getattr(found, name)
        frame.persist()
        write_result(frame, to / name)


def check(
    history: Path,
    /,
    *,
    seconds_per_key: float = 60.0,
    picture: To = None,
    to: To = None,
    master: Master = "local[*]",
    conf: Settings = (),
) -> int:
    """Check whether a history of requests and replies is linearizable.

    Exit status: 0 - it is; 1 - it is not, or some key could not be decided in time.

    Args:
        history: JSON lines, as `quorate torture --history` writes them, or a folder of such files.
        seconds_per_key: How long the search for one key may take; then it is undecided.
        picture: Draw the operations of the keys that are not linearizable into this file, as SVG;
            of the first eight.
        to: Write the verdict of each key there, as Parquet.
        master: Master URL of Spark.
        conf: A setting of Spark, NAME=VALUE; may be given several times.
    """
    if not history.exists():
        raise errors.UsageError(f"{history}: no such file")
    with _spark(master, conf) as spark:
        from ..pipeline.jobs.check import check_history  # noqa: PLC0415 - an extra
        from ..pipeline.jobs.results import write_result  # noqa: PLC0415 - an extra

        found = check_history(spark, history, seconds_per_key=seconds_per_key).persist()
        if to is not None:
            write_result(found, to)
        console = make_console()
        counts = {row[0]: (row[1], row[2]) for row in _by_verdict(found).collect()}
        for row in found.where("verdict != 'linearizable'").orderBy("key").collect():
            text = f"{bytes(row['key'])!r}: {row['verdict']}, {row['operations']:,} operations"
            console.print(text, style="bold red", markup=False)
            console.print(row["explanation"] or "", markup=False, soft_wrap=True)
        if picture is not None:
            _write_picture(console, found, picture)
    for verdict, (keys, operations) in sorted(counts.items()):
        console.print(f"{verdict}: {counted(keys, 'key', 'keys')}, {operations:,} operations")
    return 0 if counts.keys() <= {"linearizable"} else 1


def _write_picture(console: Console, verdicts: "DataFrame", file: Path) -> None:
    from ..pipeline.jobs.picture import picture  # noqa: PLC0415 - an extra

    drawn = picture(verdicts)
    if drawn is None:
        console.print("No picture: nothing is known not to be linearizable.")
        return
    file.write_text(drawn, encoding="utf-8")
    console.print(f"Written: {file}", markup=False, soft_wrap=True)


def _by_verdict(found: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - Spark's own name; an extra

    return found.groupBy("verdict").agg(F.count("*"), F.sum("operations"))

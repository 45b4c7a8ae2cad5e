"""Peers beside us: the same load on the same machine, in turns.

Three members each of quorate, of etcd and of RedisRaft, as far as the machine has them
(:mod:`peer_clusters`). They are all up for the whole time, but one is loaded at a time; each kind
of load goes round them before the next, so that a noisy minute hits all alike. Shown are the
medians, and the median of the ratios of ours to theirs, turn by turn.

- etcd: Debian's `etcd-server` and `etcd-client`, loaded by `etcd_load/main.go`, which is built
  here against Debian's `golang-etcd-server-dev` with `golang-go`.
- RedisRaft: `--redisraft` names its module, `redisraft.so`, of a version that the machine's
  `redis-server` loads (for 7.0, one of the summer of 2022). Loaded by `redis-benchmark`, as ours.
"""

import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import attrs
import trio
from cluster import (
    CLIENTS,
    TRIAL_REQUESTS_PER_CLIENT,
    Load,
    Run,
    median,
    processor_seconds,
    tell_circumstances,
)
from cyclopts import App, Parameter
from peer_clusters import Peer, open_etcd, open_quorate, open_redisraft
from rich.console import Console
from rich.table import Table

from quorate.cli_status import make_console

LOADS: Final = (
    *(Load(command, clients, 1) for command in ("set", "get") for clients in CLIENTS),
    Load("set", 64, 16),
)
Found: TypeAlias = dict[Load, dict[str, list[Run]]]
Opener: TypeAlias = Callable[[], AbstractAsyncContextManager[Peer]]
GO: Final = {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode"}


async def build_etcd_load(directory: Path, console: Console) -> Path | None:
    """Build what loads etcd; None, with words, if this machine lacks something for it."""
    missing = [name for name in ("etcd", "etcdctl", "go") if shutil.which(name) is None]
    if missing:
        console.print(
            f"no etcd: {', '.join(missing)} not found; on Debian: apt install etcd-server "
            "etcd-client golang-go golang-etcd-server-dev"
        )
        return None
    built = directory / "etcd-load"
    source = Path(__file__).parent / "etcd_load" / "main.go"
    done = await trio.run_process(
        ["go", "build", "-o", str(built), str(source)],
        env=os.environ | GO | {"GOCACHE": str(directory / "go")},
        capture_stderr=True,
        check=False,
    )
    if done.returncode:
        console.print(f"no etcd: its load is not built: {done.stderr.decode().strip()}")
        return None
    return built


def openers(place: Path, loader: Path | None, redisraft: Path | None) -> list[Opener]:
    """What opens each cluster that this machine has."""
    found: list[Opener] = [partial(open_quorate, place / "quorate")]
    if loader is not None:
        found.append(partial(open_etcd, place / "etcd", loader))
    if redisraft is not None:
        found.append(partial(open_redisraft, place / "redisraft", redisraft.absolute()))
    return found


async def measure(peer: Peer, load: Load, seconds: float) -> Run:
    """One run of about so many seconds."""
    trial = TRIAL_REQUESTS_PER_CLIENT * load.clients * load.pipeline
    rate, _, _ = await peer.run(load, trial)
    requests = max(trial, int(rate * seconds))
    before = [*map(processor_seconds, peer.pids)]
    figures = await peer.run(load, requests)
    leader, *followers = (
        (processor_seconds(pid) - spent) / requests * 1e6
        for pid, spent in zip(peer.pids, before, strict=True)
    )
    return Run(*figures, leader, statistics.mean(followers))


async def run_all(peers: list[Peer], runs: int, seconds: float, console: Console) -> Found:
    """Measure every load, in turns."""
    found: Found = {load: {peer.name: [] for peer in peers} for load in LOADS}
    for turn in range(runs):
        for load in LOADS:
            for peer in peers:
                if load.pipeline > 1 and not peer.pipelines:
                    continue
                run = await measure(peer, load, seconds)
                found[load][peer.name].append(run)
                console.print(
                    f"[dim]{turn + 1}/{runs} {load.command} {load.clients} clients, pipeline "
                    f"{load.pipeline}: {peer.name} {run.rate:,.0f}/s[/dim]"
                )
    return found


def ratio(ours: list[Run], theirs: list[Run]) -> float:
    """The median of the ratios of the rates, turn by turn."""
    pairs = zip(ours, theirs, strict=True)
    return statistics.median(our.rate / their.rate for our, their in pairs)


def show(found: Found, console: Console) -> None:
    """Print the medians and the ratios."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("command", "cluster"):
        table.add_column(name)
    for name in ("clients", "pipeline", "a second", "p50 ms", "p99 ms", "leader µs/op"):
        table.add_column(name, justify="right")
    for name in ("follower µs/op", "ours to theirs"):
        table.add_column(name, justify="right")
    for load, by_name in found.items():
        for name, runs in by_name.items():
            if not runs:
                continue
            middle = median(runs)
            ours = by_name["quorate"]
            table.add_row(
                *(load.command.upper(), name, str(load.clients), str(load.pipeline)),
                *(f"{middle.rate:,.0f}", f"{middle.p50_ms:.2f}", f"{middle.p99_ms:.2f}"),
                *(f"{middle.leader_us:.1f}", f"{middle.follower_us:.1f}"),
                "" if runs is ours else f"{ratio(ours, runs):.2f}",
            )
    console.print(table)


def as_json(found: Found, circumstances: dict[str, object]) -> str:
    """Everything, for programs."""
    loads = [
        {
            **attrs.asdict(load),
            "clusters": {
                name: {
                    "median": attrs.asdict(median(runs)),
                    "ours_to_theirs": ratio(by_name["quorate"], runs),
                    "runs": [*map(attrs.asdict, runs)],
                }
                for name, runs in by_name.items()
                if runs
            },
        }
        for load, by_name in found.items()
    ]
    return json.dumps({**circumstances, "loads": loads}, indent=2) + "\n"


app = App(help_format="markdown", backend="trio", result_action="return_value")


@app.default
async def main(
    *,
    runs: int = 5,
    seconds: float = 3.0,
    redisraft: Annotated[Path | None, Parameter(show_default=False)] = None,
    directory: Annotated[Path | None, Parameter(name="--dir", show_default=False)] = None,
    json_file: Annotated[Path | None, Parameter(name="--json", show_default=False)] = None,
) -> int:
    """Measure us beside those peers that this machine has.

    Parameters
    ----------
    runs
        Runs of each load; the median is shown.
    seconds
        About how long each run lasts.
    redisraft
        Its module, redisraft.so; left out if not given.
    directory
        On which disk: an existing directory; that of temporary files if left out.
    json_file
        Where to write everything, for programs.
    """
    console = make_console()
    if not shutil.which("redis-benchmark"):
        console.print("redis-benchmark is not there; on Debian: apt install redis-tools")
        return 1
    with tempfile.TemporaryDirectory(prefix="quorate-peers-", dir=directory) as name:
        place = Path(name)
        circumstances = tell_circumstances(place, console)
        loader = await build_etcd_load(place, console)
        async with AsyncExitStack() as stack:
            peers = [
                await stack.enter_async_context(opener())
                for opener in openers(place, loader, redisraft)
            ]
            found = await run_all(peers, runs, seconds, console)
    show(found, console)
    if json_file:
        json_file.write_text(as_json(found, circumstances), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(app())

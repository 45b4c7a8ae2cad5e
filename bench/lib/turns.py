"""Two clusters under the same loads, in turns, so that a noisy minute affects both alike."""

import statistics
from collections.abc import Callable, Iterable

import attrs
from rich.console import Console

from bench.lib.competitors import Peer
from bench.lib.measuring import Load, Run, processor_seconds, with_batches


@attrs.frozen
class Pair:
    """The runs of one of our clusters and one of theirs under a load, by turn."""

    load: Load
    our_name: str
    their_name: str
    ours: list[Run] = attrs.field(factory=list[Run])
    theirs: list[Run] = attrs.field(factory=list[Run])

    def ratio(self, of: Callable[[Run], float]) -> float:
        """Return the median of the ratios of ours to theirs in one figure."""
        pairs = zip(self.ours, self.theirs, strict=True)
        return statistics.median(of(our) / of(their) for our, their in pairs)


async def measure(peer: Peer, load: Load, seconds: float) -> Run:
    """Run a load for about `seconds`, and check its writes."""
    guess = await peer.run(load, load.trial())
    requests = max(load.trial(), load.whole(int(guess.rate * seconds)))
    status = peer.status if load.command == "set" else None
    said = await status() if status else None
    before = [*map(processor_seconds, peer.pids)]
    figures = await peer.run(load, requests)
    leader, *followers = (
        (processor_seconds(pid) - spent) / requests * 1e6
        for pid, spent in zip(peer.pids, before, strict=True)
    )
    run = Run(**attrs.asdict(figures), leader_us=leader, follower_us=statistics.mean(followers))
    if status and said:
        run = with_batches(run, requests, said, await status())
    await peer.check(load, (load.trial() + requests) * (load.command == "set"))
    return run


async def in_turns(
    wanted: Iterable[Load],
    ours: Peer,
    theirs: Peer,
    *,
    runs: int,
    seconds: float,
    console: Console,
) -> list[Pair]:
    """Run every load that both clusters support, in turns."""
    loads = [
        load
        for load in wanted
        if load.command in ours.commands
        and load.command in theirs.commands
        and (load.pipeline == 1 or theirs.pipelines)
    ]
    pairs = [Pair(load, ours.name, theirs.name) for load in loads]
    for turn in range(runs):
        for pair in pairs:
            for peer, taken in ((ours, pair.ours), (theirs, pair.theirs)):
                taken.append(await measure(peer, pair.load, seconds))
                console.print(
                    f"[dim]{turn + 1}/{runs} {pair.load.command} {pair.load.clients} clients, "
                    f"pipeline {pair.load.pipeline}: {peer.name} {taken[-1].rate:,.0f}/s[/dim]"
                )
    return pairs

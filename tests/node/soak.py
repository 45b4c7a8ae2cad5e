"""Storms over a cluster in virtual time: the same seed is always the same storm.

``python -m tests.node.soak --seeds 500 --members 3`` runs many of them; the tests run a few. A
storm kills members with the loss of what they had not synced, cuts the network one way and both
ways, resets links, slows disks and stops members in order, under load through random members.
After every event everything in :mod:`.hazards.invariants` is checked. Then it heals, and within
ten virtual seconds there must be one leader; every acknowledged command must have been applied
exactly once, none that was refused, and no read may have missed a write acknowledged before it.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio
import trio.testing

from quorate.errors import NoLeaderError, UnknownOutcomeError
from quorate.node.states import LEADER_STATES
from quorate.storage import InlineExecutor

from .hazards.invariants import Invariants
from .hazards.stage import Stage, open_stage
from .world import TIMEOUTS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

STORM_SECONDS = 20.0
HEAL_SECONDS = 10.0
PATIENT = attrs.evolve(TIMEOUTS, startup_canvass=4.0, leader_heartbeat_timeout=2.0)
SLOW_DISKS = (0.001, 0.001, 0.001, 0.02, 0.1, 0.3, 0.7)


class StormError(AssertionError):
    """What a storm found."""


@attrs.define
class Report:
    """What a storm did."""

    seed: int
    members: int
    events: int = 0
    acked: int = 0
    reads: int = 0
    elections: int = 0
    terms: int = 0
    quorum_after: float = 0.0
    healed_after: float = 0.0


class Storm:
    """One storm over one cluster."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.rng = random.Random(f"{seed}/storm")
        self.stage = stage
        self.report = Report(seed, len(stage.hosts))
        self.invariants = Invariants(stage)
        self.highest_reply = 0
        self._ids = tuple(stage.hosts)
        self._calm = False
        self._seen = 0
        self._marked: list[int] = []
        self._mark = trio.Event()
        stage.after_every_event(self._watch)

    async def run(self) -> Report:
        stage = self.stage
        for host in stage.hosts.values():
            if self.rng.random() < 0.2:
                host.config = attrs.evolve(host.config, timeouts=PATIENT)
        await stage.start()
        async with trio.open_nursery() as nursery:
            for name in range(4):
                nursery.start_soon(self._writer, name)
            nursery.start_soon(self._reader)
            end = trio.current_time() + STORM_SECONDS
            while trio.current_time() < end:
                with trio.move_on_after(self.rng.choice((0.01, 0.1, 0.5, 1.5)) * self.rng.random()):
                    await self._mark.wait()
                self._check_failures()
                await self._strike()
            self._calm = True
        await self._heal_a_quorum()
        await self._heal()
        await self._finish()
        report = self.report
        report.events, report.acked = self.invariants.events, len(stage.acked)
        report.terms = max(t.term for t in stage.transitions)
        report.elections = sum(t.after.name == "CANVASS" for t in stage.transitions)
        return report

    # --- clients

    async def _writer(self, name: int) -> None:
        i = 0
        while not self._calm:
            await self._write(self.rng.choice(self._ids), b"%d-%d" % (name, i))
            i += 1
            await trio.sleep(self.rng.choice((0.0, 0.0, 0.01, 0.05)))

    async def _write(self, at: int, payload: bytes) -> None:
        stage = self.stage
        host = stage.hosts[at]
        if host.member is None:
            await trio.sleep(0.01)
            return
        try:
            with trio.move_on_after(self.rng.choice((0.2, 1.0, 6.0))):
                reply = int(await host.member.command(payload))
                stage.acked.append(payload)
                self.highest_reply = max(self.highest_reply, reply)
        except UnknownOutcomeError:
            pass
        except NoLeaderError:
            stage.refused.append(payload)

    async def _reader(self) -> None:
        while not self._calm:
            await trio.sleep(0.02)
            host = self.stage.hosts[self.rng.choice(self._ids)]
            if host.member is None:
                continue
            least = self.highest_reply
            try:
                with trio.move_on_after(1.0):
                    found = int(await host.member.query(b""))
                    self.report.reads += 1
                    if found < least:
                        raise StormError(f"a read saw {found} commands, {least} were acknowledged")
                    self.highest_reply = max(self.highest_reply, found)
            except NoLeaderError:
                pass

    # --- weather

    def _watch(self, _member: int) -> None:
        """Mark some members for a strike at the very moment when they enter a state."""
        for transition in self.stage.transitions[self._seen :]:
            leads = transition.after in LEADER_STATES
            if not self._calm and self.rng.random() < (0.15 if leads else 0.02):
                self._marked.append(transition.member_id)
                self._mark.set()
        self._seen = len(self.stage.transitions)

    async def _strike(self) -> None:
        if self._marked:
            self._mark = trio.Event()
            marked, self._marked = self._marked[-1], []
            await self.rng.choice((self._kill_one, self._isolate, self._reset_one))(marked)
            return
        strikes: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (4, self._kill),
            (6, self._revive),
            (3, self._cut),
            (4, self._mend),
            (3, self._reset),
            (2, self._disconnect),
            (3, self._slow_disk),
            (1, self._stop),
        ]
        strike = self.rng.choices([s for _, s in strikes], [w for w, _ in strikes])[0]
        await strike()

    def _running(self) -> list[int]:
        return [i for i, host in self.stage.hosts.items() if host.member is not None]

    async def _kill(self) -> None:
        running = self._running()
        if len(running) > len(self._ids) // 2 or self.rng.random() < 0.2:
            victims = running if self.rng.random() < 0.05 else running[:0]
            leaders = self.stage.leaders()
            if not victims and running:
                biased = leaders and self.rng.random() < 0.5
                victims = [self.rng.choice(leaders if biased else running)]
            self.invariants.refresh()
            await self.stage.kill(*victims)

    async def _kill_one(self, member: int) -> None:
        self.invariants.refresh()
        if self.stage.hosts[member].member is not None:
            await self.stage.kill(member)

    async def _isolate(self, member: int) -> None:
        self.stage.isolate(member)

    async def _reset_one(self, member: int) -> None:
        for other in self.stage.others(member):
            self.stage.network.break_links(f"h{member}", f"h{other}")

    async def _revive(self) -> None:
        gone = [i for i, host in self.stage.hosts.items() if host.member is None]
        if gone:
            await self.stage.start(self.rng.choice(gone))

    def _pair(self) -> tuple[int, int]:
        one, other = self.rng.sample(self._ids, 2)
        return one, other

    async def _cut(self) -> None:
        network = self.stage.network
        if self.rng.random() < 0.3:
            alone = self.rng.choice(self._ids)
            for peer in self._ids:
                if peer != alone:
                    network.cut(f"h{alone}", f"h{peer}")
            return
        one, other = self._pair()
        network.cut(f"h{one}", f"h{other}", both=self.rng.random() < 0.5)

    async def _mend(self) -> None:
        if self.rng.random() < 0.5:
            self._mend_all()
        else:
            one, other = self._pair()
            self.stage.network.heal(f"h{one}", f"h{other}")

    def _mend_all(self) -> None:
        for one in self._ids:
            for other in self._ids:
                if one < other:
                    self.stage.network.heal(f"h{one}", f"h{other}")

    async def _reset(self) -> None:
        one, other = self._pair()
        self.stage.network.break_links(f"h{one}", f"h{other}")

    async def _disconnect(self) -> None:
        one, other = self._pair()
        host = self.stage.hosts[one]
        if host.member is not None:
            host.member.core.links.disconnect(other)

    async def _slow_disk(self) -> None:
        executor = self.stage.hosts[self.rng.choice(self._ids)].executor
        if executor is not None:
            executor.latency = self.rng.choice(SLOW_DISKS)

    async def _stop(self) -> None:
        running = self._running()
        if len(running) > len(self._ids) // 2:
            victim = self.rng.choice(running)
            await self.stage.hosts[victim].running.close()
            self.invariants.refresh()
            await self.stage.kill(victim)

    # --- the end

    def _check_failures(self) -> None:
        for member, failure in self.stage.failures.items():
            raise StormError(f"member {member} failed") from failure

    async def _heal_a_quorum(self) -> None:
        """Any quorum must do, whoever is in it: the others are dead, or unreachable."""
        stage = self.stage
        quorum = self.rng.sample(self._ids, len(self._ids) // 2 + 1)
        self._mend_all()
        self.invariants.refresh()
        if self.rng.random() < 0.5:
            await stage.kill(*(i for i in self._running() if i not in quorum))
        else:
            for i in stage.others(*quorum):
                stage.isolate(i)
        since = trio.current_time()
        await self._revive_all(quorum)
        await self._leader_among(quorum, b"quorum")
        self.report.quorum_after = trio.current_time() - since

    async def _heal(self) -> None:
        since = trio.current_time()
        self._mend_all()
        await self._revive_all(list(self._ids))
        await self._leader_among(list(self._ids), b"all")
        self.report.healed_after = trio.current_time() - since

    async def _revive_all(self, ids: list[int]) -> None:
        for i in ids:
            host = self.stage.hosts[i]
            if host.member is None:
                await self.stage.start(i)
            if isinstance(host.executor, InlineExecutor):
                host.executor.latency = 0.001

    async def _leader_among(self, ids: list[int], payload: bytes) -> None:
        """All of them lead or follow one leader before long, and it takes commands."""
        stage = self.stage

        def joined() -> bool:
            running = [stage.hosts[i].running.status() for i in ids if stage.hosts[i].member]
            leaders = {each.leader_id for each in running if each.state == "CLOSED"}
            closed = all(each.state == "CLOSED" for each in running) and len(running) == len(ids)
            return closed and len(leaders) == 1 and not leaders.isdisjoint(ids)

        try:
            await stage.until(joined, within=HEAL_SECONDS)
            with trio.fail_after(HEAL_SECONDS):
                await stage.command(ids[0], payload)
        except (trio.TooSlowError, NoLeaderError, UnknownOutcomeError) as trouble:
            self._check_failures()
            states = {i: host.state.name for i, host in stage.hosts.items() if host.member}
            raise StormError(
                f"{payload!r}: not healed within {HEAL_SECONDS} s: {states}"
            ) from trouble
        stage.acked.append(payload)

    def _converged(self) -> bool:
        found = [host.service.payloads for host in self.stage.hosts.values()]
        return all(b"last" in payloads and payloads == found[0] for payloads in found)

    async def _finish(self) -> None:
        stage = self.stage
        try:
            leader = stage.leaders()[0]
            with trio.fail_after(HEAL_SECONDS):
                await stage.command(leader, b"last")
            await stage.until(self._converged, within=HEAL_SECONDS)
        except trio.TooSlowError as slow:
            self._check_failures()
            ends = {i: host.running.status() for i, host in stage.hosts.items()}
            raise StormError(f"logs are not equal: {ends}") from slow
        self._check_failures()
        payloads = stage.hosts[leader].service.payloads
        if len(set(payloads)) != len(payloads):
            raise StormError("a command was applied twice")
        if lost := set(stage.acked) - set(payloads):
            raise StormError(f"acknowledged and lost: {sorted(lost)}")
        if ghosts := set(stage.refused) & set(payloads):
            raise StormError(f"refused and done: {sorted(ghosts)}")
        self.invariants.refresh()


async def storm(directory: Path, seed: int, members: int) -> Report:
    """Run one storm, under the clock of a test."""
    rng = random.Random(f"{seed}/network")
    how = {"latency": rng.choice((0.0005, 0.005, 0.02)), "fsync": rng.choice((0.001, 0.01))}
    async with open_stage(directory, members, seed=seed, **how) as stage:
        return await Storm(stage, seed).run()


def run_storm(directory: Path, seed: int, members: int) -> Report:
    """Run one storm in a trio run of its own."""
    clock = trio.testing.MockClock(autojump_threshold=0.0)
    return trio.run(storm, directory, seed, members, clock=clock)


def main() -> int:
    """Run many storms and say what they found."""
    parser = argparse.ArgumentParser(prog="python -m tests.node.soak", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many storms")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--members", type=int, default=3, choices=(3, 5))
    asked = parser.parse_args()
    shm = Path("/dev/shm")
    found, began = 0, time.perf_counter()
    for seed in range(asked.first, asked.first + asked.seeds):
        with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as directory:
            try:
                report = run_storm(Path(directory), seed, asked.members)
            except Exception:  # noqa: BLE001 - whatever it was, it is the finding
                found += 1
                sys.stdout.write(f"seed {seed}:\n{traceback.format_exc()}\n")
            else:
                sys.stdout.write(f"{report}\n")
        sys.stdout.flush()
    seconds = time.perf_counter() - began
    sys.stdout.write(f"{asked.seeds} storms, {found} with findings, {seconds:.1f} s\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

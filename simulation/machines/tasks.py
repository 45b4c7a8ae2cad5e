"""The tasks of one simulated machine: held back while it is paused, and stopped at any step.

trio has one run loop for all machines of the world. A machine's tasks are those that descend from
its root task. A paused machine (SIGSTOP, a live migration, a long garbage collection) runs none of
them, while time goes on and messages pile up. When it resumes, all its timers have expired at once.
To pause a machine, its ready tasks are taken out of the loop's queue and put back later. trio has
no public way to do this; a canary test fails when a release changes what is used here. Nothing is
patched while no machine is paused.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import trio
from trio._core._run import Runner  # pyright: ignore[reportPrivateUsage]

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.lowlevel import Task


def root_of(task: Task, roots: dict[Task, list[Task]]) -> Task | None:
    """Return the one of the roots from which a task descends, if any."""
    at: Task | None = task
    while at is not None and at not in roots:
        at = at.parent_nursery.parent_task if at.parent_nursery is not None else None
    return at


class Pauses:
    """Which machines are paused."""

    def __init__(self) -> None:
        self._held: dict[Task, list[Task]] = {}
        self._reschedule: Callable[..., None] | None = None

    def pause(self, root: Task) -> None:
        """Hold back the tasks below `root`, and itself, from their next step on."""
        self._held.setdefault(root, [])
        if self._reschedule is None:
            self._reschedule = Runner.reschedule
            Runner.reschedule = self._gate(Runner.reschedule)  # type: ignore[method-assign]

    def paused(self, root: Task) -> bool:
        """Whether they are held back."""
        return root in self._held

    def resume(self, root: Task) -> None:
        """Let them run; those that are ready are so at once."""
        held = self._held.pop(root, [])
        if not self._held and self._reschedule is not None:
            Runner.reschedule = self._reschedule  # type: ignore[method-assign]
            self._reschedule = None
        if held:
            queue = _queue(held[0])
            queue.extend(held)

    def end(self) -> None:
        """Let all run."""
        for root in list(self._held):
            self.resume(root)

    def _gate(self, reschedule: Callable[..., None]) -> Callable[..., None]:
        def gated(runner: Runner, task: Task, *outcome: object) -> None:
            reschedule(runner, task, *outcome)
            root = root_of(task, self._held)
            if root is not None:
                assert runner.runq[-1] is task
                runner.runq.pop()
                self._held[root].append(task)

        return gated


def _queue(task: Task) -> Any:
    return task._runner.runq  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


class StepTrap(trio.abc.Instrument):
    """Calls `sprung` just before a machine's n-th next step, once: a crash at any await.

    Args:
        root: of the machine.
        steps: how many steps it makes before, from now on.
        sprung: called amidst the run loop; it may cancel scopes.
    """

    def __init__(self, root: Task, steps: int, sprung: Callable[[], None]) -> None:
        self._roots: dict[Task, list[Task]] = {root: []}
        self._left = steps
        self._sprung = sprung
        self._known: dict[Task, bool] = {}

    def before_task_step(self, task: Task) -> None:
        """See `trio.abc.Instrument`."""
        ours = self._known.get(task)
        if ours is None:
            ours = self._known[task] = root_of(task, self._roots) is not None
        if ours:
            self._left -= 1
            if self._left < 0:
                self.remove()
                self._sprung()

    def remove(self) -> None:
        """Take the trap away, if it has not sprung."""
        with contextlib.suppress(KeyError):
            trio.lowlevel.remove_instrument(self)

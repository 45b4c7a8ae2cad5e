"""A cluster whose messages the test directs, and whose members may fail without ending the test.

Every message that reaches a member passes the stage first: a rule may drop it, or hold it back
until the test lets it go, later and out of order if it likes. A member that stops with an error
leaves the error here.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypeAlias

import attrs
import trio
from trio._core import _run as trio_run  # pyright: ignore[reportPrivateUsage]

from quorate.errors import NoLeaderError, UnknownOutcomeError

from ..world import Host, Ledger, World

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from quorate.node import State, Timeouts
    from quorate.transport import Message

    Rule: TypeAlias = Callable[[int, int, Message], bool]


@attrs.frozen
class Held:
    """A message that was held back on its way."""

    sender: int
    receiver: int
    message: Message


class Stage(World):
    """A cluster under direction.

    Attributes:
        failures: what ended a member, by member.
        held: what :meth:`hold` has caught, oldest first.
        acked: commands whose reply a client got.
        refused: commands of which a client was told that they were never done.
        services: the services of all starts of all members.
    """

    failures: dict[int, BaseException]
    held: list[Held]
    acked: list[bytes]
    refused: list[bytes]

    def __init__(self, nursery: trio.Nursery, directory: Path, size: int, **how: object) -> None:
        super().__init__(nursery, directory, size, **how)  # type: ignore[arg-type]
        self.failures, self.held, self.acked, self.refused = {}, [], [], []
        self._drops: list[Rule] = []
        self._holds: list[Rule] = []
        self._deliver: dict[int, Callable[[int, Message], None]] = {}
        self._after: list[Callable[[int], None]] = []
        self.services: list[Ledger] = []

    # --- members

    async def start(self, *ids: int) -> None:
        for i in ids or tuple(self.hosts):
            await super().start(i)
            self._attend(i)

    async def _run(self, host: Host, *, task_status: trio.TaskStatus[None]) -> None:
        try:
            await super()._run(host, task_status=task_status)
        except Exception as failure:  # noqa: BLE001 - the test asks for it
            self.failures[host.config.member_id] = failure

    def _attend(self, i: int) -> None:
        member = self.hosts[i].running
        self.services.append(self.hosts[i].service)
        deliver, store = member.on_message, member.store
        self._deliver[i] = deliver
        durable = store.on_durable

        def on_message(sender: int, message: Message) -> None:
            if any(rule(sender, i, message) for rule in self._drops):
                return
            if any(rule(sender, i, message) for rule in self._holds):
                self.held.append(Held(sender, i, message))
                return
            deliver(sender, message)
            self.happened(i)

        def on_durable(position: int) -> None:
            durable(position)
            self.happened(i)

        setattr(member, "on_message", on_message)  # noqa: B010 - a method of this one member
        store.on_durable = on_durable

    def happened(self, i: int) -> None:
        """Something happened at a member."""
        for look in self._after:
            look(i)

    def after_every_event(self, look: Callable[[int], None]) -> None:
        """Call `look` with the member's id after every message and every write of a member."""
        self._after.append(look)

    def set_timeouts(self, i: int, timeouts: Timeouts) -> None:
        """Give a running member timeouts of its own."""
        core = self.hosts[i].running.core
        core.config = attrs.evolve(core.config, timeouts=timeouts)

    def others(self, *ids: int) -> list[int]:
        """Give the members that are none of these."""
        return [i for i in self.hosts if i not in ids]

    def isolate(self, i: int) -> None:
        """Cut a member off from all others."""
        for other in self.others(i):
            self.network.cut(f"h{i}", f"h{other}")

    # --- messages

    def drop(self, rule: Rule) -> Callable[[], None]:
        """Drop messages from now on; returns what undoes it."""
        self._drops.append(rule)
        return lambda: self._drops.remove(rule)

    def hold(self, rule: Rule) -> Callable[[], None]:
        """Hold messages back from now on; returns what undoes it, but delivers nothing."""
        self._holds.append(rule)
        return lambda: self._holds.remove(rule)

    def deliver(self, held: Held) -> None:
        """Deliver a message late."""
        self._deliver[held.receiver](held.sender, held.message)
        self.happened(held.receiver)

    # --- clients

    async def attempt(self, at: int, payload: bytes, *, within: float = 1.0) -> bool:
        """Have a command done by a member; say whether it was acknowledged."""
        host = self.hosts[at]
        if host.member is None:
            return False
        try:
            with trio.move_on_after(within):
                await host.member.command(payload)
                self.acked.append(payload)
                return True
        except UnknownOutcomeError:
            pass
        except NoLeaderError:
            self.refused.append(payload)
        return False

    async def reached(self, member: int, state: State, *, within: float = 30.0) -> None:
        """Wait until a member is in a state."""

        def there() -> bool:
            host = self.hosts[member]
            return host.member is not None and host.state is state

        await self.until(there, within=within)


@contextlib.asynccontextmanager
async def open_stage(directory: Path, size: int = 3, **how: object) -> AsyncGenerator[Stage, None]:
    """Open a stage; the scheduler is seeded, so the same script is always the same run."""
    seed_scheduler(how.get("seed", 0))
    async with trio.open_nursery() as nursery:
        stage = Stage(nursery, directory, size, **how)
        try:
            yield stage
        finally:
            for host in stage.hosts.values():
                if host.executor is not None:
                    host.executor.cut_power()
            nursery.cancel_scope.cancel()


def seed_scheduler(seed: object) -> None:
    """Have trio run ready tasks in an order that the seed gives."""
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    trio_run._r.seed(f"{seed}")  # pyright: ignore[reportPrivateUsage]

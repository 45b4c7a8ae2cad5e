"""The base of all workloads: operations of clients, and a check at the end of a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import trio

from ...errors import KeyValueError, NoLeaderError, RequestError
from ...histories.history import Operation
from ...keyvalue.protocol import resp

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence
    from random import Random

    from ...histories.history import Status, Value
    from ...keyvalue.protocol.resp import Reply
    from ..door import Door


class Workload(ABC):
    """Operations that clients execute all the time.

    Attributes:
        clients: number of clients for this workload alone; with 0, clients with mixed work run it.
        round: names the keys of this round; the round's writes are checked at its end.
        history: the operations of this round.
    """

    clients: ClassVar[int] = 0

    def __init__(self) -> None:
        self.round = 0
        self.history: list[Operation] = []

    @property
    def probes(self) -> Sequence[bytes]:
        """Return queries whose answers must be equal on all members at equal positions."""
        return ()

    def harmless(self, rng: Random) -> bytes:
        """Return a command that may be sent at any time."""
        return encode(b"SET", b"harmless", rng.getrandbits(32))

    @abstractmethod
    async def act(self, door: Door) -> None:
        """Execute one operation; record a refused or unknown outcome instead of raising it."""

    async def finish(self, door: Door) -> None:  # noqa: B027 - most workloads have no such check
        """Check the state at the end of the round, when all other clients have stopped.

        Raises:
            ViolationError: the state is impossible.
        """

    async def record(
        self, door: Door, op: str, key: bytes, args: tuple[Value, ...], run: Awaitable[Value]
    ) -> Value:
        """Run an operation, and record it in the history; None if it has no result."""
        start = _now_ns()
        status: Status = "unknown"  # stays so if the client is cancelled
        result: Value = None
        try:
            result = await run
            status = "ok"
        except NoLeaderError:
            status = "fail"
        except RequestError:
            pass
        finally:
            operation = Operation(door.client, op, key, args, result, start, _now_ns(), status)
            self.history.append(operation)
        return result


def _now_ns() -> int:
    return int(trio.current_time() * 1e9)


def encode(*arguments: bytes | int) -> bytes:
    """Encode a command of the key-value store."""
    return resp.encode_command(arguments)


def decode(reply: bytes) -> list[Reply]:
    """Decode replies of the key-value store.

    Raises:
        KeyValueError: a reply is an error.
    """
    found = resp.parse_replies_untrusted(reply)
    for each in found:
        if isinstance(each, KeyValueError):
            raise each
    return found


def value_of(reply: Reply) -> bytes | int | None:
    """Return a reply that is a string, a number or nothing."""
    assert reply is None or isinstance(reply, bytes | int), f"{reply!r}"
    return reply

"""What all workloads share: a service, something that a client does, and a check at the end."""

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
    """Something that clients do all the time.

    Attributes:
        clients: how many do this and nothing else; with 0, the clients that do everything do it.
        round: names the keys of this round; what a round has written is checked at its end.
        history: the operations of this round.
    """

    clients: ClassVar[int] = 0

    def __init__(self) -> None:
        self.round = 0
        self.history: list[Operation] = []

    @property
    def probes(self) -> Sequence[bytes]:
        """Queries whose answers must be equal on all members at equal positions."""
        return ()

    def harmless(self, rng: Random) -> bytes:
        """Give a command that may be sent at any time."""
        return encode(b"SET", b"harmless", rng.getrandbits(32))

    @abstractmethod
    async def act(self, door: Door) -> None:
        """Do one thing; what is refused or unknown is part of the history, and no error."""

    async def finish(self, door: Door) -> None:  # noqa: B027 - most have nothing to look at
        """Look at what the round has left, when nobody else does anything any more.

        Raises:
            ViolationError: it can't be.
        """

    async def record(
        self, door: Door, op: str, key: bytes, args: tuple[Value, ...], run: Awaitable[Value]
    ) -> Value:
        """Run an operation, and note it in the history; None if it has no result."""
        start = _now_ns()
        status: Status = "unknown"  # also of a client that is cancelled
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
        KeyValueError: one of them is an error.
    """
    found = resp.parse_replies_untrusted(reply)
    for each in found:
        if isinstance(each, KeyValueError):
            raise each
    return found


def value_of(reply: Reply) -> bytes | int | None:
    """Give a reply that is a string, a number or nothing."""
    assert reply is None or isinstance(reply, bytes | int), f"{reply!r}"
    return reply

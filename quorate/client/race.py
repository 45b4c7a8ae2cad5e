"""Dials several addresses, one a moment after the other: the first that works wins.

A stopped machine says nothing. In turn it would hold up the next addresses for seconds; all at
once, each client would load all members with its login. See RFC 8305, "Happy Eyeballs".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from ..errors import HandshakeError, KeyValueError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ..transport import Address
    from .dialling import Wire

__all__ = ["STAGGER_SECONDS", "Race"]

STAGGER_SECONDS: Final = 0.25
"""Until the next address is dialled, if none has failed before. Smaller, and busy members get
connections that nobody needs. Larger, and a stopped machine holds up its clients for longer."""


class Race:
    """One race.

    Args:
        dial: opens a connection; `OSError` and `HandshakeError` mean that another may be better.

    Attributes:
        troubles: of the addresses that were dialled in vain.
    """

    def __init__(self, dial: Callable[[Address], Awaitable[Wire]]) -> None:
        self._dial = dial
        self.troubles: dict[Address, Exception] = {}
        self._won: Wire | None = None
        self._refused: KeyValueError | None = None

    async def run(self, addresses: Sequence[Address], deadline: float) -> Wire | None:
        """Return the first connection; None if there is none until the deadline.

        Raises:
            KeyValueError: the user or its password is wrong. Every member will say so.
        """
        try:
            async with anyio.create_task_group() as tasks:
                tasks.cancel_scope.deadline = deadline
                for address in addresses:
                    self.troubles[address] = TimeoutError("no answer in time")
                    ended = anyio.Event()
                    tasks.start_soon(self._take_part, address, ended, tasks.cancel_scope)
                    with anyio.move_on_after(STAGGER_SECONDS):
                        await ended.wait()
        except BaseException:
            if self._won is not None:
                await self._won.aclose()
            raise
        if self._refused is not None:
            raise self._refused
        return self._won

    async def _take_part(
        self, address: Address, ended: anyio.Event, others: anyio.CancelScope
    ) -> None:
        try:
            wire = await self._dial(address)
        except (OSError, HandshakeError) as error:
            self.troubles[address] = error
        except KeyValueError as error:
            self._refused = error
            others.cancel()
        else:
            others.cancel()
            if self._won is None:
                self._won = wire
            else:  # two have won in the same moment
                await wire.aclose()
        finally:
            ended.set()

"""Parties and barriers: who was seen, and who was let through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .tenures import Tenure, Tenures

PARTIES: Final = 3
PARTY: Final = b"quorate:party:{crowd}:member:"
THROUGH: Final = b"quorate:barrier:{gate}:through:"
WAITING: Final = b"quorate:barrier:{gate}:waiting:"


class Gates:
    """What programs saw of a party, and when a barrier let them through.

    Args:
        slack_s: how far the times of the tenures may be behind those of the programs.
    """

    def __init__(self, slack_s: float) -> None:
        self._slack_s = slack_s
        self._seen: list[tuple[float, tuple[int, ...]]] = []
        self._passed: list[tuple[float, float, int]] = []

    def saw(self, asked_at: float, tokens: tuple[int, ...]) -> None:
        """Note the members of the party that were returned."""
        self._seen.append((asked_at, tokens))

    def passed(self, came_at: float, went_at: float, index: int) -> None:
        """Note that a program was let through."""
        self._passed.append((came_at, went_at, index))

    def judge(self, tenures: Tenures) -> Iterator[str]:
        """Yield who was seen and had gone, or was let through without the others, by the log."""
        members = {
            tenure.start: tenure
            for key, of_it in tenures.of.items()
            if key.startswith(PARTY)
            for tenure in of_it
        }
        for asked_at, tokens in self._seen:
            for token in tokens:
                ended = members[token].ended if token in members else 0.0
                if ended is not None and ended < asked_at - self._slack_s:
                    yield f"Recipes.Party: {token} was seen at {asked_at}; it had gone at {ended}"
        yield from self._judge_barrier(tenures)

    def _judge_barrier(self, tenures: Tenures) -> Iterator[str]:
        opened: dict[int, list[Tenure]] = {}
        waiting = {
            tenure.start: tenure
            for key, of_it in tenures.of.items()
            if key.startswith(WAITING)
            for tenure in of_it
        }
        for key, of_it in tenures.of.items():
            for tenure in of_it if key.startswith(THROUGH) else ():
                opened.setdefault(tenure.start, []).append(tenure)
                ticket = waiting.get(int(key.removeprefix(THROUGH)))
                if ticket is None or ticket.end != tenure.start or ticket.how != "deleted":
                    yield _violated(f"{key!r} was let through at {tenure.start} without a ticket")
        for position, together in opened.items():
            indices = sorted(int(tenure.value) for tenure in together)
            if indices != list(range(PARTIES)):
                yield _violated(f"{indices} were let through at {position}")
        for came_at, went_at, index in self._passed:
            least = came_at - self._slack_s
            if not any(
                least <= tenure.began <= went_at and int(tenure.value) == index
                for together in opened.values()
                for tenure in together
            ):
                yield _violated(f"{index} came at {came_at}, and passed at {went_at} by itself")


def _violated(words: str) -> str:
    return f"Recipes.Barrier: {words}"

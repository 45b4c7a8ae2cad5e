"""Numbers that programs add to: each addition counts once, if it was answered, and at most once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

    from .tenures import Tenures


class Sums:
    """What programs have added, and what they were answered."""

    def __init__(self) -> None:
        self._sent: Counter[bytes] = Counter()
        self._replies: dict[bytes, list[int]] = {}

    async def add(self, key: bytes, adding: Awaitable[int]) -> int:
        """Add one to a number; return the sum.

        Raises:
            RequestError: there is no answer.
        """
        self._sent[key] += 1  # before it is sent: this task may be cancelled
        reply = await adding
        self._replies.setdefault(key, []).append(reply)
        return reply

    def judge(self, tenures: Tenures) -> Iterator[str]:
        """Yield where an addition was lost, or counted twice, by the log; that is at rest."""
        for key, sent in self._sent.items():
            replies = self._replies.get(key, [])
            tenure = tenures.present(key)
            found = 0 if tenure is None else int(tenure.value)
            if not len(replies) <= found <= sent:
                yield (
                    f"Recipes.Sum: {key!r} is {found}, after {sent} additions of which "
                    f"{len(replies)} were answered"
                )
            if len(set(replies)) < len(replies) or max(replies, default=0) > found:
                yield f"Recipes.Sum: the replies of {key!r} were {replies}"

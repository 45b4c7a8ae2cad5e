"""What a partition says of its slots: the answer to QUORATE.SLOTS STATE."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ..errors import ConfigurationError, KeyValueError
from ..keyvalue.slots.ranges import parse_slots_untrusted
from .groups import PATIENCE_S, slots_command

if TYPE_CHECKING:
    from ..keyvalue.protocol.resp import Reply
    from ..keyvalue.slots.ranges import Slots
    from .groups import Group

__all__ = ["SlotsState", "state_of"]


class _Span(msgspec.Struct):
    slots: str
    move: int = 0
    keys: int = 0
    target: int = -1


class SlotsState(msgspec.Struct):
    """A partition's slots, as its leader has them.

    Attributes:
        founded: it has got its first slots, which may be none.
        keys: how many it serves.
        stale: slots whose rows are to be deleted; a text.
        ended: how the latest moves have ended here.
        ended_upto: every other move up to this one has ended, too.
    """

    founded: bool
    stale: str = ""
    keys: int = 0
    ended: dict[int, str] = msgspec.field(default_factory=dict[int, str])
    ended_upto: int = 0
    owned_spans: list[_Span] = msgspec.field(default_factory=list[_Span], name="owned")
    frozen_spans: list[_Span] = msgspec.field(default_factory=list[_Span], name="frozen")
    importing_spans: list[_Span] = msgspec.field(default_factory=list[_Span], name="importing")

    @property
    def owned(self) -> Slots:
        """The slots that it owns, with those that are frozen."""
        return _join(self.owned_spans) | _join(self.frozen_spans)

    @property
    def frozen(self) -> dict[int, int]:
        """The moves that have frozen slots here, and the partitions that are to have them."""
        return {each.move: each.target for each in self.frozen_spans}

    @property
    def importing(self) -> list[int]:
        """The moves that bring slots to here."""
        return [each.move for each in self.importing_spans]

    @property
    def highest(self) -> int:
        """The highest number of a move that is known here."""
        return max(self.ended_upto, 0, *self.ended, *self.frozen, *self.importing)

    def imported(self, move: int) -> int:
        """Return how many keys a move has brought to here so far; 0 if it is unknown."""
        return sum(each.keys for each in self.importing_spans if each.move == move)


def _join(spans: list[_Span]) -> Slots:
    joined = 0
    for each in spans:
        joined |= parse_slots_untrusted(each.slots)
    return joined


async def state_of(group: Group, *, within_s: float = PATIENCE_S) -> SlotsState:
    """Ask a partition for its slots.

    Raises:
        KeyValueError: it has no answer to that.
        RequestError: it does not answer.
    """
    return _decode_untrusted(await slots_command(group, "STATE", within_s=within_s))


def _decode_untrusted(reply: Reply) -> SlotsState:
    try:
        return msgspec.json.decode(reply if isinstance(reply, bytes) else b"", type=SlotsState)
    except (msgspec.MsgspecError, ConfigurationError) as error:
        raise KeyValueError(f"ERR the state of the slots is {reply!r:.40}: {error}") from None

"""Which messages of other members we do not believe.

A cluster may run without certificates and without a key. Then anybody who reaches the member port
may send any message in the name of a member. The codec bounds each number by itself
(:mod:`quorate.transport.fields`); here numbers are compared with what this member knows.

Terms
=====
A term far above our own is not believed at once. Otherwise one frame with the highest possible term
would be promised, durably, and no higher term would be left to elect a leader in. The message is
dropped, and the bound rises by one step. Honest members repeat themselves, so a member that really
is that far behind gets there. A forger gets one step at a time, each for a refusal or for a promise
that we first make durable: to use up all terms takes years.

Leaders
=======
A leader whose tables contradict each other or our log is not followed. The caller is
:mod:`..follower.log_guard`, which also refuses to drop committed entries.
"""

from __future__ import annotations

import logging
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, cast, get_args

import attrs
import trio

from ...log_events import log_event
from ...transport import Message, NewLeadershipTerm, is_term
from . import log_matching

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...storage import TermRow

log = logging.getLogger("quorate.node")

TERM_STEP: Final = 1 << 20
"""How far above our own a term is believed at once. Smaller: a member that missed many elections
needs more steps to catch up. Larger: forged terms use up all possible terms sooner."""

STEP_SECONDS: Final = 0.01
"""How long the bound stays where it is, at least. Shorter: forged terms rise faster. Longer: a
member that missed many elections catches up more slowly."""


def _terms_of(cls: type[attrs.AttrsInstance]) -> Callable[[Message], int] | None:
    """Return a function from a message to the highest term in it; None if its class has none."""
    names = [field.name for field in attrs.fields(cls) if is_term(field.type)]
    if not names:
        return None
    get = cast("Callable[[Message], Any]", attrgetter(*names))  # of one name it gives the value
    return get if len(names) == 1 else lambda message: max(get(message))


_TERM_OF: Final = {
    cls: _terms_of(cls) for cls in cast("tuple[type[attrs.AttrsInstance], ...]", get_args(Message))
}


class TermBound:
    """Decides whether the terms of a message are near enough to ours.

    Args:
        member_id: of this member, for the log.
        known_term: returns the highest term that we promised, lived in, or have in our log.
    """

    def __init__(self, member_id: int, known_term: Callable[[], int]) -> None:
        self._member_id = member_id
        self._known_term = known_term
        self._bound = -1
        self._stands_until = float("-inf")

    def allows(self, sender: int, message: Message) -> bool:
        """Say whether a message may be handled; if not, the bound rises for the next one."""
        term_of = _TERM_OF[type(message)]
        return (
            term_of is None
            or (term := term_of(message)) <= self._bound
            or self._look(sender, message, term)
        )

    def _look(self, sender: int, message: Message, term: int) -> bool:
        now, known = trio.current_time(), self._known_term()
        self._bound = max(self._bound, known + TERM_STEP)
        if term <= self._bound:
            return True
        if now >= self._stands_until:
            self._stands_until = now + STEP_SECONDS
            log_event(
                log,
                logging.WARNING,
                "term_refused",
                "member %(member)d: refused a %(type)s of member %(sender)d: its term %(term)d is "
                "far above %(known)d, the last one known",
                member=self._member_id,
                sender=sender,
                type=type(message).__name__,
                term=term,
                known=known,
                bound=self._bound,
            )
            self._bound += TERM_STEP
        return False


def contradiction(
    message: NewLeadershipTerm,
    decision: log_matching.LogDecision,
    *,
    terms: Sequence[TermRow],
    append: int,
) -> str:
    """Return what in a leader's announcement cannot be true, in words; empty if nothing.

    Args:
        message: the announcement.
        decision: what it means for our log.
        terms: our term table.
        append: where our log ends.
    """
    log_term = terms[-1].term if terms else -1
    closed = bool(terms) and terms[-1].end is not None
    term, base = message.leadership_term_id, message.term_base_log_position
    match decision:
        case log_matching.Replay() if log_term > term:
            return f"it leads term {term}, our log ends in term {log_term}"
        case log_matching.Replay() if log_term < term and base != append:
            return f"its term begins at {base}, inside of our log, which ends at {append}"
        case log_matching.Replicate(base=None) if closed:
            return f"it has more of term {log_term}, which ended at {append}"
        case log_matching.Replicate(term=wanted, base=int()) if not log_term < wanted < term:
            return f"term {wanted} is to be replicated between {log_term} and {term}"
        case log_matching.Replicate(base=int(begin), stop=stop) if not begin == append <= stop:
            return f"the next term has {begin} to {stop}, our log ends at {append}"
        case _:
            return ""

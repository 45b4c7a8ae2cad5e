"""What all invariants share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from ...node.protocol.quorum import ANY_STORE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...node.protocol.quorum import Quorums, VoterId
    from ..watching.facts import Fact
    from ..watching.knowledge import Knowledge


class ViolationError(AssertionError):
    """Something that must hold does not; the text begins with what."""


class Invariant(ABC):
    """Something that must always hold. It checks every fact of the kinds that it names.

    Args:
        known: what is known of the cluster, including the fact to be checked.

    Attributes:
        source: where the rule is from.
        hears: the kinds of facts that it checks.
    """

    source: ClassVar[str]
    hears: ClassVar[tuple[type[Fact], ...]]

    def __init__(self, known: Knowledge) -> None:
        self.known = known

    @abstractmethod
    def hear(self, fact: Fact) -> None:
        """Check a fact.

        Raises:
            ViolationError: it must not be.
        """

    def violated(self, words: str) -> ViolationError:
        """Give the error to be raised."""
        return ViolationError(f"{type(self).__name__}: {words}")


def names(voters: Iterable[VoterId]) -> str:
    """Name voters, each with its store if the configuration has stores."""
    return ", ".join(
        str(each.member_id)
        if each.instance_id == ANY_STORE
        else f"{each.member_id} (store {each.instance_id})"
        for each in sorted(voters)
    )


def rule(quorums: Quorums[VoterId]) -> str:
    """Say by which voters is decided."""
    return " and by one of ".join(names(each) for each in quorums.sets)

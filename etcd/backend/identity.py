"""The numbers by which clients know the cluster and its members, and the headers that have them."""

import hashlib
from typing import Final

from ..messages.wire import field, varint

__all__ = ["Identity"]

_HEADER: Final = 1  # the field of each reply that has the header
_CLUSTER_ID: Final = b"\x08"  # tags of the header's fields, which are numbers
_MEMBER_ID: Final = b"\x10"
_REVISION: Final = b"\x18"
_TERM: Final = b"\x20"


class Identity:
    """Numbers for a cluster and its members: equal on all members, different for other clusters.

    Ours count from 0, and etcd's clients take 0 for "none".

    Args:
        cluster: what distinguishes the cluster, such as its name.

    Attributes:
        cluster_id: u64, never 0.
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self.cluster_id = _number(f"cluster {cluster}")
        self._members: dict[int, int] = {}

    def member_id(self, own: int) -> int:
        """Return etcd's number for a member, u64 and never 0, from ours."""
        if own not in self._members:
            self._members[own] = _number(f"member {own} of {self._cluster}")
        return self._members[own]

    def header(self, own: int, revision: int, term: int) -> bytes:
        """Encode the header of a reply, as the field with which each reply begins.

        Args:
            own: our number for the member that answers.
            revision: 0 leaves it out.
            term: of leadership.
        """
        numbers = (
            (_CLUSTER_ID, self.cluster_id),
            (_MEMBER_ID, self.member_id(own)),
            (_REVISION, revision),
            (_TERM, term),
        )
        return field(_HEADER, b"".join(tag + varint(number) for tag, number in numbers if number))


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) or 1

"""The numbers by which clients know the cluster and its members, and the headers that have them."""

import hashlib
from typing import Final

from ..messages.wire import varint

__all__ = ["Identity"]

_HEADER: Final = b"\x0a"  # tag of the field of each reply that has the header
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
        self._made_for: tuple[int, int] | None = None
        self._start = self._end = b""

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
        if self._made_for != (own, term):
            # Almost all replies of a member differ in the revision alone.
            self._made_for = own, term
            self._start = b"".join(
                (
                    *(_CLUSTER_ID, varint(self.cluster_id)),
                    *(_MEMBER_ID, varint(self.member_id(own))),
                )
            )
            self._end = _TERM + varint(term) if term else b""
        middle = _REVISION + varint(revision) if revision else b""
        content = self._start + middle + self._end
        # It is shorter than 128 bytes, so its length is one byte.
        return _HEADER + bytes((len(content),)) + content


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) or 1

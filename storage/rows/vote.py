"""The vote: what a member must never forget.

It is durable before it leaves the member. The candidate term never decreases, and within one term a
vote is given once. With leases the row also says how long a promise to a leader may last: after a
restart the member waits that long before it votes.

::

    row "node_state"    candidate term  i64
                        voted for       i64
                        lease           i64, milliseconds; absent if 0
"""

from __future__ import annotations

import struct
from typing import Final

import attrs

from ..lmdb.sealed_rows import seal, unpack_untrusted, unseal_untrusted

NODE_STATE_KEY: Final = b"node_state"

_LAYOUT: Final = struct.Struct("<qq")
_WITH_LEASE: Final = struct.Struct("<qqq")


@attrs.frozen
class NodeState:
    """The vote.

    Args:
        candidate_term: highest term that this member voted in, stood in or followed; -1 = none.
        voted_for: the member it voted for in that term; -1 = none.
        lease_ms: longest time for which it may have promised not to vote or stand.
    """

    candidate_term: int = -1
    voted_for: int = -1
    lease_ms: int = 0

    def may_become(self, after: NodeState) -> bool:
        """Say whether `after` breaks no promise of this state."""
        if after.candidate_term == self.candidate_term:
            # A vote already given in this term stays as it is.
            return self.voted_for in {-1, after.voted_for}
        # Promises only rise (I-3): a lower one would let a stale leader back in (H1).
        return after.candidate_term > self.candidate_term


def encode_node_state(state: NodeState) -> bytes:
    """Return the row for `NODE_STATE_KEY`."""
    vote = state.candidate_term, state.voted_for
    body = _WITH_LEASE.pack(*vote, state.lease_ms) if state.lease_ms else _LAYOUT.pack(*vote)
    return seal(NODE_STATE_KEY, body)


def decode_node_state_untrusted(value: bytes | None) -> NodeState:
    """Decode the row of `NODE_STATE_KEY`.

    Raises:
        StorageError: it is missing or damaged.
    """
    body = unseal_untrusted(NODE_STATE_KEY, value)
    # Members without leases write the short row, which versions before leases can read too.
    layout = _WITH_LEASE if len(body) == _WITH_LEASE.size else _LAYOUT
    return NodeState(*unpack_untrusted(layout, NODE_STATE_KEY, body))

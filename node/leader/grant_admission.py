"""The leader's side of an admission: the entry that gives a new store its vote.

Why that is safe is argued in :mod:`.membership.admission`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ...storage import Entry, EntryKind
from ..membership.admission import encode_admission

if TYPE_CHECKING:
    from ...transport import AdmissionRequest
    from .follower_progress import Follower
    from .leadership import Leadership

log = logging.getLogger("quorate.node")


def on_admission_request(
    leadership: Leadership, follower: Follower, message: AdmissionRequest
) -> None:
    """Append the entry that admits a follower's store, once for each time that it joins."""
    follows = follower.ready and follower.live and not follower.votes and not follower.standby
    if message.member_id != follower.member_id or not follows:
        return
    if not leadership.accepting or follower.admission is not None:
        return
    known = leadership.store.voting_status
    payload = encode_admission(message.member_id, message.instance_id, known)
    leadership.append([Entry(EntryKind.MEMBERSHIP, payload)])
    follower.admission = leadership.publication_position
    log.warning(
        "member %d: the new store %016x of member %d is to be admitted at %d",
        leadership.state.member_id,
        message.instance_id,
        message.member_id,
        follower.admission,
    )

"""The bound on terms knows every term of every message, so none slips through unchecked."""

from typing import cast, get_args

import attrs
import pytest

from quorate.node.protocol.untrusted import TermBound
from quorate.transport import (
    BackupQuery,
    Challenge,
    ChallengeResponse,
    EventsQuery,
    EventsReport,
    ForwardReply,
    ForwardRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    Hello,
    HelloReply,
    Message,
    ReplayRequest,
    SnapshotOffer,
    SnapshotPart,
)
from quorate.transport import fields as f

CLASSES = cast("tuple[type[attrs.AttrsInstance], ...]", get_args(Message))

WITHOUT_A_TERM = {
    BackupQuery,
    EventsQuery,
    EventsReport,
    ForwardReply,
    ForwardRequest,
    Challenge,
    ChallengeResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    Hello,
    HelloReply,
    ReplayRequest,
    SnapshotOffer,
    SnapshotPart,
}
"""A message that is not here has a term, in which its sender is; see `transport/messages.py`."""


PLAIN: dict[object, object] = {bool: False, str: "", bytes: b""}


def terms_of(cls: type[attrs.AttrsInstance]) -> list[str]:
    """The fields of a message that hold a term, by their names; ``term_base_position`` is none."""
    return [
        field.name
        for field in attrs.fields(cls)
        if "term" in (words := field.name.split("_")) and words[-1] != "position"
    ]


def with_term(cls: type[attrs.AttrsInstance], name: str, term: int) -> Message:
    """Return a message that is plain except for one field, which has this term."""
    values: dict[str, object] = {}
    for field in attrs.fields(cls):
        kind: object = field.type
        values[field.name] = PLAIN.get(kind, () if "tuple" in str(kind) else 0)
    return cast("Message", cls(**values | {name: term}))


def test_every_message_has_a_term_or_is_known_to_have_none() -> None:
    assert {cls for cls in CLASSES if not terms_of(cls)} == WITHOUT_A_TERM


FIELDS = [(cls, name) for cls in CLASSES for name in terms_of(cls)]


@pytest.mark.parametrize(("cls", "name"), FIELDS)
async def test_a_term_far_above_ours_is_refused_in_each_field(
    cls: type[attrs.AttrsInstance], name: str
) -> None:
    bound = TermBound(0, lambda: 5)
    assert not bound.allows(1, with_term(cls, name, f.MAX_TERM))
    assert bound.allows(1, with_term(cls, name, 6))

"""Who a certificate names: a cluster, a purpose, and a name, as one URI.

A certificate carries the URI among its subject alternative names::

    quorate://CLUSTER/member/2        a member, which may open everything
    quorate://CLUSTER/reader/NAME     reads the log and snapshots: a pipeline, a monitor
    quorate://CLUSTER/backup/NAME     takes backups
    quorate://CLUSTER/client/USER     a client of the client port; nothing of the member port

The naive way is to check host names, as browsers do. Then any member's certificate passes for that
of any other member at an address that DNS can be made to give, and each new address needs a new
certificate. A member has an id for ever, so the id is what the certificate names. No host name and
no address is looked at.

This module is pure. `connection` of the room `tls` finds the URI in a certificate.
"""

import re
from collections.abc import Iterable
from enum import Enum
from typing import Final

import attrs

from ..errors import WireError
from .fields import StreamPurpose

SCHEME: Final = "quorate://"

_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_FORM: Final = re.compile(f"{SCHEME}({_NAME})/(member|reader|backup|client)/({_NAME})")
# One spelling for each id: two certificates of one member must not look like two members.
_MEMBER_ID: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_HIGHEST_MEMBER_ID: Final = 2**31 - 1

_GROUP: Final = re.compile(r"(.+)\.(?:meta|p[0-9]{1,2})")
"""The name of a group of members in a cluster with partitions; the first part is the cluster's."""


class Purpose(Enum):
    """What the owner of a certificate is."""

    MEMBER = "member"
    READER = "reader"
    BACKUP = "backup"
    CLIENT = "client"


_READS: Final = frozenset(
    {
        StreamPurpose.REPLAY,
        StreamPurpose.SNAPSHOT,
        StreamPurpose.BACKUP,
        StreamPurpose.HEARTBEAT,
    }
)
STREAMS: Final = {
    Purpose.MEMBER: frozenset(StreamPurpose),
    Purpose.READER: _READS,
    # A backup asks for the log and for a snapshot on streams of their own.
    Purpose.BACKUP: _READS,
    Purpose.CLIENT: frozenset[StreamPurpose](),
}
"""What each purpose may open a connection to a member port for."""


@attrs.frozen
class Identity:
    """What a certificate says about its owner.

    Args:
        cluster: name of the cluster.
        purpose: what the owner is.
        name: a member's id in decimal digits; otherwise the name of a reader, backup or user.
    """

    cluster: str
    purpose: Purpose
    name: str

    @classmethod
    def member(cls, cluster: str, member_id: int) -> "Identity":
        """Return the identity of a member."""
        return cls(cluster, Purpose.MEMBER, str(member_id))

    @property
    def member_id(self) -> int | None:
        """The id of a member; None for another purpose."""
        return int(self.name) if self.purpose is Purpose.MEMBER else None

    def is_of(self, cluster: str) -> bool:
        """Whether this names a cluster, or the cluster with partitions that it is a group of.

        A machine has a member of many groups, and a client talks to many. Each has one certificate.
        """
        group = _GROUP.fullmatch(cluster)
        return self.cluster == cluster or (group is not None and self.cluster == group[1])

    def may_open(self, purpose: StreamPurpose) -> bool:
        """Whether the owner may open connections of this purpose to a member port."""
        return purpose in STREAMS[self.purpose]

    def __str__(self) -> str:
        """Return the URI."""
        return f"{SCHEME}{self.cluster}/{self.purpose.value}/{self.name}"


def parse_identity_untrusted(uri: str) -> Identity:
    """Parse the URI of a certificate.

    Raises:
        WireError: it has another form.
    """
    found = _FORM.fullmatch(uri)
    if found is None:
        raise WireError(f"{uri!r:.100}: expected {SCHEME}CLUSTER/member/ID or the like")
    identity = Identity(found[1], Purpose(found[2]), found[3])
    if identity.purpose is Purpose.MEMBER and not _is_member_id(identity.name):
        raise WireError(f"{uri!r:.100}: expected a member id, 0 to {_HIGHEST_MEMBER_ID}")
    return identity


def _is_member_id(text: str) -> bool:
    return _MEMBER_ID.fullmatch(text) is not None and int(text) <= _HIGHEST_MEMBER_ID


def identity_untrusted(uris: Iterable[str]) -> Identity:
    """Return the identity among the URIs of a certificate, which has exactly one.

    Raises:
        WireError: it has none, several, or one of another form.
    """
    ours = [uri for uri in uris if uri.startswith(SCHEME)]
    # With several, the owner could choose who it is. One certificate is for one purpose.
    if len(ours) != 1:
        raise WireError(f"the certificate has {len(ours)} names {SCHEME}..., expected one")
    return parse_identity_untrusted(ours[0])

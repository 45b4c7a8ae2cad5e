"""The errors of the API: a code of gRPC and a text, which clients compare letter by letter."""

import enum
from typing import Final

from ..errors import QuorateError

__all__ = ["Code", "EtcdError"]


class Code(enum.IntEnum):
    """The codes of gRPC, as far as etcd uses them."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class EtcdError(QuorateError):
    """A reply that is an error; it ends a request, never a member.

    Args:
        code: of gRPC.
        text: as etcd words it, where etcd has such an error.
    """

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


KEY_NOT_PROVIDED: Final = (Code.INVALID_ARGUMENT, "etcdserver: key is not provided")
KEY_NOT_FOUND: Final = (Code.INVALID_ARGUMENT, "etcdserver: key not found")
VALUE_PROVIDED: Final = (Code.INVALID_ARGUMENT, "etcdserver: value is provided")
LEASE_PROVIDED: Final = (Code.INVALID_ARGUMENT, "etcdserver: lease is provided")
TOO_MANY_OPS: Final = (Code.INVALID_ARGUMENT, "etcdserver: too many operations in txn request")
DUPLICATE_KEY: Final = (Code.INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request")
INVALID_SORT: Final = (Code.INVALID_ARGUMENT, "etcdserver: invalid sort option")
COMPACTED: Final = (
    Code.OUT_OF_RANGE,
    "etcdserver: mvcc: required revision has been compacted",
)
FUTURE_REVISION: Final = (
    Code.OUT_OF_RANGE,
    "etcdserver: mvcc: required revision is a future revision",
)
TOO_LARGE: Final = (Code.INVALID_ARGUMENT, "etcdserver: request is too large")
TOO_MANY_REQUESTS: Final = (Code.RESOURCE_EXHAUSTED, "etcdserver: too many requests")
NO_SPACE: Final = (Code.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded")
NO_REQUEST: Final = (Code.INTERNAL, "grpc: the call has ended without a whole request")
LEASE_NOT_FOUND: Final = (Code.NOT_FOUND, "etcdserver: requested lease not found")
LEASE_EXISTS: Final = (Code.FAILED_PRECONDITION, "etcdserver: lease already exists")
LEASE_CHANGED: Final = (
    Code.ABORTED,
    "etcdserver: the lease gets keys while it is asked who may do this; try again",
)
USERS_CHANGED: Final = (
    Code.ABORTED,
    "etcdserver: the users change while the request waits; try again",
)
LEASE_TTL_TOO_LARGE: Final = (Code.OUT_OF_RANGE, "etcdserver: too large lease TTL")
NO_LEADER: Final = (Code.UNAVAILABLE, "etcdserver: no leader")
NOT_LEADER: Final = (Code.FAILED_PRECONDITION, "etcdserver: not leader")
TIMED_OUT: Final = (
    Code.UNAVAILABLE,
    "etcdserver: request timed out, possibly due to connection lost",
)
STOPPED: Final = (Code.UNAVAILABLE, "etcdserver: server stopped")
MEMBER_NOT_FOUND: Final = (Code.NOT_FOUND, "etcdserver: member not found")
AUTH_NOT_ENABLED: Final = (
    Code.FAILED_PRECONDITION,
    "etcdserver: authentication is not enabled",
)
AUTH_FAILED: Final = (
    Code.INVALID_ARGUMENT,
    "etcdserver: authentication failed, invalid user ID or password",
)
USER_EMPTY: Final = (Code.INVALID_ARGUMENT, "etcdserver: user name is empty")
INVALID_TOKEN: Final = (Code.UNAUTHENTICATED, "etcdserver: invalid auth token")
PERMISSION_DENIED: Final = (Code.PERMISSION_DENIED, "etcdserver: permission denied")

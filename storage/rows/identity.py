"""The identity of a store: cluster, member, and a number drawn once when it was made.

A store of another cluster or member is refused: its votes and log belong to another history. So is
a store of another format, except for the format before, which :mod:`..log.upgrade` upgrades. The
instance id distinguishes a store made to replace a lost one from the store that was lost.

::

    row "identity"   version  u32    of everything in the store
                     member   i64
                     instance u64
                     cluster         UTF-8
    row "service"    kind            UTF-8

The kind of service has a row of its own, written together with rows of terms. Before there is a
term, the store holds nothing that two services could mix up.
"""

from __future__ import annotations

import struct
from typing import Final

import attrs

from ...errors import ConfigurationError, StorageError, StoreMismatchError
from ..lmdb.sealed_rows import seal, unseal_untrusted

FORMAT_VERSION: Final = 4
OLD_FORMAT_VERSION: Final = 3
"""A store of this format is read as it is, and upgraded when it is opened for writing."""
IDENTITY_KEY: Final = b"identity"
SERVICE_KEY: Final = b"service"

_MAX_CLUSTER_BYTES: Final = 256
_VERSION: Final = struct.Struct("<I")
_NUMBERS: Final = struct.Struct("<qQ")


@attrs.frozen
class Identity:
    """Which store this is.

    Args:
        cluster: name of the cluster, 1..256 bytes of UTF-8.
        member_id: which member of it.
        instance_id: unsigned 64 bits, drawn when the store was made.
        format_version: of everything in the store.
    """

    cluster: str
    member_id: int
    instance_id: int
    format_version: int = FORMAT_VERSION


def encode_identity(identity: Identity) -> bytes:
    """Return the row for `IDENTITY_KEY`.

    Raises:
        ConfigurationError: the cluster's name is empty or too long.
    """
    name = identity.cluster.encode()
    if not 1 <= len(name) <= _MAX_CLUSTER_BYTES:
        raise ConfigurationError(
            f"cluster {identity.cluster!r}: {len(name)} bytes, expected 1 to {_MAX_CLUSTER_BYTES}"
        )
    numbers = _NUMBERS.pack(identity.member_id, identity.instance_id)
    return seal(IDENTITY_KEY, _VERSION.pack(identity.format_version) + numbers + name)


def decode_identity_untrusted(value: bytes | None) -> Identity:
    """Decode the row of `IDENTITY_KEY`.

    Raises:
        StoreMismatchError: the row is missing, damaged, or of a format that this version can't
        read.
    """
    try:
        body = unseal_untrusted(IDENTITY_KEY, value)
        (version,) = _VERSION.unpack_from(body)
    except (StorageError, struct.error) as error:
        raise StoreMismatchError(f"{error}, expected a store of quorate") from error
    # The version before the other fields: another format may have them in other places.
    if version not in {OLD_FORMAT_VERSION, FORMAT_VERSION}:
        raise StoreMismatchError(
            f"store of format {version}, expected {OLD_FORMAT_VERSION} or {FORMAT_VERSION}"
        )
    try:
        member_id, instance_id = _NUMBERS.unpack_from(body, _VERSION.size)
        cluster = body[_VERSION.size + _NUMBERS.size :].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise StoreMismatchError(f"{error}, expected a store of quorate") from error
    return Identity(cluster, member_id, instance_id, version)


def encode_service(kind: str) -> bytes:
    """Return the row for `SERVICE_KEY`."""
    return seal(SERVICE_KEY, kind.encode())


def service_untrusted(value: bytes | None) -> str:
    """Return the kind of service that the log belongs to; empty if none was noted.

    Raises:
        StorageError: the row is damaged.
    """
    # A name that can't be decoded matches no service: the store is refused as one of another
    # service.
    return "" if value is None else unseal_untrusted(SERVICE_KEY, value).decode(errors="replace")


def check_identity(there: Identity, *, cluster: str, member_id: int) -> None:
    """Refuse a store of another cluster or member.

    Raises:
        StoreMismatchError: it is one.
    """
    # A vote is a promise of one member of one cluster. Used by another member, it could be given
    # twice in a term (I-2).
    if (there.cluster, there.member_id) != (cluster, member_id):
        raise StoreMismatchError(
            f"store of cluster {there.cluster!r}, member {there.member_id}; "
            f"expected cluster {cluster!r}, member {member_id}"
        )

"""The user that a client's certificate names, by its URI ``quorate://CLUSTER/client/USER``."""

from collections.abc import Sequence

from ...errors import WireError
from ...transport import Purpose
from ...transport.identity import identity_untrusted

__all__ = ["certified_user"]


def certified_user(uris: Sequence[str], cluster: str) -> bytes:
    """Return the name of the user, or words that can't be the name of one.

    Args:
        uris: of a certificate that OpenSSL has verified.
        cluster: name of ours.
    """
    # Never empty: a client whose certificate names nobody must not become the user `default`. A
    # name of a user has no spaces, and these words have some.
    try:
        identity = identity_untrusted(uris)
    except WireError:
        return b"it has no name"
    if not identity.is_of(cluster) or identity.purpose is not Purpose.CLIENT:
        return f"it is for {identity}".encode()
    return identity.name.encode()

"""The library that decodes protobuf: it must be the same one on all members.

Whether the bytes of an entry are a message decides whether the entry is applied. The libraries do
not agree about all bytes: about text that is no UTF-8, and how deep messages may be in each other.
So members with different ones would drift apart. protobuf has a fast library, ``upb``, for all
common platforms, and takes another where it is missing, or where the environment asks for it.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.internal import api_implementation

from ...errors import ConfigurationError

__all__ = ["require_library"]

_LIBRARY: Final = "upb"


def require_library() -> None:
    """Raise unless protobuf works as on other members.

    Raises:
        ConfigurationError: it does not.
    """
    found = api_implementation.Type()
    if found != _LIBRARY:
        raise ConfigurationError(
            f"the protobuf library is {found!r}: expected {_LIBRARY!r}, as on all members that "
            "have keys of etcd; install protobuf from a wheel for this platform, and unset "
            "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
        )

"""Errors of locks and elections, which have lost their codes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...codes import Code, EtcdError

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["without_codes"]


@contextmanager
def without_codes() -> Generator[None]:
    """Raise errors of requests as etcd does for locks and elections.

    It serves them by a client of its own, and on that way errors lose their codes. Only "try
    another member" is kept: clients act upon that.
    """
    try:
        yield
    except EtcdError as error:
        if error.code is Code.UNAVAILABLE:
            raise
        raise EtcdError(Code.UNKNOWN, error.text) from error

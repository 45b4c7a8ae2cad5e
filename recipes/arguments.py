"""What all recipes check of their arguments."""

from __future__ import annotations

from typing import cast

from ..errors import ConfigurationError
from ..keyvalue.programs.client import KeyValue

__all__ = ["check_store"]


def check_store(kv: KeyValue) -> None:
    """Check that something is a store that recipes can use.

    Raises:
        ConfigurationError: it is something else, the client of `quorate.connect_blocking` for
            instance.
    """
    if not isinstance(cast("object", kv), KeyValue):
        raise ConfigurationError(
            f"kv = {kv!r:.100}: expected the store that `async with quorate.connect(...)` yields, "
            "or `node.kv`; recipes need an async program, and do not work with `connect_blocking`"
        )

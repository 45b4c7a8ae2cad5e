"""The keys of recipes: ``quorate:<recipe>:{<name>}:<rest>``.

The braces end the name, so that no recipe's keys are among those of another one.
"""

from __future__ import annotations

import re
from typing import Final, cast

from ..errors import ConfigurationError

__all__ = ["prefix_of"]

_NAME: Final = re.compile(r"[^{}*?\[\]\\\x00-\x20\x7f\ud800-\udfff]+")
_NAME_BYTES: Final = 200


def prefix_of(recipe: str, name: str) -> bytes:
    """Return the prefix of a recipe's keys.

    Args:
        recipe: ``lock``, for instance.
        name: of the user's lock.

    Raises:
        ConfigurationError: the name is empty or too long, or has a character with a meaning here.
    """
    text = isinstance(cast("object", name), str)
    if not text or not _NAME.fullmatch(name) or len(name.encode()) > _NAME_BYTES:
        raise ConfigurationError(
            f"name of the {recipe} = {name!r:.60}: expected a str of 1 to {_NAME_BYTES} bytes in "
            "UTF-8, without blanks and { } [ ] * ? \\"
        )
    return f"quorate:{recipe}:{{{name}}}:".encode()

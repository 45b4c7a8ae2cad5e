"""CRC-32C (Castagnoli) with type annotations; it finds accidents on disks and wires, not forgery.

`transport/codec.py` wraps the same two functions: `transport` may not import `storage`, and a third
room for two casts would be worse than doing it twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import google_crc32c

if TYPE_CHECKING:
    from collections.abc import Callable

# The library has no annotations. It takes only bytes objects, no views.
crc32c = cast("Callable[[bytes], int]", google_crc32c.value)  # pyright: ignore[reportUnknownMemberType]
extend_crc32c = cast("Callable[[int, bytes], int]", google_crc32c.extend)  # pyright: ignore[reportUnknownMemberType]

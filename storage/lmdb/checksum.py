"""CRC-32C (Castagnoli), typed: finds accidents on disks and wires, not forgery."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import google_crc32c

if TYPE_CHECKING:
    from collections.abc import Callable

# The library has no annotations. It takes nothing but whole bytes objects.
crc32c = cast("Callable[[bytes], int]", google_crc32c.value)  # pyright: ignore[reportUnknownMemberType]
extend_crc32c = cast("Callable[[int, bytes], int]", google_crc32c.extend)  # pyright: ignore[reportUnknownMemberType]

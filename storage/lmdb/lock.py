"""The lock of the few places that several threads come to.

Threads live in `storage/writing`, and the linter refuses `threading` elsewhere. This alias lets the
rooms below use a lock without importing that room.
"""

from __future__ import annotations

import threading

Lock = threading.Lock

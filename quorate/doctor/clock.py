"""The clock of this machine: whether it is kept right, as the kernel says."""

import ctypes
import os
import struct
from typing import Final

from .finding import Finding, ok, unknown, warning

__all__ = ["check_clock", "judge"]

_STA_UNSYNC: Final = 0x0040
_TIME_ERROR: Final = 5


_TIMEX: Final = struct.Struct("@Illlli")
"""`struct timex` of adjtimex(2), as far as it is read: modes, offset, frequency, the most and the
likely error, status."""

_ROOM_BYTES: Final = 512
"""Larger than the whole structure. If smaller, the kernel writes behind it."""


def check_clock() -> Finding:
    """Ask the kernel whether a time service keeps its clock right."""
    try:
        state, status, error_us = _ask()
    except (OSError, AttributeError) as error:
        return unknown("clock", f"the kernel does not say: {error}", "adjtimex(2)")
    return judge(state, status, error_us)


def judge(state: int, status: int, error_us: int) -> Finding:
    """Judge the answer of the kernel.

    Args:
        state: what adjtimex returned.
        status: its bits.
        error_us: the most by which the clock may be wrong, in microseconds.
    """
    if state == _TIME_ERROR or status & _STA_UNSYNC:
        return warning(
            "clock",
            "no time service keeps it right, as far as the kernel knows",
            "a clock that is synchronised: keys expire and timers are due by it",
            "timedatectl set-ntp true, or: apt install chrony; in a container: on its host",
            synchronised=False,
        )
    found = f"synchronised, wrong by {error_us / 1000:.0f} ms at most"
    return ok("clock", found, synchronised=True, error_us=error_us)


def _ask() -> tuple[int, int, int]:
    libc = ctypes.CDLL(None, use_errno=True)
    timex = ctypes.create_string_buffer(_ROOM_BYTES)  # modes = 0: only read
    state = int(libc.adjtimex(timex))
    if state < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    _, _, _, error_us, _, status = _TIMEX.unpack_from(timex)
    return state, status, error_us

"""Whether what is freed is kept."""

import ctypes

import pytest

from quorate.storage.memory import freed_memory_kept, return_freed_memory, return_large_blocks

MB = 1 << 20


class Glibc:
    """Notes what it is told."""

    told: list[tuple[int, int]]

    def __init__(self, _name: object) -> None:
        """It is the process's own."""

    def mallopt(self, parameter: int, size: int) -> int:
        self.told.append((parameter, size))
        return 1

    def malloc_trim(self, pad: int) -> int:
        self.told.append((0, pad))
        return 1


class Other:
    """Another library."""

    def __init__(self, _name: object) -> None:
        """It knows no such function."""


def test_glibc_is_told_to_keep_it_as_long_as_anybody_wants_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", Glibc)
    monkeypatch.setattr(Glibc, "told", [], raising=False)
    with freed_memory_kept():
        with freed_memory_kept():
            pass
        assert Glibc.told == [(-3, 32 * MB), (-1, 128 * MB)]
    assert Glibc.told[2:] == [(-3, 2 * MB), (-1, 4 * MB)]


def test_it_takes_what_it_is_told() -> None:
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    if tell is None:
        pytest.skip("not glibc")
    assert tell(-3, 32 * MB), "the largest that it takes"
    with freed_memory_kept():
        pass


def test_another_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", Other)
    with freed_memory_kept():
        pass
    return_large_blocks()
    return_freed_memory()


def test_large_blocks_go_back_at_once_unless_they_are_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", Glibc)
    monkeypatch.setattr(Glibc, "told", [], raising=False)
    with freed_memory_kept():
        return_large_blocks()
        assert Glibc.told == [(-3, 32 * MB), (-1, 128 * MB)]
    Glibc.told.clear()
    return_large_blocks()
    assert Glibc.told == [(-3, 2 * MB), (-1, 4 * MB)]
    return_freed_memory()
    assert Glibc.told[2:] == [(0, 0)]

"""What a check has found: a judgement, what was measured, what was expected, and what to do."""

import enum
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

__all__ = ["Finding", "Level", "Verdict", "ok", "problem", "unknown", "verdict", "warning"]


class Level(enum.StrEnum):
    """How a finding is judged."""

    OK = "ok"
    WARNING = "warning"
    """It works, and is worth a look."""
    PROBLEM = "problem"
    """It does not work, or will not for long."""
    UNKNOWN = "unknown"
    """The check could not be made."""


@attrs.frozen
class Finding:
    """One finding.

    Args:
        check: what was looked at, in a word or two; several findings may share it.
        level: the judgement.
        found: what was measured, in words.
        expected: what would be right; empty if it is.
        remedy: what to do, or what to type; empty if nothing.
        figures: what was measured, for programs.
    """

    check: str
    level: Level
    found: str
    expected: str = ""
    remedy: str = ""
    figures: Mapping[str, Any] = attrs.field(factory=dict[str, Any])


def ok(check: str, found: str, **figures: object) -> Finding:
    """Return a finding about which nothing has to be done."""
    return Finding(check, Level.OK, found, figures=figures)


def warning(check: str, found: str, expected: str, remedy: str = "", **figures: object) -> Finding:
    """Return a finding that is worth a look."""
    return Finding(check, Level.WARNING, found, expected, remedy, figures)


def problem(check: str, found: str, expected: str, remedy: str = "", **figures: object) -> Finding:
    """Return a finding that has to be mended."""
    return Finding(check, Level.PROBLEM, found, expected, remedy, figures)


def unknown(check: str, found: str, expected: str, remedy: str = "", **figures: object) -> Finding:
    """Return that a check could not be made, and why."""
    return Finding(check, Level.UNKNOWN, found, expected, remedy, figures)


class Verdict(enum.IntEnum):
    """The verdict on all findings; also the exit status of `quorate doctor`."""

    WELL = 0
    PROBLEMS = 1
    UNSEEN = 2


def verdict(findings: Iterable[Finding]) -> Verdict:
    """Judge all findings: a problem counts more than a check that could not be made."""
    levels = {one.level for one in findings}
    if Level.PROBLEM in levels:
        return Verdict.PROBLEMS
    return Verdict.UNSEEN if Level.UNKNOWN in levels else Verdict.WELL

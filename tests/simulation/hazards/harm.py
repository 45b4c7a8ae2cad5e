"""Describes the harm that a schedule has done: what a user would lose."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from quorate.errors import SafetyViolationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.simulation import Ledger, World

LOST = "acknowledged and lost"
DIVERGED = "states differ"
STOPPED = "stopped before losing committed entries"


def harm(stage: World[Ledger]) -> list[str]:
    """Return descriptions of the harm, after the cluster has come to rest."""
    return [*_lost(stage), *_diverged(stage), *_stopped(stage)]


def _lost(stage: World[Ledger]) -> Iterator[str]:
    """Return acknowledged commands that a running member with tables has not applied."""
    for i, host in stage.hosts.items():
        if host.member is not None and not host.config.own.witness:
            for payload in stage.acked:
                if payload not in host.service.payloads:
                    yield f"{LOST}: {payload[:20]!r} at member {i}"


def _diverged(stage: World[Ledger]) -> Iterator[str]:
    """Return two services, dead or alive, with neither one a prefix of the other."""
    states = sorted((service.payloads for service in stage.services), key=len)
    longest = states[-1]
    for state in states:
        if state != longest[: len(state)]:
            yield f"{DIVERGED}: {_short(state)} and {_short(longest)}"


def _stopped(stage: World[Ledger]) -> Iterator[str]:
    for i, failure in stage.failures.items():
        if _holds(failure, SafetyViolationError):
            yield f"{STOPPED}: member {i}"


def _short(state: list[bytes]) -> list[bytes]:
    return [payload[:8] for payload in state]


def _holds(failure: BaseException, kind: type[BaseException]) -> bool:
    if isinstance(failure, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", failure)
        return any(_holds(each, kind) for each in group.exceptions)
    return isinstance(failure, kind)

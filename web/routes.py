"""What each path of the web port answers.

- ``/metrics``: figures for Prometheus
- ``/healthz``: 200 while the member runs and nothing of it is damaged
- ``/readyz``: 200 if a linearizable read succeeds here
- ``/status``: what the member reports of itself, as JSON
- ``/events``: live events of all members (server-sent events)
- ``/trace?seconds=30``: the same as a recording, for a download
- ``/``: the page
- ``/static/NAME``: its files
"""

from __future__ import annotations

import re
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import trio

from ..metrics.exposition import (
    CONTENT_TYPE,
    OPENMETRICS_CONTENT_TYPE,
    exposition,
    wants_openmetrics,
)
from ..transport.strangers import OnceLog
from .answers import Answer, Asked, Stream, as_json, text
from .guard import shown_untrusted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from ..metrics import Family
    from ..node import NodeStatus
    from ..transport import Audit
    from .files import PageFiles
    from .guard import Guard
    from .readiness import Readiness
    from .sse import LiveEvents

MOST_TRACE_SECONDS: Final = 600
"""Longest recording. Shorter: a slow trouble does not fit. Longer: one download keeps one of the
few places for longer."""

WRONG_SECONDS: Final = 1.0
"""How long the answer to a wrong token waits. Shorter: more can be tried. Longer: a typing error
costs a person more time."""

SHARED_SECONDS: Final = 1.0
"""How long a scrape is good for the next one. Shorter: many monitors take time from clients.
Longer: figures are older than they seem."""

NO_STORE: Final = ("cache-control", "no-store")


class Routes:
    """Answers requests.

    Args:
        guard: judges who may look.
        status: describes the member now, with rates and quantiles.
        health: describes the member now.
        families: returns the figures of the member.
        readiness: makes a read.
        events: of all members.
        files: of the page.
        name: for the files of recordings.
        audit: takes note of wrong tokens.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        status: Callable[[], dict[str, object]],
        health: Callable[[], NodeStatus],
        families: Callable[[], Iterable[Family]],
        readiness: Readiness,
        events: LiveEvents,
        files: PageFiles,
        name: str,
        audit: Audit,
    ) -> None:
        self._guard = guard
        self._status = status
        self._health = health
        self._families = families
        self._readiness = readiness
        self._events = events
        self._files = files
        self._name = name
        self._audit = audit
        self._warn = OnceLog().warn
        self._scraped: dict[bool, tuple[float, bytes]] = {}  # by format: until when, what
        self._open: dict[str, Callable[[Asked], Awaitable[Answer]]] = {
            "/healthz": self._healthz,
            "/readyz": self._readyz,
        }
        self._guarded: dict[str, Callable[[Asked], Awaitable[Answer | Stream]]] = {
            "/": self._page,
            "/metrics": self._scrape,
            "/status": self._tell,
            "/events": self._live,
            "/trace": self._trace,
        }

    async def answer(self, asked: Asked) -> Answer | Stream:
        """Answer a request.

        Raises:
            ValueError: something in it is out of range.
        """
        # Probes of orchestrators have no token, and learn one word from these.
        if (probe := self._open.get(asked.path)) is not None:
            return await probe(asked)
        if (refusal := self._guard.refusal(asked)) is not None:
            if refusal.status == HTTPStatus.UNAUTHORIZED:
                await self._note_wrong_token(asked)
            return refusal
        if asked.path.startswith("/static/"):
            name = asked.path.removeprefix("/static/")
            return self._files.answer(name, asked.headers.get("if-none-match", ""))
        if (route := self._guarded.get(asked.path)) is not None:
            return await route(asked)
        return text(404, f"there is no {asked.path!r:.100}: expected {', '.join(self._paths)}")

    async def _note_wrong_token(self, asked: Asked) -> None:
        """Make it known that somebody tries tokens, and slow them down."""
        # A browser asks without a token first; that is no attempt.
        if not shown_untrusted(asked.headers):
            return
        self._audit.note("web_refused", of=f"web {asked.host}", address=asked.host)
        self._warn(f"web port: {asked.host} has shown a wrong token")
        await trio.sleep(WRONG_SECONDS)

    @property
    def _paths(self) -> list[str]:
        return sorted([*self._open, *self._guarded])

    async def _healthz(self, _asked: Asked) -> Answer:
        damage = self._health().damage
        return text(503, damage) if damage else text(200, "healthy")

    async def _readyz(self, _asked: Asked) -> Answer:
        return await self._readiness.answer()

    async def _page(self, asked: Asked) -> Answer:
        return self._files.answer("index.html", asked.headers.get("if-none-match", ""))

    async def _scrape(self, asked: Asked) -> Answer:
        openmetrics = wants_openmetrics(asked.headers.get("accept", ""))
        until, body = self._scraped.get(openmetrics, (float("-inf"), b""))
        if trio.current_time() >= until:
            body = exposition(self._families(), openmetrics=openmetrics).encode()
            self._scraped[openmetrics] = trio.current_time() + SHARED_SECONDS, body
        kind = OPENMETRICS_CONTENT_TYPE if openmetrics else CONTENT_TYPE
        return Answer(200, body, kind, (NO_STORE,))

    async def _tell(self, _asked: Asked) -> Answer:
        return as_json(200, self._status())

    async def _live(self, _asked: Asked) -> Stream:
        return Stream("text/event-stream", self._events.server_sent)

    async def _trace(self, asked: Asked) -> Stream:
        words = asked.query.get("seconds", "30")
        seconds = int(words) if re.fullmatch("[0-9]{1,3}", words) else 0
        if not 0 < seconds <= MOST_TRACE_SECONDS:
            raise ValueError(f"seconds={words:.20}: expected 1 to {MOST_TRACE_SECONDS}")
        name = ("content-disposition", f'attachment; filename="{self._name}.qtrace"')
        write = partial(self._events.recording, seconds=seconds)
        return Stream("application/jsonl", write, (name,))

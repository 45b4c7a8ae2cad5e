"""Chromium for tests and for pictures, and pages that show a recording without a server."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from collections.abc import Generator

    from playwright.sync_api import Browser, Page, Route

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
PAGE: Final = Path(__file__).parents[3] / "web" / "page"
PLACE: Final = "http://recording.invalid/"
POLICY: Final = "default-src 'self'; frame-ancestors 'none'"


@contextmanager
def chromium() -> Generator[Browser]:
    """Run Chromium for the duration of a block."""
    with sync_playwright() as playwright:
        # A container has no user namespace, which Chromium's sandbox needs.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def watched(page: Page) -> list[str]:
    """Return a list to which everything that goes wrong in a page is added."""
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(f"{error.name}: {error.message}"))
    page.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
    page.on(
        "request",
        lambda asked: wrong.append(asked.url) if elsewhere(asked.url, page.url) else None,
    )
    return wrong


def elsewhere(url: str, home: str) -> bool:
    """Whether an address is of another server than the page."""
    return home.startswith("http") and urlsplit(url).netloc != urlsplit(home).netloc


def show_recording(page: Page, recording: bytes) -> None:
    """Open the page with a recording, answered by this process and under the page's policy."""

    def answer(route: Route) -> None:
        name = urlsplit(route.request.url).path.removeprefix("/")
        if name == "recording":
            route.fulfill(body=recording, headers={"content-security-policy": POLICY})
            return
        file = PAGE / (name.removeprefix("static/") or "index.html")
        body = file.read_bytes().replace(b'data-source="live"', b'data-source="recording"')
        kind = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
        headers = {
            "content-security-policy": POLICY,
            "content-type": kind.get(file.suffix, "image/svg+xml"),
        }
        route.fulfill(body=body, headers=headers)

    page.route(f"{PLACE}**", answer)
    page.goto(PLACE)
    page.locator("#list li").first.wait_for()

"""A browser for each module, and a page for each test, in which nothing may go wrong."""

from collections.abc import Generator

import pytest
from playwright.sync_api import Browser, Page

from .chromium import chromium, watched


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    """One browser: each test has pages of its own."""
    with chromium() as found:
        yield found


@pytest.fixture
def page(browser: Browser) -> Generator[Page]:
    """A page of the size of a laptop's screen."""
    with browser.new_page(viewport={"width": 1280, "height": 720}) as found:
        wrong = watched(found)
        yield found
        assert wrong == []

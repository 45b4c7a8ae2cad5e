"""Make the picture at the top of README.md: `make picture`.

A cluster of three members serves writers. Its leader is killed, and the page of another member
shows the election that followed.
"""

import re
import tempfile
from pathlib import Path
from typing import Final

from playwright.sync_api import Page, expect

from tests.support.real import MEMBERS, RealCluster

from .browser.chromium import chromium
from .browser.writers import load

PICTURE: Final = Path(__file__).parents[2] / "docs" / "images" / "live-view.png"
WEB_PORT_OFFSET: Final = 1001
BEFORE_MS: Final = 14_000
"""How long the page watches before the leader dies: the charts need something to show."""


def wait_for_other_leader(page: Page, leader: int) -> None:
    """Wait until the page shows that another member leads, and that the old one is silent."""
    expect(page.locator("#leader")).to_have_text(
        re.compile(rf"^Member [^{leader}] leads"), timeout=20_000
    )
    row = page.locator(f'.row[data-member="{leader}"]')
    expect(row.locator(".state")).to_have_text("not heard")
    # The markers are still on their way.
    page.wait_for_timeout(3000)


def main() -> None:
    """Make the picture."""
    with (
        tempfile.TemporaryDirectory() as folder,
        RealCluster.run(Path(folder) / "cluster") as cluster,
        chromium() as browser,
        load(3 * cluster.ports),
    ):
        leader = cluster.leader
        port = cluster.ports[(leader + 1) % MEMBERS] + WEB_PORT_OFFSET
        page = browser.new_page(
            viewport={"width": 1280, "height": 760}, device_scale_factor=2, color_scheme="light"
        )
        page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_timeout(BEFORE_MS)
        cluster.kill(leader)
        wait_for_other_leader(page, leader)
        page.get_by_role("button", name="last election").click()
        page.mouse.move(0, 0)
        page.wait_for_timeout(300)
        page.screenshot(path=PICTURE)


if __name__ == "__main__":
    main()

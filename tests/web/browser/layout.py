"""Whether a page can be read at its width."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from playwright.sync_api import Page

WIDTHS: Final = ((400, 800), (1280, 720), (1600, 1000))
"""A telephone, a laptop, a screen on a desk."""

LEAST_PIXELS: Final = 11
"""Smaller letters can't be read at arm's length."""

_FAULTS: Final = """least => {
    const faults = [], wide = document.documentElement.scrollWidth;
    if (wide > innerWidth) faults.push(`the page is ${wide} px wide`);
    const texts = [...document.querySelectorAll("header *")].filter((each) =>
        !each.children.length && each.textContent.trim() && each.offsetParent);
    const boxes = texts.map((each) => {
        // Of the letters, not of the block that they are in.
        const range = document.createRange();
        range.selectNodeContents(each);
        const {left, right, top, bottom} = range.getBoundingClientRect();
        return {left, right, top, bottom, text: each.textContent};
    });
    for (const [i, a] of boxes.entries()) {
        const size = parseFloat(getComputedStyle(texts[i]).fontSize);
        if (size < least) faults.push(`${a.text}: ${size} px high`);
        if (a.left < 0 || a.right > innerWidth + 0.5) faults.push(`${a.text}: outside`);
        for (const b of boxes.slice(i + 1)) {
            const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
            const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
            // Lines may touch: letters do not fill theirs.
            if (across > 1 && down > 4) faults.push(`${a.text}: over ${b.text}`);
        }
    }
    return faults;
}"""


def reads_well(page: Page) -> list[str]:
    """Return what is wrong: scrolling to the side, words of the header cut, small, or overlaid."""
    faults: list[str] = page.evaluate(_FAULTS, LEAST_PIXELS)
    return faults

"""The colours that pages share: read on light and dark paper, and without red, green or blue."""

import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

from quorate import web

STYLE = (Path(web.__file__).parent / "page" / "style.css").read_text(encoding="utf-8")
PAPERS = ("light", "dark")

SEEN_AS = {
    "all cones": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    # Machado, Oliveira and Fernandes 2009, severity 1: on linear red, green and blue.
    "no red": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "no green": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "no blue": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}
APART = 0.07  # in OKLab, where about 0.02 is just seen between two areas that touch

Three = tuple[float, ...]


def colours(paper: str) -> dict[str, str]:
    """The colours on one paper, by variable."""
    light, dark = STYLE.split("@media (prefers-color-scheme: dark)")
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", light))
    return found if paper == "light" else dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", dark))


def linear(colour: str) -> Three:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return tuple(one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)


def times(matrix: tuple[Three, ...], vector: Three) -> Three:
    return tuple(sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix)


def contrast(one: str, other: str) -> float:
    """The contrast of WCAG 2."""
    dark, light = sorted(
        sum(times(((0.2126, 0.7152, 0.0722),), linear(each))) for each in (one, other)
    )
    return (light + 0.05) / (dark + 0.05)


def lab(rgb: Three) -> Three:
    """OKLab, of linear red, green and blue."""
    cones = times(
        ((0.4122, 0.5363, 0.0514), (0.2119, 0.6807, 0.1074), (0.0883, 0.2817, 0.6300)), rgb
    )
    roots = tuple(max(one, 0.0) ** (1 / 3) for one in cones)
    return times(
        ((0.2105, 0.7936, -0.0041), (1.9780, -2.4286, 0.4506), (0.0259, 0.7828, -0.8087)), roots
    )


def pairs(names: list[str], paper: str) -> Iterator[tuple[str, float]]:
    """How far each pair of colours is apart, by each kind of eye."""
    found = colours(paper)
    for eyes, matrix in SEEN_AS.items():
        seen = {
            name: lab(tuple(min(max(one, 0.0), 1.0) for one in times(matrix, linear(found[name]))))
            for name in names
        }
        for one, other in combinations(names, 2):
            apart = sum((a - b) ** 2 for a, b in zip(seen[one], seen[other], strict=True)) ** 0.5
            yield f"{one} and {other}, {eyes}, {paper}", apart


def test_each_colour_stands_for_both_papers() -> None:
    light, dark = map(colours, PAPERS)
    assert light.keys() == dark.keys()
    assert len(light) > 30


@pytest.mark.parametrize("paper", PAPERS)
def test_text_and_what_is_drawn_have_enough_contrast(paper: str) -> None:
    found = colours(paper)
    for ground in ("bg", "panel"):
        for name in ("ink", "ink2", "lead", "seek", "ballot", "rise", "join", "bad", "good"):
            assert contrast(found[name], found[ground]) > 4.5, (name, ground)
        for name, colour in found.items():
            if name.startswith("line-") or name in {"ink3", "follow"}:
                assert contrast(colour, found[ground]) > 3, (name, ground)
    for text, ground in (("on-lead", "lead-fill"), ("on-bad", "bad"), ("ink", "follow-fill")):
        assert contrast(found[text], found[ground]) > 4.5, (text, ground)
    for name in found:
        if name.endswith("-soft"):
            assert contrast(found["ink"], found[name]) > 4.5, name
    assert contrast(found["bad"], found["rise-fill"]) > 3  # lines upon an area


@pytest.mark.parametrize("paper", PAPERS)
def test_lines_can_be_told_apart(paper: str) -> None:
    names = [name for name in colours(paper) if name.startswith("line-")]
    assert len(names) == 6
    assert [what for what, apart in pairs(names, paper) if apart < APART] == []

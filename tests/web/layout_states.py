"""Draw the states of an election for the page: `python -m tests.web.layout_states`.

graphviz places the states and the edges of `EDGES`. This module draws them, so that the style
sheet of the page decides about colours and type. There are two drawings: a wide one, and a tall
one for telephones. Nearly every state has an edge back to INIT. The drawing has these, too, but
the page shows one only when a member takes it.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

from quorate.node.protocol.states import EDGES, State

ARROW: Final = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
    'markerHeight="7" orient="auto"><path d="M0 1 L7 4 L0 7 z"/></marker></defs>'
)
PAGE: Final = Path(__file__).parents[2] / "web" / "page"
WIDTH: Final = 96
HEIGHT: Final = 46
LONGEST: Final = 10
"""Letters in one line of a state's box."""

MARGIN: Final = 14
"""Around everything: markers of members stand out over the states' borders."""


def is_back(before: State, after: State) -> bool:
    """Whether this edge is one that nearly every state has: back to the beginning."""
    return after is State.INIT and before is not State.INIT


def placed(direction: str) -> dict[str, Any]:
    """Have `dot` place everything; `direction` is LR or TB."""
    gap = {"LR": "nodesep=.14; ranksep=.2", "TB": "nodesep=.12; ranksep=.36"}[direction]
    size = f"width={WIDTH / 72}, height={HEIGHT / 72}"
    lines = [
        f"digraph g {{ rankdir={direction}; {gap};",
        f"node [shape=box, fixedsize=true, {size}]",
    ]
    lines += [f'{state.name} [label=""];' for state in State]
    lines += [
        f"{before.name} -> {after.name};"
        for before, following in EDGES.items()
        for after in sorted(following)
        if not is_back(before, after)
    ]
    text = "\n".join([*lines, "}"])
    made = subprocess.run(["dot", "-Tjson"], input=text, capture_output=True, text=True, check=True)
    graph: dict[str, Any] = json.loads(made.stdout)
    return graph


def drawn(direction: str) -> str:
    """Return one drawing as SVG, without colours."""
    graph = placed(direction)
    _, _, width, height = map(float, graph["bb"].split(","))

    def point(text: str) -> tuple[float, float]:
        x, y = map(float, text.split(","))
        return round(x + MARGIN, 1), round(height - y + MARGIN, 1)

    at = {each["name"]: point(each["pos"]) for each in graph["objects"]}
    names = [each["name"] for each in graph["objects"]]
    paths = {
        (names[each["tail"]], names[each["head"]]): _curve(each["pos"], point)
        for each in graph["edges"]
    }
    size = f"{width + 2 * MARGIN:g} {height + 2 * MARGIN:g}"
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" class="states">']
    lines += [ARROW]
    for before, following in EDGES.items():
        for after in sorted(following):
            pair = (before.name, after.name)
            back = is_back(before, after) and pair not in paths
            path = _arc(at[pair[0]], at[pair[1]], direction) if back else paths[pair]
            kind = "edge back" if back else "edge"
            lines.append(
                f'<path class="{kind}" data-from="{pair[0]}" data-to="{pair[1]}" d="{path}"/>'
            )
    lines += [_state(name, *at[name]) for name in (state.name for state in State)]
    return "\n".join([*lines, "</svg>", ""])


def _curve(pos: str, point: Any) -> str:
    """Graphviz writes `e,END START C1 C2 P ...`: a Bézier curve, and where its arrow ends."""
    end, *points = pos.removeprefix("e,").split()
    start, *rest = [point(each) for each in points]
    line = " ".join(f"{x:g} {y:g}" for x, y in rest)
    return f"M{start[0]:g} {start[1]:g}C{line}L{' '.join(f'{n:g}' for n in point(end))}"


def _arc(start: tuple[float, float], end: tuple[float, float], direction: str) -> str:
    (x, y), (to_x, to_y) = start, end
    if direction == "LR":
        y, to_y, low = y + HEIGHT / 2, to_y + HEIGHT / 2, max(y, to_y) + 70
        return f"M{x:g} {y:g}C{x:g} {low:g} {to_x:g} {low:g} {to_x:g} {to_y:g}"
    x, to_x = x - WIDTH / 2, to_x - WIDTH / 2
    left = max(min(x, to_x) - 60, 2)
    return f"M{x:g} {y:g}C{left:g} {y:g} {left:g} {to_y:g} {to_x:g} {to_y:g}"


def _state(name: str, x: float, y: float) -> str:
    side, _, work = name.partition("_")
    box = f'<rect x="{-WIDTH / 2:g}" y="{-HEIGHT / 2:g}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
    above = side if side in {"LEADER", "FOLLOWER", "CANDIDATE"} else ""
    first, _, second = (work if above else name).partition("_")
    # A word that does not fit next to another stands below it.
    split = second and len(first) + len(second) > LONGEST
    lines = [first, second] if split else [work if above else name]
    base = (2.5 if split else 10) if above else 4.5
    text = f'<text class="side" y="{-10.5 if split else -5}">{above}</text>' if above else ""
    text += "".join(f'<text y="{base + 12 * n:g}">{line}</text>' for n, line in enumerate(lines))
    return (
        f'<g class="state" data-state="{name}" transform="translate({x:g} {y:g})">{box}{text}</g>'
    )


def main() -> None:
    """Write both drawings into the page's folder."""
    (PAGE / "states.svg").write_text(drawn("LR"))
    (PAGE / "states-tall.svg").write_text(drawn("TB"))


if __name__ == "__main__":
    main()

"""Writes the tables of NOTEBOOK.md and docs/performance.md from the results of the benches.

    python -m bench.report.tables [--check]

The text between `<!-- figures: NAME -->` and `<!-- end -->` is generated. With --check, nothing is
written, and exit status 1 means that a document is out of date.
"""

import re
import sys
from pathlib import Path
from typing import Final

import attrs

from bench.report.goals import goals
from bench.report.results import FIGURES, Results, read
from bench.report.sections import PICTURES, SECTIONS, TOGETHER

_HERE: Final = Path(__file__).parents[1]
DOCUMENTS: Final = {
    _HERE / "NOTEBOOK.md": "figures/",
    _HERE.parent / "docs" / "performance.md": "../bench/figures/",
}
"""The documents, and the path from each to the plots."""

_PLACE: Final = re.compile(r"(<!-- figures: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def circumstances(results: Results) -> str:
    """Return date, commit and machine of the figures, in a sentence."""
    at, settings = results.circumstances, results.settings
    version = f"{at['quorate']} ({at['revision']})" if at.get("revision") else str(at["quorate"])
    words = [f"Version {version}"]
    if "day" in at:
        words.append(str(at["day"]))
    words.append(f"{at['processors']} processors" + _of(at.get("processor")))
    words.append(f"Python {at['python']}")
    if "synced_writes_per_second" in at:
        words.append(f"a disk of {at['synced_writes_per_second']:,} synced appends a second")
    if "load_before" in at:
        words.append(f"load {at['load_before']:.1f} before")
    told = [f"{name.replace('_', ' ')} {value}" for name, value in settings.items() if value]
    return "; ".join((", ".join(words), *told)) + "."


def _of(processor: object) -> str:
    return f" ({processor})" if processor else ""


def section(results: Results, plots: str = "figures/") -> str:
    """Return the part of a document about a bench."""
    kind = next(kind for kind in SECTIONS if results.bench in TOGETHER.get(kind, (kind,)))
    parts = [circumstances(results), SECTIONS[kind](results)]
    if kind in PICTURES:
        parts.append(f"![{PICTURES[kind]}]({plots}{kind}.svg)")
    return "\n\n".join(parts)


def gathered(kind: str, directory: Path) -> Results | None:
    """Return the results for a table, which may combine several benches."""
    found = [one for name in TOGETHER.get(kind, (kind,)) if (one := read(name, directory))]
    if kind not in TOGETHER or not found:
        return found[0] if found else None
    rows = [
        {**row, "load_before": one.circumstances["load_before"]}
        for one in found
        for row in one.rows
    ]
    facts = {k: v for k, v in found[0].circumstances.items() if k != "load_before"}
    return attrs.evolve(found[0], circumstances=facts, rows=rows)


def fill_in(text: str, plots: str, directory: Path = FIGURES) -> str:
    """Fill the results into a document; a place stays unchanged if its bench was never run."""

    def place(found: re.Match[str]) -> str:
        if found[2] == "goals":
            return f"{found[1]}{goals(directory)}\n{found[3]}"
        results = gathered(found[2], directory)
        return f"{found[1]}{section(results, plots)}\n{found[3]}" if results else found[0]

    return _PLACE.sub(place, text)


def main() -> int:
    """Write the documents, or only compare them."""
    check, differ = "--check" in sys.argv[1:], False
    for document, plots in DOCUMENTS.items():
        old = document.read_text(encoding="utf-8")
        new = fill_in(old, plots)
        differ |= new != old
        if not check:
            document.write_text(new, encoding="utf-8")
    return int(check and differ)


if __name__ == "__main__":
    sys.exit(main())

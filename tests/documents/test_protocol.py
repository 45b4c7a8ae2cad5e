"""docs/protocol.md has every rule that the tree cites, and each rule names files that exist."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "protocol.md").read_text()
ROWS = re.findall(
    r"^\| (?:<a id=\"[a-z0-9-]+\"></a>)?([IHFL]-?\d+) \| (.*) \|$", DOCUMENT, re.MULTILINE
)
RULES = {name.replace("-", ""): text for name, text in ROWS}
CITED = re.compile(r"\bI-\d+\b|\b[HF]-\d+\b|\b[HF]\d{1,2}\b")
IN_CONTEXT = re.compile(
    r"hazard|protocol|\bfix|F\d+ (?:is|alone|taken)|WITHOUT_F|H\d+-", re.IGNORECASE
)


def citations() -> dict[str, set[str]]:
    """The files of the tree, and the numbers of rules that each cites."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.c", "*.md", "*.pml", "*.txt"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    found: dict[str, set[str]] = {}
    for name in listed:
        file = ROOT / name
        if not file.is_file():  # it is deleted, and not committed yet
            continue
        lines = [line for line in file.read_text().splitlines() if IN_CONTEXT.search(line)]
        found[name] = {number.replace("-", "") for number in CITED.findall("\n".join(lines))}
    return found


def test_every_number_that_is_cited_is_a_rule() -> None:
    cited = citations()
    assert sum(bool(numbers) for numbers in cited.values()) > 20  # they are found at all
    unknown = {
        name: sorted(numbers - set(RULES) - {"F5"})  # there is no F5, and one text says so
        for name, numbers in cited.items()
        if numbers - set(RULES) - {"F5"}
    }
    assert unknown == {}


def test_every_rule_names_files_that_exist() -> None:
    assert len(RULES) > 70
    for name, text in RULES.items():
        files = re.findall(r"`([\w.]+(?:/[\w.]+)+)`", text)
        assert files, f"{name} names no file"
        missing = [file for file in files if not (ROOT / file).exists()]
        assert missing == [], f"{name}: say where it is held now"


def test_a_number_stands_for_one_rule() -> None:
    assert len(RULES) == len(ROWS)

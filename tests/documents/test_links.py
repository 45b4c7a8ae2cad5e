"""Every link of every document leads to a file, and to a heading or an anchor, that exists."""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = subprocess.run(
    ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.split()
LINK = re.compile(r"\]\(([^()\s]+)\)")
PAGES = ("docs/", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
ROOMS = (
    "node|storage|transport|keyvalue|partitions|histories|metrics|recordings|web|simulation|pipeline|quorate|"
    "tests|bench|examples|contrib|deploy"
)
PATH = re.compile(rf"`((?:{ROOMS}|docs)/[\w./-]*)`")


def prose(document: Path) -> str:
    """A document without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(document: Path) -> set[str]:
    """The anchors of a document: those of its headings, as GitHub makes them, and named ones."""
    text = prose(document)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", re.sub(r"\]\(.*?\)", "", title)) for title in titles)
    return {title.strip().lower().replace(" ", "-") for title in plain} | set(
        re.findall(r'<a id="([^"]+)">', text)
    )


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if (ROOT / name).is_file()])
def test_every_link_of_a_document_leads_somewhere(name: str) -> None:
    document = ROOT / name
    broken: list[str] = []
    for target in LINK.findall(prose(document)):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        file = (document.parent / path).resolve() if path else document
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name.startswith(PAGES)])
def test_every_file_that_a_document_names_exists(name: str) -> None:
    named = PATH.findall(prose(ROOT / name))
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_links_are_found_at_all() -> None:
    assert len(LINK.findall((ROOT / "README.md").read_text())) > 20


def test_the_map_is_read_in_ten_minutes() -> None:
    words = (ROOT / "ARCHITECTURE.md").read_text().split()
    assert sum(any(letter.isalnum() for letter in word) for word in words) <= 1500

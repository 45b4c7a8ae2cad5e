"""What the documentation site adds to the pages in docs/.

- Pages that lie elsewhere in the tree: README.md is the home page, ARCHITECTURE.md is
  architecture.md, and so on (`ELSEWHERE`). So each text exists once, and reads well in the tree
  too.
- The plots of the benches, for the pages that show them.
- Generated parts of the reference: `generated.py` writes where a page has
  `<!-- generated: NAME -->`.
- Links. A page links to files as they lie in the tree. Here a link to a page of the site becomes a
  link within the site, and a link to any other file of the tree becomes plain text. A link to a
  file that does not exist stays, and `mkdocs build --strict` fails at it.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from generated import PARTS
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[1]
ELSEWHERE: Final = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "bench/NOTEBOOK.md": "notebook.md",
}
"""Pages by their place in the tree, and their place in the site."""

_FIGURES: Final = "bench/figures/"
_LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_GENERATED: Final = re.compile(r"<!-- generated: ([a-z-]+) -->")
_ROLE: Final = re.compile(r":[a-z]+: ?<code>[~.]?")
_PATH: Final = re.compile(r"(?<=<code>)[\w.-]+(?:/[\w.-]+)+(?=</code>)")
_FENCE: Final = re.compile(r"^( *```.*?^ *```)$", re.MULTILINE | re.DOTALL)


def _is_about_pages(record: logging.LogRecord) -> bool:
    """Whether a line of griffe's is about names that a page shows, not about a compiled module."""
    return "/native/" not in record.getMessage()


# griffe reads all of quorate, and can't see what a compiled module holds.
logging.getLogger("mkdocs.plugins.griffe").addFilter(_is_about_pages)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and plots that lie elsewhere in the tree."""
    for place, uri in ELSEWHERE.items():
        text = (ROOT / place).read_text(encoding="utf-8")
        files.append(File.generated(config, uri, content=text))
    for plot in sorted((ROOT / _FIGURES).glob("*.svg")):
        files.append(File.generated(config, f"figures/{plot.name}", abs_src_path=str(plot)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write the generated parts of a page, and make its links those of the site."""
    del config, files
    uri = page.file.src_uri
    markdown = _GENERATED.sub(lambda found: PARTS[found[1]](), markdown)
    pieces = _FENCE.split(markdown)  # every second one is a block of code
    pieces[::2] = [_LINK.sub(lambda found: _link(found, uri), piece) for piece in pieces[::2]]
    return "".join(pieces)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mend two things that narrow columns and docstrings need.

    A role of reStructuredText, `:class:`, is shown as the code that it names. A path may be broken
    behind each slash.
    """
    del page, config, files
    html = _ROLE.sub("<code>", html)
    return _PATH.sub(lambda found: found[0].replace("/", "/<wbr>"), html)


def _link(found: re.Match[str], uri: str) -> str:
    """One link of the page `uri`, as the site needs it."""
    image, text, target = found.groups()
    path, anchor, fragment = target.partition("#")
    if not path or re.match(r"[a-z]+:", path):
        return found[0]
    place = posixpath.normpath(posixpath.join(posixpath.dirname(_place(uri)), path))
    inside = _uri(place)
    if inside is not None:
        relative = posixpath.relpath(inside, posixpath.dirname(uri) or ".")
        return f"{image}[{text}]({relative}{anchor}{fragment})"
    return text if (ROOT / place).exists() else found[0]


def _place(uri: str) -> str:
    """Where in the tree a page of the site lies."""
    return next((place for place, page in ELSEWHERE.items() if page == uri), f"docs/{uri}")


def _uri(place: str) -> str | None:
    """Where in the site a file of the tree is; None if it is no part of it."""
    if place in ELSEWHERE:
        return ELSEWHERE[place]
    if place.startswith(_FIGURES):
        return place.removeprefix("bench/")
    if place.startswith("docs/") and place.endswith((".md", ".svg", ".png")):
        return place.removeprefix("docs/")
    return None

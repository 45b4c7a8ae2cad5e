"""Shows a recording in the page: from a server on this machine, or as one file that has all.

The page asks for ``/recording`` if its document says that it shows one. In the single file the
recording, the styles and the scripts stand in the document, since a browser that opened a file
loads no other files.
"""

from __future__ import annotations

import base64
import json
import re
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from ..recordings.reading import open_lines, open_recording_untrusted
from .answers import Answer, Asked, Stream, text
from .files import FOLDER, PageFiles
from .guard import Guard

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

PIECE_BYTES: Final = 256 << 10
"""Sent at once. Smaller: more calls. Larger: more memory for each browser."""

_LIVE: Final = 'data-source="live"'
_RECORDING: Final = 'data-source="recording"'
_IMPORT: Final = re.compile(r'(\bfrom\s*|\bimport\s*)"\./([\w.-]+\.js)"')
_STYLE: Final = re.compile(r'<link rel="stylesheet" href="static/([\w.-]+)">')
_SCRIPT: Final = re.compile(r'<script src="static/([\w.-]+)" defer></script>')
_MODULE: Final = re.compile(r'<script src="static/([\w.-]+)" type="module"></script>')
_ICON: Final = re.compile(r'href="static/([\w.-]+\.svg)"')
_DRAWINGS: Final = ("states", "states-tall")


class Viewer:
    """Answers the requests of a page that shows a recording.

    Args:
        path: of the recording.
        folder: of the page's files.
    """

    def __init__(self, path: Path, folder: Path = FOLDER) -> None:
        self._path = path
        self._folder = folder
        self._files = PageFiles(folder)
        self._guard = Guard(local=True)

    async def answer(self, asked: Asked) -> Answer | Stream:
        """Answer a request."""
        await trio.lowlevel.checkpoint()
        # Else a page from elsewhere, whose name is made to mean this machine, could read all.
        if refused := self._guard.refusal(asked):
            return refused
        if asked.path == "/":
            document = (self._folder / "index.html").read_text(encoding="utf-8")
            body = _once(document, _LIVE, _RECORDING).encode()
            return Answer(200, body, "text/html; charset=utf-8")
        if asked.path == "/recording":
            return Stream("application/jsonl", self._send)
        if asked.path.startswith("/static/"):
            name = asked.path.removeprefix("/static/")
            return self._files.answer(name, asked.headers.get("if-none-match", ""))
        return text(404, f"there is no {asked.path!r:.100}: expected / or /recording")

    async def _send(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Send the recording as plain lines."""
        with open_lines(self._path) as lines:
            while data := lines.read(PIECE_BYTES):
                await send(data)


def single_file_untrusted(path: Path, folder: Path = FOLDER) -> Iterator[str]:
    """Yield the pieces of one document that shows a recording and needs nothing else.

    Args:
        path: of the recording.
        folder: of the page's files.

    Raises:
        RecordingError: the file is no recording, or has a line that is no event.
        OSError: it can't be read.
    """
    document = (folder / "index.html").read_text(encoding="utf-8")
    document = _once(document, _LIVE, _RECORDING)
    read = partial(_read, folder)
    document = _STYLE.sub(lambda found: f"<style>\n{read(found[1])}</style>", document)
    document = _SCRIPT.sub(lambda found: f"<script>\n{read(found[1])}</script>", document)
    document = _ICON.sub(
        lambda found: f'href="{_as_url(read(found[1]), "image/svg+xml")}"', document
    )
    document = _MODULE.sub(lambda found: _modules(folder, found[1]), document)
    assert '"static/' not in document, "index.html loads a file in a way that is not known here"
    start, end, rest = document.partition("</body>")
    yield start
    for name in _DRAWINGS:
        yield f'<template id="{name}-drawing">{read(f"{name}.svg")}</template>\n'
    yield '<script id="recording" type="application/jsonl">\n'
    with open_recording_untrusted(path) as recording:
        yield _harmless(recording.head.as_json())
        for event in recording.events:
            yield _harmless(event.as_json())
    yield "</script>\n" + end + rest


def _modules(folder: Path, main: str) -> str:
    """Return the scripts that load a module, and all those that it imports.

    A module in a document has no address to which ``./other.js`` could be relative. So each gets a
    name of its own, and a map says what stands for the names.
    """
    found: dict[str, str] = {}
    waiting = [main]
    while waiting:
        name = waiting.pop()
        if name not in found:
            code = _read(folder, name)
            waiting += [each[2] for each in _IMPORT.finditer(code)]
            found[name] = _as_url(_IMPORT.sub(r'\1"page/\2"', code), "text/javascript")
    names = {f"page/{name}": url for name, url in sorted(found.items())}
    return (
        f'<script type="importmap">{json.dumps({"imports": names})}</script>\n'
        f'<script type="module">import "page/{main}";</script>'
    )


def _as_url(content: str, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content.encode()).decode()}"


def _harmless(line: str) -> str:
    """Return a line of JSON in which nothing can end the script that it stands in."""
    return line.replace("<", "\\u003c") + "\n"


def _read(folder: Path, name: str) -> str:
    return (folder / name).read_text(encoding="utf-8")


def _once(document: str, old: str, new: str) -> str:
    assert document.count(old) == 1, f"index.html: expected {old!r} once"
    return document.replace(old, new)

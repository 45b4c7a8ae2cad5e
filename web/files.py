"""The files of the page, as browsers get them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

from .answers import Answer, text

FOLDER: Final = Path(__file__).parent / "page"

_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
_KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".txt": "text/plain; charset=utf-8",
}


class PageFiles:
    """Reads the files of a folder, and again when they have changed.

    Args:
        folder: of the files.
    """

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._read: dict[str, tuple[tuple[int, int], bytes, str]] = {}

    def answer(self, name: str, known: str = "") -> Answer:
        """Return a file; 304 if the browser knows it.

        Args:
            name: of the file, as the browser says.
            known: the browser's ``if-none-match``.
        """
        kind = _KINDS.get(Path(name).suffix)
        # A name that has to match holds no slash, and so leads nowhere else.
        if kind is None or not _NAME.fullmatch(name):
            return text(404, f"there is no file {name!r:.100}")
        try:
            found = (self._folder / name).stat()
            stamp = (found.st_mtime_ns, found.st_size)
            if name not in self._read or self._read[name][0] != stamp:
                # Some ten files of some ten KiB, read once: no thread is worth its while.
                body = (self._folder / name).read_bytes()
                tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
                self._read[name] = stamp, body, tag
        except OSError:
            return text(404, f"there is no file {name!r:.100}")
        _, body, tag = self._read[name]
        # Asked for each time, and sent only when it is new: a page of an older version would not
        # fit the events of this one.
        headers = (("etag", tag), ("cache-control", "no-cache"))
        if tag in {each.strip().removeprefix("W/") for each in known.split(",")}:
            return Answer(304, headers=headers)
        return Answer(200, body, kind, headers)

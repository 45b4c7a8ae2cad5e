"""Writes the parts of a bundle into one archive, the list of them first."""

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, cast

import attrs
import zstandard

from ..errors import UsageError

__all__ = ["ENDINGS", "MANIFEST", "Part", "manifest", "write_archive"]

ENDINGS: Final = (".tar.zst", ".tar.gz")
MANIFEST: Final = "manifest.json"
_MODE: Final = 0o600


@attrs.frozen
class Part:
    """A file of a bundle.

    Args:
        name: in the archive.
        what: it is, in words.
        data: its bytes.
    """

    name: str
    what: str
    data: bytes


def manifest(parts: Sequence[Part]) -> bytes:
    """Return the list of all parts, with sizes and checksums, as JSON."""
    rows = [
        {
            "name": part.name,
            "what": part.what,
            "bytes": len(part.data),
            "sha256": hashlib.sha256(part.data).hexdigest(),
        }
        for part in parts
    ]
    return json.dumps({"files": rows}, indent=2).encode()


def write_archive(to: Path, parts: Sequence[Part], made_s: float) -> None:
    """Write a new archive, which only its owner may read.

    Args:
        to: its ending says how it is compressed.
        parts: all files.
        made_s: time of the files, seconds since the epoch.

    Raises:
        UsageError: the ending is none of `ENDINGS`.
        OSError: it is there already, or can't be written.
    """
    ending = next((each for each in ENDINGS if to.name.endswith(each)), None)
    if ending is None:
        raise UsageError(f'--to "{to}": expected a name with {" or ".join(ENDINGS)} at its end')
    folder = to.name.removesuffix(ending)
    listed = Part(MANIFEST, "all files of this archive", manifest(parts))
    handle = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    with (
        os.fdopen(handle, "wb") as raw,
        _compressed(raw, ending) as out,
        tarfile.open(fileobj=out, mode="w|") as tar,
    ):
        for part in (listed, *parts):
            head = tarfile.TarInfo(f"{folder}/{part.name}")
            head.size, head.mtime, head.mode = len(part.data), int(made_s), _MODE
            tar.addfile(head, io.BytesIO(part.data))


@contextmanager
def _compressed(raw: IO[bytes], ending: str) -> Generator[IO[bytes]]:
    if ending == ".tar.gz":
        with gzip.GzipFile(fileobj=raw, mode="wb", filename="") as out:
            yield cast("IO[bytes]", out)
        return
    with zstandard.ZstdCompressor().stream_writer(raw, closefd=False) as stream:
        yield cast("IO[bytes]", stream)

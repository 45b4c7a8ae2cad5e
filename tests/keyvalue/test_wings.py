"""The folders of keyvalue/ lie in one order: each imports only from those before it."""

import ast
from pathlib import Path

import quorate.keyvalue

ROOM = Path(quorate.keyvalue.__file__).parent

ORDER = ("limits", "native", "protocol", "state", "commands", "service", "embedded", "port")
"""The parts of the room, lowest first."""

APART = {("port", "embedded")}
"""Clients over sockets and clients in the program: neither needs the other."""


def imported_parts(file: Path) -> set[str]:
    """Return the parts of the room that a file imports, also those for type checkers."""
    depth = len(file.relative_to(ROOM).parts)
    parts: set[str] = set()
    for item in ast.walk(ast.parse(file.read_text())):
        if isinstance(item, ast.ImportFrom) and item.level == depth:
            parts |= {item.module.split(".")[0]} if item.module else {a.name for a in item.names}
    return parts


def test_no_import_runs_back() -> None:
    files = [
        file for file in sorted(ROOM.rglob("*.py")) if file.parent != ROOM or file.stem in ORDER
    ]
    back: list[str] = []
    for file in files:
        own = file.relative_to(ROOM).parts[0].removesuffix(".py")
        back += [
            f"{file.relative_to(ROOM)} imports {part}"
            for part in sorted(imported_parts(file) - {own})
            if ORDER.index(part) > ORDER.index(own) or (own, part) in APART
        ]
    assert back == []

"""A member's file without what might be secret.

A valid file names files of secrets, and holds none. But somebody may have typed one into it, under
a key that does not exist. So only texts under keys whose meaning we know are kept, and
numbers and truth values.
"""

import re
import tomllib
from pathlib import Path
from typing import Any, Final, cast

from ..node.config.settings import render

__all__ = ["REMOVED", "settings_of", "without_texts"]

REMOVED: Final = "(removed)"

_KEPT: Final = frozenset(
    (
        *("cluster", "directory", "profile", "redirect", "host", "audit_log", "format"),
        *("member_listen_host", "client_listen_host", "certificate", "key", "ca"),
        *("cluster_key_file", "other_cluster_key_file", "token_file"),
        *("client_certificates", "tls_minimum"),
    )
)
"""Keys with texts that say where or how, and are never secret themselves."""

_NAME: Final = re.compile(r"[A-Za-z_]{1,40}")
_MAX_PATH: Final = 300


def settings_of(file: Path) -> str:
    """Return the settings of a file, one a line, without what might be secret.

    Raises:
        OSError: it can't be read.
        ValueError: it is no TOML; the error quotes nothing of it.
    """
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        raise ValueError(f"{file}: not a TOML file") from None
    return "\n".join(_lines(tables, "")) + "\n"


def _lines(table: dict[str, Any], prefix: str) -> list[str]:
    lines: list[str] = []
    for key, value in table.items():
        name = prefix + (key if _NAME.fullmatch(key) else REMOVED)
        match value:
            case dict():
                lines += _lines(cast("dict[str, Any]", value), f"{name}.")
            case list():
                for index, each in enumerate(cast("list[object]", value)):
                    if isinstance(each, dict):
                        lines += _lines(cast("dict[str, Any]", each), f"{name}[{index}].")
            case bool() | int() | float():
                lines.append(f"{name} = {render(value)}")
            case str() if key in _KEPT and _is_plain(value):
                lines.append(f"{name} = {render(value)}")
            case _:
                lines.append(f"{name} = {REMOVED}")
    return lines


def _is_plain(text: str) -> bool:
    return text.isprintable() and len(text) <= _MAX_PATH and "-----" not in text


def without_texts(words: str) -> str:
    """Return a message about a setting without the texts that it quotes."""
    return re.sub(r'"[^"]*"|\'[^\']*\'', f'"{REMOVED}"', words)

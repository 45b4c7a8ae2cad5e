"""The generated parts of the reference pages, made from the code itself.

`python docs/generated.py NAME` prints one of them.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import attrs

import quorate
from quorate import errors, objects, recipes
from quorate.cli import app as command_line
from quorate.keyvalue.commands.table import all_commands
from quorate.machine.config import MachineConfig, MachineEntry
from quorate.node.config.config import PROFILES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_FIELD: Final = re.compile(r"^    (\w+): (.*(?:\n {8,}.*)*)", re.MULTILINE)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines
    )


def meanings(kind: type) -> dict[str, str]:
    """What each field of a class means: from the section Args, or the text below the field."""
    section = (inspect.getdoc(kind) or "").partition("\nArgs:\n")[2]
    section = re.split(r"^\S", section, maxsplit=1, flags=re.MULTILINE)[0]
    found = _texts_below(kind) | dict(_FIELD.findall(section))
    return {name: " ".join(text.split()) for name, text in found.items()}


def _texts_below(kind: type) -> dict[str, str]:
    """The string literals that follow fields in the body of a class."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    found: dict[str, str] = {}
    for field, below in pairwise(body.body if isinstance(body, ast.ClassDef) else ()):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = text
            case _:
                pass
    return found


def _default(field: attrs.Attribute[Any]) -> str:
    """The default of a field as a file would have it."""
    if field.default is attrs.NOTHING:
        return "required"
    if isinstance(field.default, attrs.Factory):  # type: ignore[arg-type]  # a class at run time
        return "see below"
    return _toml(field.default)


def _toml(value: object) -> str:
    match value:
        case bool():
            return f"`{str(value).lower()}`"
        case str():
            return f'`"{value}"`'
        case int() if value >= 1 << 20 and value % (1 << 20) == 0:
            return f"`{value}` ({value >> 20} MiB)"
        case _:
            return f"`{value}`"


def _fields(kind: type[attrs.AttrsInstance], *, but: Sequence[str] = ()) -> str:
    means = meanings(kind)
    rows = [
        (f"`{field.name}`", _default(field), means.get(field.name, ""))
        for field in attrs.fields(kind)
        if field.name not in but
    ]
    return table(("key", "default", "meaning"), rows)


def settings() -> str:
    """Every key of a member's file, and of a machine's, with its default."""
    tables = ("members", "timeouts", "limits", "snapshot", "security", "log", "web", "etcd")
    tables += ("partition",)
    of_machine = ("machines", *tables)
    means = meanings(quorate.Timeouts)
    timeouts = table(
        ("key", *(f"`{profile}`" for profile in PROFILES), "meaning"),
        (
            (
                f"`{field.name}`",
                *(f"{getattr(one, field.name):g}" for one in PROFILES.values()),
                means.get(field.name, ""),
            )
            for field in attrs.fields(quorate.Timeouts)
        ),
    )
    parts = {
        "In front of the tables": _fields(quorate.NodeConfig, but=tables),
        "`[[members]]`": _fields(quorate.MemberConfig),
        "`[timeouts]`, in seconds, by profile": timeouts,
        "`[limits]`": _fields(quorate.Limits),
        "`[snapshot]`": _fields(quorate.SnapshotPolicy),
        "`[security]`": _fields(quorate.Security),
        "`[log]`": _fields(quorate.LogLines),
        "`[web]`": _fields(quorate.Web),
        "`[etcd]`": _fields(quorate.Etcd),
        "`machine.toml`, in front of the tables": _fields(MachineConfig, but=of_machine),
        "`machine.toml`, `[[machines]]`": _fields(MachineEntry),
    }
    return "\n\n".join(f"## {title}\n\n{text}" for title, text in parts.items())


def commands() -> str:
    """Every Redis command, by Redis's groups."""
    groups: dict[str, list[tuple[str, str, str, str]]] = {}
    for spec in all_commands():
        for one in (spec, *spec.subcommands.values()):
            name = one.name.upper().replace("|", " ")
            row = (f"`{name}`", one.kind.value, one.since, one.summary)
            groups.setdefault(spec.group, []).append(row)
    head = ("command", "kind", "since Redis", "summary")
    return "\n\n".join(
        f"## {group.replace('-', ' ').capitalize()}\n\n{table(head, rows)}"
        for group, rows in groups.items()
    )


def command_line_help() -> str:
    """The help of every command, as Markdown."""
    command_line.import_verbs() if hasattr(command_line, "import_verbs") else None
    text = command_line.app.generate_docs(heading_level=1, max_heading_level=4)
    text = re.sub(r"## Table of Contents\n.*?(?=\*\*Commands)", "", text, flags=re.DOTALL)
    return text.partition("\n")[2]  # the page has a title of its own


def error_tree() -> str:
    """Every error: its place in the tree, its exit status, and what it means."""
    rows: list[tuple[str, str, str]] = []

    def walk(kind: type[Exception], depth: int) -> None:
        first = (inspect.getdoc(kind) or "").partition("\n\n")[0]
        status = next((str(code) for one, code in command_line.STATUS if issubclass(kind, one)), "")
        rows.append((f"{'&emsp;' * depth}`{kind.__name__}`", status, " ".join(first.split())))
        for child in kind.__subclasses__():
            if child.__module__ == errors.__name__:
                walk(child, depth + 1)

    walk(errors.QuorateError, 0)
    return table(("error", "exit status", "meaning"), rows)


def api() -> str:
    """A directive of mkdocstrings for each public name that is no error."""
    parts: dict[str, list[str]] = {"Classes": [], "Functions": []}
    names = [(quorate, name) for name in quorate.__all__]
    names += [(recipes, name) for name in recipes.__all__]
    names += [(objects, name) for name in objects.__all__]
    for module, name in names:
        value: object = getattr(module, name)
        if inspect.isclass(value) and issubclass(value, BaseException):
            continue
        if inspect.isclass(value) or inspect.isfunction(value):
            title = "Classes" if inspect.isclass(value) else "Functions"
            home = f"{value.__module__}.{value.__qualname__}"
            parts[title].append(
                f"::: {home}\n    options:\n      heading: {module.__name__}.{name}\n"
            )
    return "\n\n".join(f"## {title}\n\n" + "\n".join(found) for title, found in parts.items())


PARTS: Final[dict[str, Callable[[], str]]] = {
    "settings": settings,
    "commands": commands,
    "command-line": command_line_help,
    "errors": error_tree,
    "api": api,
}
"""What stands where a page says `<!-- generated: NAME -->`."""

if __name__ == "__main__":
    print(PARTS[sys.argv[1]]())

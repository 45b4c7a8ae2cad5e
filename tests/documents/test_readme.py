"""What README shows works as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from quorate.local.cluster import free_client_port
from quorate.node.config.config import load_config

README = (Path(__file__).parents[2] / "README.md").read_text()


def block(language: str, holding: str) -> str:
    """The code block of a language that holds a text."""
    blocks: list[str] = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    (found,) = [text for text in blocks if holding in text]
    return found


def test_the_configuration_is_valid(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text(block("toml", "member_id"))
    config = load_config(tmp_path / "node.toml")
    assert len(config.members) == 3


def test_the_embedded_member_runs(tmp_path: Path) -> None:
    code = block("python", "open_node")
    ports = f"{free_client_port(1)}, {free_client_port(1)})"
    for shown, here in (("/var/tmp/embedded", str(tmp_path)), ("17000, 7000)", ports)):
        assert shown in code
        code = code.replace(shown, here)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "b'hello' leader\n", done.stderr


@pytest.mark.parametrize("name", sorted({*re.findall(r"\]\(([^)#:]+)\)", README)}))
def test_what_it_links_to_is_there(name: str) -> None:
    assert (Path(__file__).parents[2] / name).exists()

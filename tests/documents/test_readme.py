"""What README and docs/running.md show works as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

from quorate.local.cluster import free_client_port
from quorate.node.config.config import load_config

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
RUNNING = (ROOT / "docs" / "running.md").read_text()


def block(document: str, language: str, holding: str) -> str:
    """The code block of a document in a language that holds a text."""
    blocks: list[str] = re.findall(rf"```{language}\n(.*?)```", document, re.DOTALL)
    (found,) = [text for text in blocks if holding in text]
    return found


def test_the_configuration_is_valid(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text(block(RUNNING, "toml", "member_id"))
    config = load_config(tmp_path / "node.toml")
    assert len(config.members) == 3


def test_the_embedded_member_runs(tmp_path: Path) -> None:
    code = block(README, "python", "open_node")
    ports = f"{free_client_port(1)}, {free_client_port(1)})"
    for shown, here in (("/var/tmp/embedded", str(tmp_path)), ("17000, 7000)", ports)):
        assert shown in code
        code = code.replace(shown, here)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "b'hello' leader\n", done.stderr


def test_it_is_read_in_two_minutes() -> None:
    assert len(README.splitlines()) <= 130

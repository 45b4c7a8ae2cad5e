"""docs/partitions.md shows a machine's file that is right, and a calculation that adds up."""

import re
from pathlib import Path

from quorate.machine.config import PORTS, load_machine

PAGE = (Path(__file__).parents[2] / "docs" / "partitions.md").read_text()


def test_its_file_of_a_machine_is_read(tmp_path: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "machine.toml").write_text(text)
    config = load_machine(tmp_path / "machine.toml")
    assert (config.partitions, config.replicas, len(config.machines)) == (12, 3, 3)
    assert f"needs {PORTS} ports of each kind" in PAGE


def test_its_calculation_adds_up() -> None:
    rows = re.findall(
        r"^\| (\d+) \| (\d+) \+ (\d+) x 0.37 = ([\d.]+) \| ([\d,]+)", PAGE, re.MULTILINE
    )
    assert len(rows) == 3
    for row in rows:
        count, leaders, followers = map(int, row[:3])
        assert (leaders, followers) == (count // 3, 2 * count // 3)
        assert abs(leaders + followers * 9.3 / 25.4 - float(row[3])) < 0.1
        rate = int(row[4].replace(",", ""))
        assert abs(rate - count / 25.4e-6) < 1000

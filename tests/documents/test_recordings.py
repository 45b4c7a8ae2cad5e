"""docs/recordings.md has the kinds of events and their fields, as the code has them."""

import json
import re
from pathlib import Path

from quorate.node.live import flight
from quorate.recordings import KINDS
from quorate.recordings.reading import MAX_LINE_BYTES, decode_head_untrusted

TEXT = (Path(__file__).parent.parent.parent / "docs" / "recordings.md").read_text()


def test_the_table_has_every_kind_with_its_fields() -> None:
    below = TEXT.partition("| kind |")[2]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \| [^|]+ \|$", below, re.MULTILINE)
    table = {kind: tuple(re.findall(r"`(\w+)`", fields)) for kind, fields in rows}
    assert table == KINDS


def test_the_head_in_it_is_one() -> None:
    (line,) = re.findall(r'^\{"quorate_trace".*\}$', TEXT, re.MULTILINE)
    head = decode_head_untrusted(line.encode())
    assert json.loads(head.as_json()) == json.loads(line)


def test_the_bounds_in_it_are_those_of_the_code() -> None:
    assert flight.FILES == 8
    assert flight.FILE_BYTES == 8 << 20
    assert "eight files of 8 MiB" in TEXT
    assert f"`.{flight.FILES - 1}`" in TEXT
    assert MAX_LINE_BYTES == 1 << 20
    assert "longer than 1 MiB" in TEXT

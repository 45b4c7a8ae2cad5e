"""A recording in the page: served on this machine, and as one file that needs nothing else."""

import base64
import io
import json
import re
from pathlib import Path

import pytest

from quorate.errors import RecordingError
from quorate.recordings import Event, Source
from quorate.recordings.head import WALL, Head
from quorate.recordings.reading import read_recording_untrusted
from quorate.recordings.writing import RecordingWriter, open_to_write
from quorate.web.answers import Answer, Asked, Stream
from quorate.web.files import FOLDER
from quorate.web.viewing import Viewer, single_file_untrusted

EXAMPLE = Path(__file__).parent / "data" / "leader-dies.qtrace"


def asked(path: str) -> Asked:
    return Asked(path, {}, {})


async def test_the_page_asks_for_the_recording_and_gets_it_whole(tmp_path: Path) -> None:
    packed = tmp_path / "r.qtrace.zst"
    with open_to_write(packed) as file:
        file.write(EXAMPLE.read_text())
    for path in (EXAMPLE, packed):
        viewer = Viewer(path)
        page = await viewer.answer(asked("/"))
        assert isinstance(page, Answer)
        assert b'data-source="recording"' in page.body
        stream = await viewer.answer(asked("/recording"))
        assert isinstance(stream, Stream)
        pieces: list[bytes] = []

        async def send(data: bytes, pieces: list[bytes] = pieces) -> None:
            pieces.append(data)

        await stream.write(send)
        assert b"".join(pieces) == EXAMPLE.read_bytes()
        script = await viewer.answer(asked("/static/main.js"))
        assert isinstance(script, Answer)
        assert script.status == 200
        for missing in ("/events", "/static/../viewing.py", "/static/none.js"):
            answer = await viewer.answer(asked(missing))
            assert isinstance(answer, Answer)
            assert answer.status == 404


async def test_a_page_of_another_name_gets_nothing() -> None:
    viewer = Viewer(EXAMPLE)
    for path in ("/", "/recording", "/static/main.js"):
        answer = await viewer.answer(Asked(path, {}, {"host": "evil.example:8001"}))
        assert isinstance(answer, Answer)
        assert answer.status == 421
        answer = await viewer.answer(Asked(path, {}, {"host": "127.0.0.1:8001"}))
        assert not isinstance(answer, Answer) or answer.status == 200


def test_a_single_file_has_everything_and_loads_nothing() -> None:
    document = "".join(single_file_untrusted(EXAMPLE))
    # No attribute of the document names anything that would be fetched.
    without_code = re.sub(r"<(script|style)\b.*?</\1>", "", document, flags=re.DOTALL)
    assert not re.search(r'(src|href)="(?!data:|#)', without_code)
    assert "static/" not in without_code
    assert without_code.count('<template id="states') == 2
    imports = json.loads(re.findall(r'<script type="importmap">(.*?)</script>', document)[0])
    names = imports["imports"].keys()
    assert "page/main.js" in names
    assert {name.removeprefix("page/") for name in names} <= {
        each.name for each in FOLDER.iterdir()
    }
    for url in imports["imports"].values():
        code = base64.b64decode(url.partition("base64,")[2]).decode()
        wanted = re.findall(r'^import [^;]*"([^"]+)";', code, re.MULTILINE)
        assert names >= set(wanted), "each import is in the map"
        assert '"./' not in "".join(re.findall(r"^(?:im|ex)port .*", code, re.MULTILINE))


def test_what_a_recording_says_cannot_become_a_script(tmp_path: Path) -> None:
    path = tmp_path / "evil.qtrace"
    text = "</script><script>alert(1)</script><!-- <script>"
    with open_to_write(path) as file:
        writer = RecordingWriter(file, Head(Source.LIVE, "1", "<b>", WALL))
        writer.write(Event(1.0, 0, "note", {"text": text, "<i>": "<"}))
    document = "".join(single_file_untrusted(path))
    (block,) = re.findall(
        r'<script id="recording" type="application/jsonl">\n(.*?)</script>', document, re.DOTALL
    )
    assert "<" not in block
    read = read_recording_untrusted(io.BytesIO(block.encode()), "f")
    assert read.head.cluster == "<b>"
    assert [each.fields for each in read.events] == [{"text": text, "<i>": "<"}]


def test_a_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("hello\n")
    with pytest.raises(RecordingError, match="line 1: not JSON"):
        "".join(single_file_untrusted(path))

"""Where there was no compiler everything works the other way."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import trio.testing
from service_world import START_MS, encode, open_service, running

from quorate.keyvalue import plain, resp
from quorate.keyvalue import service as service_module
from quorate.storage import BatchHeader, Entry, EntryKind


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module as it is where there is no `_plain`, and those that use it."""
    monkeypatch.setitem(sys.modules, "quorate.keyvalue._plain", None)
    spec = importlib.util.spec_from_file_location("quorate.keyvalue.plain_again", plain.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(resp, "split_untrusted", module.split_untrusted)
    monkeypatch.setattr(service_module, "apply_sets", module.apply_sets)
    monkeypatch.setattr(service_module, "answer_gets", module.answer_gets)
    return module


async def test_a_service_is_whole_without_what_was_compiled(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, uncompiled: ModuleType
) -> None:
    assert not uncompiled.NATIVE
    assert uncompiled.split_untrusted(encode("PING"), 1) == ([], 0)
    async with running(open_service(tmp_path)) as fed:
        entries = [Entry(EntryKind.COMMAND, encode("SET a 1"))]
        assert fed.service.apply_many(entries, 0, BatchHeader(1, 0, 100, 1, START_MS, 0)) == []
        assert fed.query("GET a") == b"$-1\r\n"
        assert fed.apply("SET a 1", "SET b 2") == b"+OK\r\n+OK\r\n"
        assert fed.query("GET a", "GET b") == b"$1\r\n1\r\n$1\r\n2\r\n"

"""Keys go from one server of the etcd API to another, as lines of JSON."""

from __future__ import annotations

import io
import json
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock

from quorate.cli.app import run
from quorate.errors import ConfigurationError, RefusedError, TransportError
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.local import etcd_copy
from quorate.local.etcd_client import EtcdRefusedError, GatewayClient
from quorate.local.etcd_copy import export_keys, import_keys
from tests.support.etcd_http import Gateway, open_gateway

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from google.protobuf.message import Message


@asynccontextmanager
async def connected(gateway: Gateway) -> AsyncGenerator[GatewayClient]:
    client = GatewayClient("http://here:1")
    vars(client)["_stream"] = gateway.connect().stream
    yield client


async def exported(client: GatewayClient, prefix: bytes = b"") -> list[str]:
    out = io.StringIO()
    await export_keys(client, prefix, out)
    return out.getvalue().splitlines(keepends=True)


async def test_all_keys_of_one_revision_are_copied_with_their_leases(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_copy, "PAGE_KEYS", 10)
    async with open_gateway() as old, open_gateway() as new:
        lease = await old.world.grant(60, 5)
        for i in range(25):
            await old.world.put(b"k%02d" % i, bytes((i, 255)), lease if i == 3 else 0)
        await old.world.put(b"other", b"\0" * 3)
        async with connected(old) as source, connected(new) as target:
            lines = await exported(source)
            copied = await import_keys(target, lines, overwrite=False)
            assert (copied.keys, copied.leases) == (26, 1)
            assert await new.world.get(b"k07") == b"\x07\xff"
            there = await exported(target)
            assert there[1:] == lines[1:]
            assert json.loads(lines[0])["revision"] == 27
            assert len(await exported(source, b"k1")) == 12
            with pytest.raises(RefusedError, match="give --overwrite"):
                await import_keys(target, lines, overwrite=False)
            copied = await import_keys(target, lines, overwrite=True)
            assert (copied.keys, copied.leases) == (26, 0)
        await trio.sleep(70)  # nobody renews the lease
        assert await new.world.get(b"k03") is None


async def test_keys_are_put_in_transactions_of_bounded_size(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Message] = []
    async with open_gateway() as gateway, connected(gateway) as client:
        for i in range(3):
            await gateway.world.put(b"k%d" % i, b"x" * 300_000)
        lines = await exported(client)
        asked = GatewayClient.__call__

        async def call(path: str, request: Message, kind: type[Message]) -> Message:
            sent.append(request)
            return await asked(client, path, request, kind)

        await import_keys(call, lines, overwrite=True)  # type: ignore[arg-type]
    assert len(sent) == 3


async def test_what_the_server_says_is_told(autojump_clock: MockClock) -> None:
    async with open_gateway() as gateway, connected(gateway) as client:
        lines = ['{"quorate_etcd":1}\n', '{"key":"","value":"","lease":"9"}\n']
        lines.append('{"end":true,"keys":1}\n')
        with pytest.raises(EtcdRefusedError, match="etcdserver: key is not provided"):
            await import_keys(client, lines, overwrite=True)
        with pytest.raises(TransportError, match="HTTP status 404"):
            await client("/nothing", rpc.RangeRequest(), rpc.RangeResponse)


async def nobody(*_: object) -> Message:
    return rpc.TxnResponse(succeeded=True)


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ([], "the end is missing"),
        (['{"quorate_etcd":1}'], "the end is missing"),
        (['{"quorate_etcd":2}'], "line 1"),
        (["[]"], "line 1"),
        (["{"], "line 1"),
        (['{"quorate_etcd":1}', '{"key":"!","value":""}'], "line 2"),
        (['{"quorate_etcd":1}', '{"key":"YQ==","value":"","lease":"x"}'], "line 2"),
        (['{"quorate_etcd":1}', '{"key":7,"value":""}'], "line 2"),
        (['{"quorate_etcd":1}', '{"lease":"99999999999999999999","ttl":1}'], "line 2"),
        (['{"quorate_etcd":1}', '{"end":true,"keys":1}'], "line 2"),
        (['{"quorate_etcd":1}', '{"end":true,"keys":0}', "{}"], "line 3"),
    ],
)
async def test_an_export_that_is_damaged_or_cut_is_an_error(lines: list[str], wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=wrong):
        await import_keys(nobody, lines, overwrite=True)  # type: ignore[arg-type]


def test_a_server_that_is_not_there_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["etcd", "export", "--endpoint", "ftp://a"]) == 64
    file = tmp_path / "there"
    assert run(["etcd", "export", "--endpoint", "http://127.0.0.1:1", "--out", str(file)]) == 2
    assert "http://127.0.0.1:1 can't be reached" in capsys.readouterr().err
    file.touch(exist_ok=False)  # it was removed
    assert run(["etcd", "export", "--endpoint", "http://127.0.0.1:1", "--out", str(file)]) == 78
    assert "it exists: expected a new file" in capsys.readouterr().err


def test_a_file_with_other_bytes_is_no_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "snapshot.db"
    file.write_bytes(b"\x1f\x8b\xff\n\xfe")
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert run(["etcd", "import", "--endpoint", where, "--from", str(file)]) == 78
    assert "line 1" in capsys.readouterr().err

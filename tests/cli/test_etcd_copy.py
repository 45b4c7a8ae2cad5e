"""Keys go from one server of the etcd API to another, as lines of JSON."""

from __future__ import annotations

import io
import json
import socket
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from quorate.cli.app import run
from quorate.errors import ConfigurationError, RefusedError, TransportError
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.port.listener import EtcdPort
from quorate.etcd.services.context import PortContext
from quorate.local import etcd_copy
from quorate.local.etcd_client import EtcdRefusedError, GatewayClient, TlsFiles
from quorate.local.etcd_copy import export_keys, import_keys
from quorate.transport import Purpose
from quorate.transport.tls import load_material
from tests.support.certificates import authority, uri
from tests.support.etcd_http import Gateway, open_gateway
from tests.support.etcd_world import EtcdWorld

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


async def test_a_server_that_asks_for_a_certificate_gets_it(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = authority().write(tmp_path, uri(0))
    tls = load_material(files, cluster="test", purposes=(Purpose.MEMBER,), etcd="required").etcd
    assert tls is not None

    def of_any_host(cafile: Path) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cafile)
        return context

    async with EtcdWorld.opened() as world, trio.open_nursery() as nursery:
        port = EtcdPort(PortContext(world.backend, world.hub), "", 0, tls=lambda: tls)

        async def dial(_host: str, _port: int) -> trio.abc.Stream:
            client, server = trio.testing.memory_stream_pair()
            nursery.start_soon(port.serve, server)
            return client

        monkeypatch.setattr(trio, "open_tcp_stream", dial)
        monkeypatch.setattr(ssl, "create_default_context", of_any_host)

        async def copied(tls_files: TlsFiles) -> str:
            out = io.StringIO()
            async with GatewayClient("https://here:1", tls_files) as client:
                await export_keys(client, b"", out)
            return out.getvalue()

        with pytest.raises(TransportError, match="if it asks for a certificate, give --cert-file"):
            await copied(TlsFiles(files.ca))
        found = await copied(TlsFiles(files.ca, files.certificate, files.key))
        assert '"end":true' in found


def test_a_wrong_file_for_https_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong, out = tmp_path / "wrong.pem", tmp_path / "keys.jsonl"
    wrong.write_text("nothing")
    words = ["etcd", "export", "--endpoint", "https://127.0.0.1:1", "--out", str(out)]
    for more, said in (
        (["--ca-file", str(tmp_path / "none")], "none: No such file or directory"),
        (
            ["--ca-file", str(wrong)],
            "wrong.pem: no certificate or crl found: expected",
        ),
        (["--cert-file", str(wrong)], "wrong.pem: pem lib: expected a certificate and its key"),
    ):
        assert run([*words, *more]) == 78
        assert said in capsys.readouterr().err
        assert not out.exists()

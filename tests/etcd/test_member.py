"""A real member serves clients of etcd, and keeps their keys across a restart."""

from contextlib import AsyncExitStack
from pathlib import Path

import attrs
import pytest
import trio

import quorate
from quorate.etcd.backend import upkeep
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requests import Op, encode_request
from quorate.keyvalue.protocol.payload import ETCD
from quorate.local.cluster import free_client_port
from tests.support.etcd_http import Client


async def test_a_member_serves_clients_of_etcd(tmp_path: Path) -> None:
    port = free_client_port(2)
    (config,) = quorate.local_configs(1, tmp_path, client_port=port, profile="test")
    config = attrs.evolve(config, etcd=quorate.Etcd(port + 1))
    async with AsyncExitStack() as stack:
        async with quorate.open_node(config) as node:
            client = Client(await stack.enter_async_context(await connected(port + 1)))
            await node.wait_for_leader()
            put = await client.post("/v3/kv/put", {"key": "Zm9v", "value": "YmFy"})
            assert put.json["header"]["revision"] == "2"
            await node.kv.set("foo", "another one")
            found = await client.post("/v3/kv/range", {"key": "Zm9v"})
            assert found.json["kvs"][0]["value"] == "YmFy"
            members: list[dict[str, object]] = [{}]
            while "clientURLs" not in members[0]:  # it announces them by itself
                members = (await client.post("/v3/cluster/member/list", {})).json["members"]
            assert members[0]["clientURLs"] == [f"http://127.0.0.1:{port + 1}"]
            figures = (await client.get("/metrics")).body
            assert b'quorate_etcd_requests_total{method="Put",code="OK"} 1' in figures
            assert b"quorate_etcd_keys 1\n" in figures
            status = node.status().etcd
            assert status is not None
            assert (status.keys, status.connections) == (1, 1)
            assert (await client.get("/readyz")).status == 200
            await client.begin("/v3/watch", b'{"create_request":{"key":"Zm9v"}}')
            assert (await client.line())["result"]["created"]
        assert (await client.line())["error"]["message"] == "etcdserver: server stopped"
    async with quorate.open_node(config) as node, await connected(port + 1) as stream:
        await node.wait_for_leader()
        found = await Client(stream).post("/v3/kv/range", {"key": "Zm9v"})
        assert found.json["kvs"][0]["mod_revision"] == "2"


async def test_a_leader_without_a_port_compacts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "LOOK_S", 0.05)
    monkeypatch.setattr(upkeep, "KEPT_S", 0.05)
    (config,) = quorate.local_configs(1, tmp_path, client_port=free_client_port(1), profile="test")
    put = encode_request(Op.PUT, rpc.PutRequest(key=b"foo").SerializeToString())
    old = encode_request(Op.RANGE, rpc.RangeRequest(key=b"foo", revision=2).SerializeToString())
    async with quorate.open_node(config) as node:
        await node.wait_for_leader()
        await node.command(put, ETCD)
        await node.command(put, ETCD)
        reply = b""
        with trio.fail_after(5):
            while not reply.endswith(b"required revision has been compacted"):
                reply = await node.query(old, ETCD)
                await trio.sleep(0.02)


async def connected(port: int) -> trio.SocketStream:
    return await trio.open_tcp_stream("127.0.0.1", port)

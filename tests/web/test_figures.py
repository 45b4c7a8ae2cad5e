"""A member with a web port shows the figures of all its parts, and of its port for clients."""

from pathlib import Path

import trio
from prometheus_client.parser import text_string_to_metric_families

from quorate import open_node
from quorate.keyvalue.protocol.resp import OK, encode_command
from quorate.local.cluster import free_client_port
from quorate.node import MemberConfig, NodeConfig
from quorate.node.config.partition import PartitionSettings
from quorate.node.config.web import Web
from tests.documents.test_monitoring import PROMTOOL, families
from tests.support.web_world import parsed

SOMETIMES = {
    "quorate_certificate_expiry_timestamp_seconds",
    "quorate_etcd_compacted_revision",
    "quorate_etcd_connections",
    "quorate_etcd_keys",
    "quorate_etcd_leases",
    "quorate_etcd_refused_total",
    "quorate_etcd_request_duration_seconds",
    "quorate_etcd_requests_total",
    "quorate_etcd_revision",
    "quorate_etcd_watches",
    "quorate_etcd_watches_in_step",
    "quorate_lease_expiry_timestamp_seconds",
    "quorate_peer_connected",
    "quorate_peer_lag_bytes",
    "quorate_peer_lag_seconds",
    "quorate_peer_last_heard_timestamp_seconds",
    "quorate_peer_received_bytes_total",
    "quorate_peer_round_trip_seconds",
    "quorate_peer_sent_bytes_total",
    "quorate_commands_total",
    "quorate_command_errors_total",
    "quorate_snapshot_position_bytes",
    "quorate_snapshot_timestamp_seconds",
}
"""What a member without peers, certificates, clients and snapshots does not have."""


async def scrape(port: int) -> str:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        words = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        await stream.send_all(words)
        received = b"".join([part async for part in stream])
    reply = parsed(received)
    assert reply.status == 200
    return reply.body.decode()


async def test_all_figures_are_shown(tmp_path: Path) -> None:
    first = free_client_port(3)
    seats = (MemberConfig(0, "127.0.0.1", first, first + 1),)
    partition = PartitionSettings(0, str(tmp_path))
    config = NodeConfig("c.p0", 0, tmp_path / "m", seats, web=Web(first + 2), partition=partition)
    async with open_node(config) as node:
        with trio.fail_after(20):
            await node.wait_for_leader()
            found, put = ("QUORATE.SLOTS", "FOUND", "0-16383"), ("SET", "key", "value")
            assert await node.command(encode_command(found)) == OK
            assert await node.command(encode_command(put)) == OK
            shown = await scrape(config.web.port)
    kinds = {
        each.name + "_total" * (each.type == "counter"): each.type
        for each in text_string_to_metric_families(shown)
    }
    assert {name: kind for name, kind in families().items() if name not in SOMETIMES} == {
        name: kind for name, kind in kinds.items() if name not in SOMETIMES
    }
    assert "\nquorate_is_leader 1\n" in shown
    about = 'cluster="c",partition="0",machine="0"'
    assert f"\nquorate_partition_info{{{about}}} 1\n" in shown
    assert '\nquorate_slots{state="owned"} 16384\n' in shown
    if PROMTOOL is not None:
        check = [PROMTOOL, "check", "metrics"]
        done = await trio.run_process(
            check, stdin=shown.encode(), capture_stdout=True, capture_stderr=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")

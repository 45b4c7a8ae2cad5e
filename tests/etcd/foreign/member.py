"""A member of quorate that is started as etcd is: the shim for suites that start ``etcd``.

It reads the flags that such suites give, ignores those that have no meaning here, and prints the
two lines that they wait for. It is one process, so that a kill of it is a kill of the member.
"""

import argparse
import contextlib
import signal
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import trio

import quorate

HOST: Final = "127.0.0.1"
READY: Final = ("enabled capabilities for version 3.5", "published client URLs")
PATIENCE_STEPS: Final = 200
STEP_SECONDS: Final = 0.05
CLIENT_PORT: Final = 2
"""Ports of these suites are five apart: client, peer, metrics. One more is free for our clients."""


def configure(words: Sequence[str]) -> quorate.NodeConfig:
    """Return the configuration of a member from the flags of etcd.

    Raises:
        SystemExit: the flags ask for TLS or for sockets other than TCP.
    """
    parser = argparse.ArgumentParser("etcd", allow_abbrev=False)
    parser.add_argument("--name", default="default")
    parser.add_argument("--data-dir", type=Path, default=Path("default.etcd"))
    parser.add_argument("--listen-client-urls", default="http://localhost:2379")
    parser.add_argument("--advertise-client-urls")
    parser.add_argument("--listen-peer-urls", default="http://localhost:2380")
    parser.add_argument("--initial-cluster")
    parser.add_argument("--initial-cluster-state", default="new")
    flags, _ = parser.parse_known_args(words)
    listen = flags.listen_client_urls.split(",")[0]
    if not listen.startswith("http://"):
        parser.error(f"--listen-client-urls {listen}: expected http, the shim has no TLS")
    founders = flags.initial_cluster or f"{flags.name}={flags.listen_peer_urls}"
    peers = dict(part.split("=", 1) for part in founders.split(","))
    members = [_member(i, peer) for i, peer in enumerate(peers.values())]
    return quorate.NodeConfig(
        "etcd",
        member_id=list(peers).index(flags.name),
        directory=flags.data_dir,
        members=tuple(members),
        join=flags.initial_cluster_state == "existing",
        etcd=quorate.Etcd(
            _port(listen), advertise=(flags.advertise_client_urls or listen).split(",")[0]
        ),
    )


def _member(member_id: int, peer: str) -> quorate.MemberConfig:
    port = _port(peer)
    return quorate.MemberConfig(member_id, HOST, member_port=port, client_port=port + CLIENT_PORT)


def _port(url: str) -> int:
    port = urlsplit(url).port
    if port is None:
        raise SystemExit(f"etcd: URL {url}: expected a port")
    return port


async def serve(config: quorate.NodeConfig) -> None:
    """Run the member until SIGTERM or SIGINT."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with quorate.open_node(config) as node:
            await node.wait_for_leader()
            await trio.to_thread.run_sync(_wait_until_published, config, abandon_on_cancel=True)
            for line in READY:
                print(line, flush=True)  # noqa: T201 - suites read it
            async for _ in signals:
                break


def _wait_until_published(config: quorate.NodeConfig) -> None:
    """Wait until the list of members has our URL: suites ask for it at once."""
    wanted = config.etcd.url(HOST).encode()
    ask = urllib.request.Request(f"http://{HOST}:{config.etcd.port}/v3/cluster/member/list", b"{}")
    for _ in range(PATIENCE_STEPS):
        with contextlib.suppress(OSError), urllib.request.urlopen(ask, timeout=2) as reply:
            if wanted in reply.read():
                return
        time.sleep(STEP_SECONDS)


def main(words: Sequence[str]) -> None:
    """Run a member by the flags of etcd.

    It ends with its terminal: etcd's own tests give it one, and some of them leave it behind. Under
    nohup it would live on, and the next test would talk to it.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    trio.run(serve, configure(words))


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])

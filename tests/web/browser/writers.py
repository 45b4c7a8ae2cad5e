"""Clients that write and read through all members, so that a page has something to show."""

# redis-py has only partial types
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import threading
from collections.abc import Generator
from contextlib import contextmanager

import redis


@contextmanager
def load(ports: list[int]) -> Generator[None]:
    """Write and read through all members for the duration of a block."""
    over = threading.Event()

    def write(port: int) -> None:
        while not over.is_set():
            try:
                with redis.Redis(port=port, socket_timeout=2) as client:
                    while not over.wait(0.005):
                        client.set("key", "value")
                        client.get("key")
            except redis.RedisError:
                over.wait(0.05)

    threads = [threading.Thread(target=write, args=(port,), daemon=True) for port in ports]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()

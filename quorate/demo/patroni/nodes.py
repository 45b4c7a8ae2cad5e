"""A node: Patroni with the PostgreSQL that it starts, in a folder of its own."""

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

import attrs
import trio

from ...local.cluster import HOST
from .programs import Programs

__all__ = ["SCOPE", "SETTINGS", "Node", "NodeState"]

SCOPE: Final = "demo"
SETTINGS: Final = {"ttl": 20, "loop_wait": 2, "retry_timeout": 3}
"""Patroni's least, so that the demo is short: a node that dies is replaced after at most `ttl`."""

_STOP_SECONDS: Final = 20.0
_ANSWER_SECONDS: Final = 2.0
_MAX_ANSWER: Final = 1 << 20
_PRIMARY: Final = ("primary", "master")  # Patroni 3 says the latter

_BOOTSTRAP: Final[Mapping[str, object]] = {
    **SETTINGS,
    "synchronous_mode": True,  # a row that was acknowledged survives the primary
    "postgresql": {
        "use_pg_rewind": True,
        "parameters": {"max_connections": 30, "shared_buffers": "16MB", "wal_keep_size": "64MB"},
    },
}
_CONTROL_LOCALE: Final = {"LC_ALL": "C.UTF-8", "LANG": "C.UTF-8"}


@attrs.frozen
class NodeState:
    """What a node says of itself.

    Args:
        primary: whether its PostgreSQL takes writes.
        running: whether its PostgreSQL runs.
        timeline: of its PostgreSQL; a promotion raises it.
        started: when its PostgreSQL was started, as PostgreSQL writes it.
    """

    primary: bool
    running: bool
    timeline: int
    started: str


class Node:
    """One Patroni and its PostgreSQL: at most one of each at a time.

    Args:
        number: 0, 1, 2.
        folder: its own; created by `lay_out`.
        programs: what it runs.
        ports: of PostgreSQL and of Patroni's REST service.
        etcd: Patroni's table `etcd3`: where the members are, and how to log in.
    """

    def __init__(
        self,
        number: int,
        folder: Path,
        programs: Programs,
        ports: tuple[int, int],
        etcd: Mapping[str, object],
    ) -> None:
        self.name = f"node-{number}"
        self.folder = folder
        self.port, self._rest_port = ports
        self._programs = programs
        self._etcd = etcd
        self._process: trio.Process | None = None

    @property
    def file(self) -> Path:
        """Patroni's configuration."""
        return self.folder / "patroni.yml"

    @property
    def log(self) -> Path:
        """What Patroni and PostgreSQL say."""
        return self.folder / "patroni.log"

    @property
    def pid(self) -> int | None:
        """The process id of Patroni, if it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def lay_out(self) -> None:
        """Write the configuration. JSON is YAML, too."""
        self.folder.mkdir()
        self.file.write_text(json.dumps(self._configuration(), indent=2) + "\n", encoding="utf-8")
        for path in (self.folder, self.file):
            self._programs.own(path)

    def _configuration(self) -> dict[str, object]:
        rest = f"{HOST}:{self._rest_port}"
        return {
            "scope": SCOPE,
            "name": self.name,
            "restapi": {"listen": rest, "connect_address": rest},
            "etcd3": self._etcd,
            "bootstrap": {"dcs": _BOOTSTRAP, "initdb": [{"encoding": "UTF8"}, "data-checksums"]},
            "postgresql": {
                "listen": f"{HOST}:{self.port}",
                "connect_address": f"{HOST}:{self.port}",
                "bin_dir": str(self._programs.postgres),
                "data_dir": str(self._data),
                "pgpass": str(self.folder / "pgpass"),
                "pg_hba": [f"host {what} all {HOST}/32 trust" for what in ("all", "replication")],
                "authentication": {
                    "superuser": {"username": "postgres", "password": "super"},
                    "replication": {"username": "replicator", "password": "replica"},
                },
                "parameters": {"unix_socket_directories": ""},
            },
        }

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    async def start(self) -> None:
        """Start Patroni, which starts PostgreSQL."""
        user = self._programs.user
        with self.log.open("ab") as log:
            self._process = await trio.lowlevel.open_process(
                [str(self._programs.patroni), str(self.file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **_CONTROL_LOCALE, "HOME": str(self.folder)},
                process_group=0,  # Ctrl-C is for the demo alone, which stops the nodes
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )

    async def crash(self) -> None:
        """Kill Patroni and PostgreSQL, as the end of their machine does."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        postmaster = self._postmaster()
        if postmaster is not None:
            with suppress(ProcessLookupError):
                os.kill(postmaster, signal.SIGKILL)

    async def stop(self) -> None:
        """Stop both in order; what does not stop is killed."""
        if self._process is not None and self.pid is not None:
            self._process.terminate()
            with trio.move_on_after(_STOP_SECONDS):
                await self._process.wait()
        await self.crash()

    def _postmaster(self) -> int | None:
        """Return the process id of our PostgreSQL, if it runs."""
        with suppress(OSError, ValueError):
            pid = int((self._data / "postmaster.pid").read_text().split("\n", 1)[0])
            # The file may outlive the process, whose number another one may have got.
            if Path(f"/proc/{pid}/cwd").resolve() == self._data.resolve():
                return pid
        return None

    async def state(self) -> NodeState | None:
        """Ask Patroni; None if it does not answer."""
        if self.pid is None:
            return None
        try:
            return await trio.to_thread.run_sync(self._ask)
        except (OSError, ValueError):
            return None

    def _ask(self) -> NodeState:
        url = f"http://{HOST}:{self._rest_port}/patroni"
        with urllib.request.urlopen(url, timeout=_ANSWER_SECONDS) as reply:
            said = cast("dict[str, Any]", json.loads(reply.read(_MAX_ANSWER)))
        running = said.get("state") == "running"
        return NodeState(
            primary=running and said.get("role") in _PRIMARY,
            running=running,
            timeline=int(said.get("timeline") or 0),
            started=str(said.get("postmaster_start_time")),
        )

    async def control(self, *words: str) -> tuple[int, str]:
        """Run patronictl; return its exit status and its output."""
        done = await trio.run_process(
            [str(self._programs.patronictl), "-c", str(self.file), *words],
            capture_stdout=True,
            stderr=subprocess.STDOUT,
            check=False,
            env={**os.environ, **_CONTROL_LOCALE, "COLUMNS": "160"},
        )
        return done.returncode, done.stdout.decode(errors="replace").strip()

"""docs/membership.md: every word of a leader is explained, and every command does what it says."""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import ast
import json
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from quorate.cli.app import EX_NOPERM
from quorate.local.member_list import MEANINGS
from quorate.node.config.config import MemberConfig, NodeConfig, load_config
from quorate.node.leader.members.changes import IN_FLIGHT, NOT_SETTLED
from quorate.node.leader.members.promotion import WOULD_LOSE_QUORUM
from tests.support.real import PATIENCE_SECONDS, QUORATE, quorate

PAGE = (Path(__file__).parents[2] / "docs" / "membership.md").read_text()
NODE: Final = Path(__file__).parents[2] / "node"
WORD: Final = re.compile("[a-z]+(-[a-z]+)*")
NETWORK: Final = "127.0.40."
"""Where the machines of the page are: each has an address of the loopback network."""


def test_every_word_of_the_leader_is_explained() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (both|refusal|waits) \| ", PAGE, re.MULTILINE)
    assert {word for word, _ in rows} == set(MEANINGS)


def _sources() -> list[ast.AST]:
    """The code that refuses changes of the members, or says why one waits."""
    rooms = [*sorted((NODE / "leader" / "members").glob("*.py")), NODE / "protocol/membership.py"]
    return [ast.parse(file.read_text()) for file in rooms]


def words_of_refusals() -> set[str]:
    """The words with which texts of the code begin, in front of a colon; and those of a choice."""
    found: set[str] = set()
    for node in (node for tree in _sources() for node in ast.walk(tree)):
        match node:
            case ast.Constant(value=str(text)) if begins := re.match(r"([a-z]+(-[a-z]+)*): ", text):
                found.add(begins[1])
            case ast.IfExp(body=ast.Constant(value=str(one)), orelse=ast.Constant(value=str(two))):
                found |= {one, two} & set(MEANINGS)
            case _:
                pass
    return found - {"member", "move"}  # of a request whose words are wrong


def words_of_waiting() -> set[str]:
    """The words that have a name in the code."""
    found: set[str] = set()
    for node in (node for tree in _sources() for node in ast.walk(tree)):
        match node:
            case ast.AnnAssign(value=ast.Constant(value=str(text))) if WORD.fullmatch(text):
                found.add(text)
            case _:
                pass
    return found


def test_the_words_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (both|refusal|waits) \| ", PAGE, re.MULTILINE)
    said = {kind: {word for word, where in rows if where == kind} for _, kind in rows}
    # A witness waits with the word by which `check` would refuse it.
    assert said["waits"] | said["both"] == words_of_waiting() | {"role"}
    # Three of these refuse by the names that they have for waiting.
    named = {IN_FLIGHT, NOT_SETTLED, WOULD_LOSE_QUORUM}
    assert said["refusal"] | said["both"] == words_of_refusals() | named


def commands() -> list[list[str]]:
    blocks = "\n".join(re.findall(r"^```\w*\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
    lines = [str(line) for line in blocks.splitlines()]
    return [line.split()[1:] for line in lines if line.startswith("quorate ")]


def _free_port() -> int:
    """A client port that no machine uses, and 10,000 above it neither."""
    while True:
        port = 10_240 + secrets.randbelow(10_000)
        try:
            for taken in (port, port + 10_000):
                with socket.socket() as probe:
                    probe.bind(("", taken))
        except OSError:
            continue
        return port


class Machines:
    """The machines of the page: 10.0.0.1 is a folder and an address of the loopback network.

    Args:
        root: a folder for all of them.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port = _free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.waiting: subprocess.Popen[str] | None = None
        self.files: list[tuple[Path, str]] = []
        self.hosts: dict[int, str] = {}

    @classmethod
    @contextmanager
    def founded(cls, root: Path, settings: str = "") -> Generator["Machines"]:
        """Run the three members with which the page begins.

        Args:
            root: a folder for all of them.
            settings: more lines of each file.
        """
        machines = cls(root)
        ports = machines.port + 10_000, machines.port
        members = tuple(MemberConfig(n, f"{NETWORK}{n + 1}", *ports) for n in range(3))
        try:
            for each in members:
                config = NodeConfig("orders", each.member_id, Path(), members)
                machines.install(each.host, config.to_toml() + settings)
            machines.until(lambda: machines.listed()["leader"] in machines.hosts)
            yield machines
        finally:
            for process in (*machines.processes.values(), machines.waiting):
                if process is not None:
                    process.kill()
                    process.communicate()

    def file(self, host: str) -> Path:
        """The configuration of the member on a machine."""
        return self.root / host / "node.toml"

    def install(self, host: str, text: str) -> None:
        """Write a member's file on an empty machine, and start it."""
        self.file(host).parent.mkdir()
        self.file(host).write_text(text)
        self.hosts[load_config(self.file(host)).member_id] = host
        self.start(host)

    def start(self, host: str) -> None:
        """Start the member of a machine."""
        with (self.root / f"{host}.log").open("ab") as log:
            self.processes[host] = subprocess.Popen(
                [*QUORATE, "run", "--stop-at-eof", str(self.file(host))],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )

    def end(self, host: str, number: signal.Signals) -> None:
        """End the member of a machine by a signal."""
        self.processes[host].send_signal(number)
        self.processes[host].communicate(timeout=PATIENCE_SECONDS)

    def adapted(self, words: list[str]) -> list[str]:
        """A command of the page, for these machines."""
        text = "\0".join(words).replace("10.0.0.", NETWORK)
        text = text.replace(":7000", f":{self.port}").replace("port\x007000", f"port\0{self.port}")
        return text.replace("port\x0017000", f"port\0{self.port + 10_000}").split("\0")

    def call(self, words: list[str]) -> str:
        """Run a command, which must do what it says."""
        with chdir(self.root):
            done = quorate(*words)
        assert done.returncode == 0, (words, done.stderr, done.stdout)
        return done.stdout

    def listed(self) -> dict[str, Any]:
        """What the leader says about the members; nobody leads without one."""
        live = [host for host, process in self.processes.items() if process.poll() is None]
        asking = [word for host in live for word in ("--connect", f"{host}:{self.port}")]
        done = quorate("member", "list", "--json", *asking)
        found: dict[str, Any] = json.loads(done.stdout)
        return found if done.returncode == 0 else {"leader": -1, "members": []}

    def voters(self) -> set[int]:
        """The members that vote now, as the leader says."""
        members = self.listed()["members"]
        return {each["member_id"] for each in members if each["state"] == "voter"}

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            assert time.monotonic() < end, self.listed()
            time.sleep(0.1)

    def has_ended(self, member_id: int) -> None:
        """Check that the process of a removed member ends with its own status."""
        process = self.processes[self.hosts[member_id]]
        assert process.wait(PATIENCE_SECONDS) == EX_NOPERM, self.hosts[member_id]
        process.communicate()

    def do(self, words: list[str]) -> None:
        """Do what a line of the page says."""
        words = self.adapted(words)
        if words[0] == "run":
            self._run()
        elif "--out" in words:
            self._give_seat(words)
        elif words[1] == "move":
            self._move(words)
        else:
            self.call(words)

    def _give_seat(self, words: list[str]) -> None:
        file = self.root / words[words.index("--out") + 1]
        self.files.append((file, words[words.index("--host") + 1]))
        if "--wait" not in words:
            self.call(words)
            return
        self.waiting = subprocess.Popen(
            [*QUORATE, *words],
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.until(lambda: file.exists() and file.read_text().endswith("\n"))

    def _run(self) -> None:
        """Start the member that the lines above are about."""
        if not self.files:
            self.start(self.hosts[1])  # it has moved
            self.until(lambda: all(each["live"] for each in self.listed()["members"]))
            return
        file, host = self.files.pop(0)
        self.install(host, file.read_text())
        if not self.files and self.waiting is not None:
            said = self.waiting.communicate(timeout=2 * PATIENCE_SECONDS)[0]
            assert self.waiting.returncode == 0, said

    def _move(self, words: list[str]) -> None:
        """Carry the machine of member 1 to another address, as the page says in words."""
        old, new = self.hosts[1], words[words.index("--host") + 1]
        self.end(old, signal.SIGTERM)
        del self.processes[old]
        shutil.move(self.root / old, self.root / new)
        self.file(new).write_text(self.file(new).read_text().replace(f'"{old}"', f'"{new}"'))
        self.hosts[1] = new
        self.call(words)


def client_of(host: str, machines: Machines) -> "redis.Redis":
    """Return a client of one machine; its requests may be repeated.

    The leader may change at any time on a busy machine, so that an outcome is not known.
    """
    again = Retry(ConstantBackoff(0.5), int(PATIENCE_SECONDS / 0.5))
    return redis.Redis(
        host=host, port=machines.port, retry=again, retry_on_error=[redis.ResponseError]
    )


@pytest.mark.slow
def test_every_command_does_what_the_page_says(tmp_path: Path) -> None:
    with Machines.founded(tmp_path) as machines:
        with client_of(f"{NETWORK}1", machines) as client:
            client.mset({f"key:{n}": n for n in range(1000)})
        machines.end(machines.hosts[2], signal.SIGKILL)
        for words in commands():
            if words[1:3] == ["remove", "0"]:  # "To remove the leader, type the same"
                machines.call(machines.adapted(["transfer", "--to", "0", *words[3:]]))
            machines.do(words)
            if machines.hosts.get(3) and machines.processes[machines.hosts[2]].poll() == -9:
                machines.start(machines.hosts[2])  # "If the old machine comes back"
                machines.has_ended(2)
                machines.start(machines.hosts[2])  # it has noted that, and needs nobody to ask
                machines.has_ended(2)
            if words[1] == "remove":
                machines.has_ended(int(words[2]))
        states = {each["member_id"]: each["state"] for each in machines.listed()["members"]}
        assert states == {1: "standby", 6: "voter", 7: "voter", 8: "voter"}
        assert not (machines.file(machines.hosts[10]).parent / "tables").exists()
        with client_of(machines.hosts[8], machines) as client:
            assert client.mget("key:0", "key:999") == [b"0", b"999"]
            reported = client.info("raft")
        version = machines.listed()["version"]
        expected = {"config_version": version, "joint": 0, "voters": [6, 7, 8]}
        assert {name: reported[f"raft_{name}"] for name in expected} == expected
        fields = re.findall(r"^\| `(raft_[a-z_]+)` \| ", PAGE, re.MULTILINE)
        assert set(fields) == {f"raft_{name}" for name in expected}


@pytest.mark.slow
def test_a_spare_takes_the_place_of_a_lost_voter(tmp_path: Path) -> None:
    patience = "\n[timeouts]\nreplace_after = 5.0\n"
    with Machines.founded(tmp_path, patience) as machines:
        with client_of(f"{NETWORK}1", machines) as client:
            client.set("key", "before")
        (words,) = [words for words in commands() if "spare" in words]
        machines.do([word.replace("10.0.0.7:", "10.0.0.1:") for word in words])
        file, host = machines.files.pop()
        machines.install(host, file.read_text() + patience)
        assert machines.waiting is not None
        said = machines.waiting.communicate(timeout=2 * PATIENCE_SECONDS)[0]
        assert "follows as a spare, after " in said
        spare = load_config(machines.file(host)).member_id
        lost = next(n for n in range(3) if n != machines.listed()["leader"])
        machines.end(machines.hosts[lost], signal.SIGKILL)
        began = time.monotonic()
        machines.until(lambda: machines.voters() == {*range(3), spare} - {lost})
        assert time.monotonic() - began > 5.0  # not before it was silent for so long
        (leads,) = [machines.hosts[machines.listed()["leader"]]]
        text = (machines.root / f"{leads}.log").read_text()
        assert f"spare_used: the spare, member {spare}, takes the place of member {lost}" in text
        with client_of(host, machines) as client:
            assert client.get("key") == b"before"
        machines.start(machines.hosts[lost])
        machines.has_ended(lost)
        assert "was removed" in (machines.root / f"{machines.hosts[lost]}.log").read_text()
        assert machines.voters() == {*range(3), spare} - {lost}

"""docs/security.md: every command does what it says, on machines that are folders here."""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import re
import shutil
import signal
import subprocess
import time
import tomllib
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Final

import pytest
import redis
import trio

from quorate.client import secure
from quorate.local.cluster import free_client_port, tls_ports_for
from quorate.local.survey import Survey, Verdict, survey
from quorate.node.config.config import MemberConfig, NodeConfig
from quorate.node.requests.status import MemberAddress
from tests.support.real import PATIENCE_SECONDS, QUORATE, quorate

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
NETWORK: Final = "127.0.50."
"""Where the machines of the page are: each has an address of the loopback network."""


def blocks(section: str, language: str = "") -> list[str]:
    """The blocks of code below a heading."""
    text = re.split(rf"^##+ {section}\n", PAGE, flags=re.MULTILINE)[1]
    text = re.split(r"^##+ ", text, flags=re.MULTILINE)[0]
    found = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [block for name, block in found if name == language]


def lines(section: str) -> Iterator[str]:
    """The commands below a heading."""
    for block in blocks(section):
        yield from block.splitlines()


class Machines:
    """The operator's folder, and three machines: 10.0.0.1 is a folder and an address here."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.patch = patch
        self.port = free_client_port(3)
        self.processes: list[subprocess.Popen[bytes]] = []

    def folder(self, number: int) -> Path:
        return self.root / f"10.0.0.{number + 1}"

    def install(self, table: str) -> None:
        """Write the file of each member, with a table for member 0 of the page."""
        ports, _, table = table.partition("\n\n")
        assert tomllib.loads(ports) == {"client_port": 0, "tls_port": 7000}
        members = tuple(
            MemberConfig(n, f"{NETWORK}{n + 1}", self.port + 10_000, 0, tls_port=self.port)
            for n in range(3)
        )
        for number in range(3):
            self.folder(number).mkdir()
            plain = NodeConfig("orders", number, Path("data"), members).to_toml()
            mine = table.replace("member-0", f"member-{number}")
            (self.folder(number) / "node.toml").write_text(f"{plain}\n{mine}")

    def do(self, line: str) -> None:
        """Do what a line of the page says; its machines are folders."""
        if line.startswith("scp "):
            *files, target = line.split()[1:]
            host, _, place = target.partition(":")
            assert place == "/etc/quorate/"
            for file in files:
                shutil.copy(self.root / file, self.root / host)
        elif line.startswith("export "):
            for pair in line.split()[1:]:
                name, _, file = pair.partition("=")
                self.patch.setenv(name, str(self.root / file))
        elif line.startswith("redis-cli "):
            self.talk(line.split()[1:])
        elif line == "quorate run /etc/quorate/node.toml":
            for number in range(3):
                self.start(number)
        elif "/etc/quorate/" in line:
            for number in range(3):
                self.call(line.replace("/etc/quorate", str(self.folder(number))))
        else:
            self.call(line)

    def adapted(self, line: str) -> str:
        """A line of the page, for the addresses here."""
        found = line.replace("--host 10.0.0.", f"--host {NETWORK}")
        return re.sub(r"10\.0\.0\.(\d):7000", rf"{NETWORK}\1:{self.port}", found)

    def talk(self, words: list[str]) -> None:
        """Do as redis-cli does; but check the name of the host, as strict clients do."""
        options = dict(zip(words[1:11:2], words[2:12:2], strict=True))
        assert [words[0], *options] == ["--tls", "--cacert", "--cert", "--key", "-h", "-p"]
        with redis.Redis(
            options["-h"].replace("10.0.0.", NETWORK),
            self.port,
            ssl=True,
            ssl_check_hostname=True,
            ssl_ca_certs=str(self.root / options["--cacert"]),
            ssl_certfile=str(self.root / options["--cert"]),
            ssl_keyfile=str(self.root / options["--key"]),
        ) as client:
            assert client.execute_command(*words[11:])

    def call(self, line: str) -> None:
        program, *words = self.adapted(line).split()
        if program != "quorate":
            subprocess.run(["/bin/sh", "-c", line], cwd=self.root, check=True)
            return
        with chdir(self.root):
            done = quorate(*words)
        assert done.returncode == 0, (line, done.stdout, done.stderr)

    def start(self, number: int) -> None:
        with (self.root / f"{number}.log").open("ab") as log:
            options = ("--stop-at-eof", "--log-level", "DEBUG")  # for the lines about links
            command = [*QUORATE, "run", *options, str(self.folder(number) / "node.toml")]
            self.processes.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
            )

    def survey(self) -> Survey:
        hosts = [MemberAddress(n, f"{NETWORK}{n + 1}", self.port) for n in range(3)]
        # The files may be others now.
        secure._made.cache_clear()  # pyright: ignore[reportPrivateUsage]
        return trio.run(survey, hosts)

    def until_agreed(self) -> Survey:
        end = time.monotonic() + PATIENCE_SECONDS
        while (seen := self.survey()).verdict is not Verdict.AGREED:
            assert time.monotonic() < end, seen.problems
            time.sleep(0.2)
        return seen

    def copy_ca(self) -> None:
        for number in range(3):
            shutil.copy(self.root / "certs/ca.crt", self.folder(number))

    def reload(self) -> None:
        """Have the members look at once."""
        for process in self.processes:
            process.send_signal(signal.SIGHUP)

    def until_renewed(self, before: list[int], numbers: set[int]) -> list[int]:
        """Wait until just these members have another certificate; return when each expires."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            seen = self.until_agreed()
            now = [one.certificate_expires_ms for one in seen.said]
            if {n for n in range(3) if now[n] != before[n]} == numbers:
                return now
            assert time.monotonic() < end, seen.problems
            time.sleep(0.2)

    def dials(self) -> list[int]:
        """How many links each member has closed, to dial them again."""
        logs = [(self.root / f"{number}.log").read_text() for number in range(3)]
        return [log.count("closed by this member") for log in logs]

    def until_dialled_again(self, before: list[int]) -> None:
        """Wait until each member has dialled both its links again; then none of that is left."""
        end = time.monotonic() + PATIENCE_SECONDS
        while any(now < then + 2 for now, then in zip(self.dials(), before, strict=True)):
            assert time.monotonic() < end, (before, self.dials())
            time.sleep(0.2)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


def test_each_command_of_the_page_is_run_below() -> None:
    sections = re.findall(r"^##+ (.*)$", PAGE, re.MULTILINE)
    shown = {section for section in sections if [*lines(section)]}
    keys = {"A cluster key", "Archives"}
    assert shown == keys | {
        *(
            "The first client",
            "Clients",
            "Set-up in ten commands",
            "A new certificate",
            "A new CA",
            "From plain to TLS",
        )
    }
    first, second = ([*lines(section)][:2] for section in sorted(keys))
    assert [line.replace("cluster", "backup") for line in first] == second


@pytest.mark.slow
def test_the_set_up_and_both_rotations_do_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = Machines(tmp_path, monkeypatch)
    (table,) = blocks("Set-up in ten commands", "toml")
    machines.install(table)
    commands = list(lines("Set-up in ten commands"))
    assert len(commands) == 10
    try:
        for line in commands:
            machines.do(line)
        export, *rest = lines("The first client")
        machines.do(export)
        machines.until_agreed()
        for line in rest:
            machines.do(line)
        first = machines.until_renewed([0, 0, 0], {0, 1, 2})

        time.sleep(1)  # the last second of a certificate differs
        for line in lines("A new certificate"):
            machines.do(line)
        machines.reload()
        second = machines.until_renewed(first, {0})

        begin, *renewals, finish = lines("A new CA")
        time.sleep(1)  # as above
        machines.do(begin)
        machines.copy_ca()
        machines.reload()
        for line in renewals:
            machines.do(line)
        for number in range(3):
            for suffix in ("crt", "key"):
                file = tmp_path / "certs" / f"member-{number}.{suffix}"
                shutil.copy(file, machines.folder(number))
            machines.reload()
            machines.until_renewed(second, {*range(number + 1)})
        machines.do(finish)
        machines.copy_ca()
        before = machines.dials()
        machines.reload()
        machines.until_dialled_again(before)
        machines.until_agreed()
        for line in lines("Clients"):
            machines.do(line)
        (line,) = lines("From plain to TLS")
        machines.do(line)
        assert [process.wait(PATIENCE_SECONDS) for process in machines.processes] == [0, 0, 0]
    finally:
        machines.end()


@pytest.mark.slow
def test_the_archive_of_a_backup_is_restored_as_the_page_says(tmp_path: Path) -> None:
    directory, port = tmp_path / "c", free_client_port(3)
    command = [*QUORATE, "cluster", "--dir", str(directory), "--tls", "--client-port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        hosts = [MemberAddress(n, "127.0.0.1", port + n) for n in range(3)]
        end = time.monotonic() + PATIENCE_SECONDS
        while trio.run(survey, hosts).verdict is not Verdict.AGREED:
            assert time.monotonic() < end
            time.sleep(0.2)
        certs = directory / "certs"
        with redis.Redis(
            "localhost",
            tls_ports_for(3, port)[0],
            ssl=True,
            ssl_ca_certs=str(certs / "ca.crt"),
            ssl_certfile=str(certs / "client-default.crt"),
            ssl_keyfile=str(certs / "client-default.key"),
        ) as client:
            assert client.acl_whoami() == "default"
        done = quorate(
            *("backup", "--to", str(tmp_path / "backups/orders")),
            *("--connect", f"127.0.0.1:{port}"),
            *("--security", str(directory / "member-0/node.toml")),
        )
        assert done.returncode == 0, done.stderr
        (tmp_path / "mnt").mkdir()
        for text in lines("Archives"):
            line = text.replace("/var/", "").replace("/mnt", "mnt").replace("lib/", "")
            with chdir(tmp_path):
                if line.startswith("quorate"):
                    done = quorate(*line.split()[1:])
                    assert done.returncode == 0, done.stderr
                else:
                    subprocess.run(["/bin/sh", "-c", line], check=True)
        assert len([*tmp_path.glob("rescue/member-*/node.toml")]) == 3
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 0

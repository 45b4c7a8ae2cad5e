"""Run the suites that other projects wrote for etcd against quorate.

::

    python -m tests.etcd.foreign.run DIRECTORY [etcd3gw tooz aetcd etcd3 end-to-end]

The suites are fetched from PyPI; those of etcd itself come with Debian's
``golang-etcd-server-dev`` and are compiled with Go. The directory keeps archives, environments and
output. The exit code is 1 if a test fails that is not listed in :mod:`.suites`.
"""

import os
import re
import shutil
import subprocess
import sys
import venv
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from quorate.local.cluster import HOST, free_client_port
from tests.etcd.foreign.suites import KNOWN_END_TO_END, LEFT_OUT, SUITES, WITHOUT_TLS, Suite
from tests.etcd.oracle.servers import SHIM, child, wait_until_healthy

GOPATH: Final = Path("/usr/share/gocode")
ETCD: Final = GOPATH / "src/go.etcd.io/etcd"
END_TO_END: Final = "end-to-end"
SUITE_SECONDS: Final = 600
TEST_SECONDS: Final = 60
STRIDE: Final = 5
NAMES: Final = ("pifpaf1", "pifpaf2", "pifpaf3")
"""python-etcd3 and aetcd stop the first two processes with these names, and ask the third."""


def main(words: list[str]) -> int:
    """Run suites; return the exit code."""
    folder = Path(words[0]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    unexpected = 0
    for name in words[1:] or [*SUITES, END_TO_END]:
        known = KNOWN_END_TO_END if name == END_TO_END else SUITES[name].known
        place = folder / name
        place.mkdir(exist_ok=True)
        verdicts = run_end_to_end(place) if name == END_TO_END else run_suite(SUITES[name], place)
        unexpected += report(name, verdicts, known)
    return 1 if unexpected else 0


def report(name: str, verdicts: Mapping[str, str], known: Mapping[str, str]) -> int:
    """Print what came out; return how many tests failed unexpectedly."""
    bad = {test for test, verdict in verdicts.items() if verdict == "failed"}
    new = {test for test in bad if plain(test) not in known}
    counts = Counter(verdict.split(": ")[0] for verdict in verdicts.values())
    kinds = ("passed", "failed", "skipped")
    show(f"{name}: " + ", ".join(f"{counts[kind]} {kind}" for kind in kinds))
    for verdict, count in Counter(verdicts.values()).most_common():
        if verdict.startswith("skipped"):
            show(f"  {count} {verdict}")
    for test in sorted(bad - new):
        show(f"  known: {test}: {known[plain(test)]}")
    for test in sorted(known.keys() - {plain(test) for test in bad}):
        show(f"  passes now, or is gone: {test}")
    for test in sorted(new):
        show(f"  NEW: {test}")
    return len(new) + (not counts["passed"])


def plain(test: str) -> str:
    """Return the name of a test without its module, class and parameters."""
    return test.split("[", maxsplit=1)[0].rpartition(".")[2]


def show(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)  # noqa: T201 - a program's output


def run_suite(suite: Suite, folder: Path) -> dict[str, str]:
    """Fetch a suite in Python, run it against three members, and return each test's verdict."""
    python = folder / "env/bin/python"
    if not python.exists():
        venv.create(folder / "env", with_pip=True)
        pip = [str(python), "-m", "pip", "--quiet"]
        subprocess.run([*pip, "install", suite.source, *suite.requirements], check=True)
        subprocess.run([*pip, "download", "--no-deps", "-d", str(folder), suite.source], check=True)
        if suite.tests == "tests":  # only the source archive has them
            for wheel in folder.glob("*.whl"):
                wheel.unlink()
            source = [*pip, "download", "--no-deps", "--no-binary", ":all:", "-d", str(folder)]
            subprocess.run([*source, suite.source], check=True)
    (archive,) = [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]
    shutil.unpack_archive(archive, folder, "zip" if archive.suffix == ".whl" else None)
    (tests,) = [path for path in (folder / suite.tests, *folder.glob(f"*/{suite.tests}"))
                if path.exists() and "env" not in path.parts[-3:]]  # fmt: skip
    (folder / "pytest.ini").touch()  # else pytest takes the settings and conftest.py of quorate
    with ExitStack() as stack:
        port = members(stack, folder / "members")
        url = f"http://{HOST}:{port}"
        given = {k: v.format(url=url, port=port) for k, v in suite.variables.items()}
        results = folder / "results.xml"
        words = [str(python), "-m", "pytest", str(tests), f"--junitxml={results}", "-q"]
        words += ["-p", "no:cacheprovider", "--timeout", str(TEST_SECONDS), *suite.options]
        with (folder / "output").open("wb") as output:
            subprocess.run(
                words, env={**os.environ, **given}, stdout=output, stderr=subprocess.STDOUT,
                timeout=SUITE_SECONDS, check=False,
                cwd=folder if archive.suffix == ".whl" else tests.parent,
            )  # fmt: skip
    cases = ET.parse(results).iter("testcase")
    return {f"{case.attrib['classname']}.{case.attrib['name']}": verdict_of(case) for case in cases}


def verdict_of(case: ET.Element) -> str:
    """Return "passed", "failed" or "skipped: why"."""
    parts = {part.tag: part.get("message", "") for part in case}
    if parts.keys() & {"failure", "error"}:
        return "failed"
    return f"skipped: {parts['skipped']}" if "skipped" in parts else "passed"


def members(stack: ExitStack, folder: Path) -> int:
    """Run three members until the stack ends; return the last one's port."""
    shutil.rmtree(folder, ignore_errors=True)
    first = free_client_port(len(NAMES) * STRIDE)
    ports = [first + i * STRIDE for i in range(len(NAMES))]
    pairs = list(zip(NAMES, ports, strict=True))
    everyone = ",".join(f"{name}=http://{HOST}:{port + 1}" for name, port in pairs)
    children = [
        stack.enter_context(child(SHIM, folder / name, name, port, everyone))
        for name, port in pairs
    ]
    for port, process in zip(ports, children, strict=True):
        wait_until_healthy(port, process)
    return ports[-1]


def run_end_to_end(folder: Path) -> dict[str, str]:
    """Compile etcd's own tests and run each that can run; return each test's verdict."""
    program = folder / "end-to-end.test"
    if not program.exists():
        go = {"GO111MODULE": "off", "GOPATH": str(GOPATH), "GOCACHE": str(folder / "cache")}
        words = ["go", "test", "-c", "-o", str(program), "."]
        subprocess.run(words, cwd=ETCD / "tests/e2e", env={**os.environ, **go}, check=True)
    programs = folder / "bin"
    shutil.rmtree(programs, ignore_errors=True)
    programs.mkdir()
    (programs / "etcdctl").symlink_to(shutil.which("etcdctl") or "etcdctl")
    shim, root = programs / "etcd", Path(__file__).parents[3]
    shim.write_text(f'#!/bin/sh\ncd "{root}" && exec "{sys.executable}" -m {SHIM[-1]} "$@"\n')
    shim.chmod(0o755)
    listed = subprocess.run(
        [program, "-test.list", "TestCtlV3|TestV3Curl"], capture_output=True, text=True, check=True
    )
    names = [name for name in listed.stdout.split() if name.startswith("Test")] + WITHOUT_TLS
    return {name: run_one(program, name, programs, folder) for name in names}


def run_one(program: Path, name: str, programs: Path, folder: Path) -> str:
    """Run one of etcd's tests in a process of its own: some end the process."""
    for pattern, why in LEFT_OUT:
        if re.search(pattern, name):
            return f"skipped: {why}"
    words = ["-bin-dir", str(programs), "-cert-dir", str(ETCD / "integration/fixtures")]
    words += ["-test.v", "-test.run", f"^{name}$", f"-test.timeout={TEST_SECONDS}s"]
    with (folder / f"{name.replace('/', '-')}.output").open("wb") as output:
        done = subprocess.run(
            [program, *words], cwd=folder, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    return "failed" if done.returncode else "passed"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

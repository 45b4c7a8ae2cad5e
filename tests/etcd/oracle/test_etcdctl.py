"""Each verb of etcdctl prints next to quorate what it prints next to etcd, up to ids."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator

import attrs
import pytest

from tests.etcd.oracle.servers import SHIM, etcd_program, running

pytestmark = pytest.mark.slow

SECONDS = 20
VERBS = (
    "put a 1",
    "put a 2 --prev-kv",
    "put b 3",
    "get a",
    "get a --print-value-only",
    "get a -w json",
    "get a -w fields",
    "get a --hex",
    "get a b",
    "get --prefix '' --keys-only",
    "get --prefix '' --count-only -w fields",
    "get --prefix '' --limit 1 -w json",
    "get --from-key b",
    "get a --rev 2",
    "get a --rev 99",
    "get --prefix '' --sort-by MODIFY --order DESCEND",
    "get --consistency s a",
    "put --ignore-value nothing",
    "put --ignore-value a",
    "put a x --lease 1234",
    "del b --prev-kv",
    "del nothing",
    "del --prefix a -w json",
    "put a 1 -w json",
    "lease grant 100",
    "lease timetolive 1234",
    "lease revoke 1234",
    "lease keep-alive 1234 --once",
    "lease list",
    "compaction 5",
    "compaction 5",
    "compaction 99",
    "compaction 6 --physical",
    "get a --rev 2",
    "watch a --rev 2",
    "endpoint health",
    "alarm list",
    "alarm disarm",
    "defrag",
    "auth disable",
    "role list",
    "move-leader 1234",
    "move-leader x",
    "version",
)
"""In this order, on an empty store. Some are left out since they differ by nature: `auth enable`
and `user list` (users are those of the ACL), `member add` and `member update` (`quorate member`
does it), `snapshot` (the file of etcd is a bbolt file), `endpoint status` and `hashkv` (sizes)."""
IDS = re.compile(r'("?(?:cluster_id|member_id|raft_term|ClusterID|MemberID|RaftTerm)"? ?: ?)\d+')

TXNS = (
    'value("a") = "1"\n\nput a 7\nget a\n\nput a 8\n\n',
    'version("nothing") = "0"\n\nput n 1\n\ndel n\n\n',
    'mod("a") > "1000"\n\nput n 1\n\ndel a\nget --prefix n\n\n',
    "\nput twice 1\nput twice 2\n\n\n",
)


@attrs.frozen
class Printed:
    """What a verb printed, without ids and times."""

    code: int
    out: str
    err: str


@attrs.frozen
class Ctl:
    """An etcdctl for one server."""

    program: str
    port: int

    def run(self, words: str, typed: str = "") -> Printed:
        """Run a verb."""
        command = f"{self.program} --endpoints http://127.0.0.1:{self.port} {words}"
        done = subprocess.run(
            ["sh", "-c", command], input=typed, capture_output=True, text=True,
            timeout=SECONDS, check=False, env={**os.environ, "ETCDCTL_API": "3"},
        )  # fmt: skip
        return Printed(done.returncode, self._plain(done.stdout), self._error(done.stderr))

    def _plain(self, text: str) -> str:
        text = text.replace(str(self.port), "PORT")
        text = IDS.sub(r"\1*", text)
        text = re.sub(r"\b[0-9a-f]{15,16}\b", "ID", text)
        return re.sub(r"took = \S+|took \S+", "took TIME", text)

    def _error(self, text: str) -> str:
        lines = [line for line in text.splitlines() if not line.startswith('{"level"')]
        return self._plain("\n".join(lines))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ctl, Ctl]]:
    """Run both, with an etcdctl for each."""
    program = shutil.which(os.environ.get("ETCDCTL", "etcdctl"))
    if program is None:
        pytest.skip("runs etcdctl: install Debian's etcd-client")
    etcd, folder = [etcd_program()], tmp_path_factory.mktemp("etcdctl")
    with running(etcd, folder / "etcd") as real, running(SHIM, folder / "quorate") as ours:
        yield Ctl(program, real), Ctl(program, ours)


def test_each_verb_prints_the_same(pair: tuple[Ctl, Ctl]) -> None:
    real, ours = pair
    verbs = [(verb, "") for verb in VERBS] + [("txn", typed) for typed in TXNS]
    expected = {(i, *verb): real.run(*verb) for i, verb in enumerate(verbs)}
    found = {(i, *verb): ours.run(*verb) for i, verb in enumerate(verbs)}
    assert found == expected

"""The pytest plugin: its documented examples, run by a pytest of their own."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from quorate import pytest_plugin

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
PLUGIN = ("-p", "quorate.pytest_plugin", "-p", "no:xdist", "-p", "no:cacheprovider")

COUNTER = (ROOT / "examples" / "counter.py").read_text().partition("async def main")[0]


def examples() -> tuple[str, str]:
    """The two blocks of code in the plugin's docstring."""
    blocks = re.findall(r"::\n\n((?:    .*\n|\n)+)", pytest_plugin.__doc__ or "")
    virtual, loopback = ["".join(line[4:] or "\n" for line in b.splitlines(True)) for b in blocks]
    return virtual, loopback


def run(pytester: pytest.Pytester, code: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(code)
    return pytester.runpytest_subprocess(*options)


def options() -> tuple[str, ...]:
    """Load the plugin by its name, unless the installed entry point has done so."""
    code = "from importlib.metadata import entry_points as e; print(e(group='pytest11').names)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return PLUGIN[2:] if "'quorate'" in done.stdout else PLUGIN


def test_the_plugin_is_an_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"quorate": "quorate.pytest_plugin"}


def test_the_example_in_virtual_time(pytester: pytest.Pytester) -> None:
    result = run(pytester, f"{COUNTER}\n\n{examples()[0]}", *options())
    result.assert_outcomes(passed=1)


def test_the_example_on_loopback(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntrio_mode = true\n")
    result = run(pytester, examples()[1], *options())
    result.assert_outcomes(passed=1)


def test_the_key_value_store_in_virtual_time(pytester: pytest.Pytester) -> None:
    code = """
    import trio
    from quorate import KeyValue
    from quorate.simulation import Setting

    def test_the_store(quorate_world):
        async def script(world):
            leader = await world.settled()
            store = KeyValue(world.hosts[leader].running)
            await store.set("a", "b", ex=5)
            await trio.sleep(6)
            assert await store.get("a") is None
            return trio.current_time()

        five = quorate_world(script, setting=Setting(members=3, seed=1))
        assert five == quorate_world(script, setting=Setting(members=3, seed=1)) > 6
    """
    run(pytester, code, *options()).assert_outcomes(passed=1)


def test_an_error_of_a_script_fails_the_test(pytester: pytest.Pytester) -> None:
    code = """
    def test_wrong(quorate_world):
        async def script(world):
            assert await world.settled() == 7

        quorate_world(script)
    """
    result = run(pytester, code, *options())
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*AssertionError*"])


def test_a_cluster_goes_on_with_its_stores(pytester: pytest.Pytester) -> None:
    code = """
    import trio

    def test_restart(quorate_cluster):
        async def main():
            async with quorate_cluster(1) as (node,):
                await node.kv.set("a", "b")
            async with quorate_cluster(1) as (node,):
                assert await node.kv.get("a") == b"b"

        trio.run(main)
    """
    run(pytester, code, *options()).assert_outcomes(passed=1)


def test_a_pytest_that_uses_no_fixture_imports_nothing_heavy(pytester: pytest.Pytester) -> None:
    code = """
    import sys

    def test_nothing():
        assert "quorate.pytest_plugin" in sys.modules
        assert not {"trio", "lmdb", "attrs", "quorate.node"} & {*sys.modules}
    """
    without = ("-p", "no:trio", "-p", "no:hypothesispytest", "-p", "no:anyio")
    run(pytester, code, *options(), *without).assert_outcomes(passed=1)


def test_the_fixtures_have_help(pytester: pytest.Pytester) -> None:
    result = run(pytester, "", *options(), "--fixtures")
    result.stdout.fnmatch_lines(["quorate_world -- *", "*virtual time*"])
    result.stdout.fnmatch_lines(["quorate_cluster -- *", "*loopback*"])

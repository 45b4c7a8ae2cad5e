"""A real browser shows a cluster under load: a follower stands still, the leader is killed."""

import os
import re
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, expect

from quorate.node.protocol.states import EDGES, State
from tests.support.real import MEMBERS, RealCluster

from .chromium import CHROMIUM
from .layout import WIDTHS, reads_well
from .writers import load

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM, reason="needs chromium")]

WEB_PORT_OFFSET = 1001
BUSY = os.getloadavg()[0] > (os.cpu_count() or 1)
LONGEST_SECONDS = 3.0 if BUSY else 1.0
"""On a machine that has other work the election alone may take a second."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[RealCluster]:
    """One cluster: each test leaves it whole."""
    with RealCluster.run(tmp_path_factory.mktemp("live") / "cluster") as found:
        yield found


def stand_still(cluster: RealCluster, page: Page, member: int) -> None:
    """Stop a follower's process for a while: what it would say is unknown then, and said to be."""
    pid = int((cluster.directory / f"member-{member}" / "pid").read_text())
    row = page.locator(f'.row[data-member="{member}"]')
    expect(row.locator(".state")).to_have_text("follows")
    os.kill(pid, signal.SIGSTOP)
    try:
        expect(row.locator(".state")).to_have_text("not heard", timeout=5000)
        expect(row).to_have_class(re.compile("stale"))
        expect(row.locator(".for")).to_have_text("\N{EN DASH}")
        expect(page.locator("#margin")).to_have_text("▲ none may fail")
        expect(page.locator("#facts")).to_contain_text("2\u202f/\u202f3")
    finally:
        os.kill(pid, signal.SIGCONT)
    expect(row.locator(".state")).to_have_text("follows", timeout=10_000)
    expect(page.locator("#margin")).to_have_text("● one more may fail")


def kill_the_leader(cluster: RealCluster, page: Page) -> tuple[float, int]:
    """Kill the leader; return how long it took until the page showed another, and which."""
    title = page.locator("#leader")
    leader = cluster.leader
    expect(title).to_have_text(re.compile(f"Member {leader} leads"))
    began = time.monotonic()
    cluster.kill(leader)
    while True:
        found = re.match(r"Member (\d) leads term", title.text_content() or "")
        if found and int(found[1]) != leader:
            return time.monotonic() - began, int(found[1])
        assert time.monotonic() < began + 20
        time.sleep(0.01)


def transitions(page: Page, member: int) -> list[tuple[State, State]]:
    """The steps of a member that the list of events shows, the oldest first."""
    lines = page.locator('#list li[data-kind="enters"]').all_text_contents()
    found = [re.search(rf"{member}enters([A-Z_]+) → ([A-Z_]+)", line) for line in lines]
    return [(State[each[1]], State[each[2]]) for each in reversed(found) if each]


def test_a_killed_leader_is_seen_within_a_second(cluster: RealCluster, page: Page) -> None:
    leader = cluster.leader
    watcher = (leader + 1) % MEMBERS
    with load(cluster.ports):
        page.goto(f"http://127.0.0.1:{cluster.ports[watcher] + WEB_PORT_OFFSET}/")
        expect(page.locator("#leader")).to_have_text(re.compile(f"Member {leader} leads"))
        for width, height in WIDTHS:
            page.set_viewport_size({"width": width, "height": height})
            expect(page.locator("#facts")).to_contain_text("≈")
            assert reads_well(page) == [], width
        page.set_viewport_size({"width": 1280, "height": 720})
        stand_still(cluster, page, 3 - leader - watcher)
        took, new = kill_the_leader(cluster, page)
        # Only what the new leader did now: from where it left CLOSED.
        steps = transitions(page, new)
        steps = steps[max(i for i, (before, _) in enumerate(steps) if before is State.CLOSED) :]
        assert steps[-1] == (State.LEADER_READY, State.CLOSED)
        assert [after for _, after in steps[:-1]] == [before for before, _ in steps[1:]]
        assert all(after in EDGES[before] or before is State.CLOSED for before, after in steps)
        dead = page.locator(f'.row[data-member="{leader}"]')
        expect(dead.locator(".state")).to_have_text("not heard")
        expect(dead.locator(".why")).to_contain_text("it led then; member")
        # A page that is opened now shows the same steps, with their reasons and times.
        page.goto(f"http://127.0.0.1:{cluster.ports[watcher] + WEB_PORT_OFFSET}/")
        expect(page.locator('#list li[data-kind="enters"]').first).to_contain_text("→ CLOSED")
        assert transitions(page, new)[-len(steps) :] == steps
        expect(page.locator("#last li span").first).not_to_be_empty()
        page.locator("#last li button").last.click()
        expect(page.locator(f'.row[data-member="{new}"] .state')).not_to_have_text("not heard")
        page.keyboard.press("End")
        # A mark that passes a state does not hide its name.
        expect(page.locator("#states svg > *").last).to_have_class("names")
    cluster.restart_dead()
    cluster.wait_until_agreed()
    expect(dead.locator(".state")).to_have_text("follows", timeout=10_000)
    assert took < LONGEST_SECONDS


@contextmanager
def stopped(cluster: RealCluster, members: list[int]) -> Generator[None]:
    """Have members stand still for the duration of a block."""
    pids = [int((cluster.directory / f"member-{each}" / "pid").read_text()) for each in members]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_a_member_that_is_cut_off_says_what_it_hears(cluster: RealCluster, page: Page) -> None:
    """Its own page is looked at: what the silent majority does can't be known there."""
    leader = cluster.leader
    alone = (leader + 1) % MEMBERS
    rest = sorted({0, 1, 2} - {alone})
    page.set_viewport_size({"width": 400, "height": 800})
    title, facts = page.locator("#leader"), page.locator("#facts")
    page.goto(f"http://127.0.0.1:{cluster.ports[alone] + WEB_PORT_OFFSET}/")
    expect(title).to_have_text(re.compile(f"Member {leader} leads"))
    expect(page.locator("#leader-by")).to_contain_text(f"reported by member {leader}, ")
    expect(facts).to_contain_text("all 3, ")
    with stopped(cluster, rest):
        says = f"Member {alone} hears 1 of 3 voters; the rest is not known"
        expect(title).to_have_text(says, timeout=10_000)
        for words in ("no quorum", "No leader"):
            expect(page.locator("header")).not_to_contain_text(words)
        expect(page.locator("#margin")).to_have_text("? quorum not known")
        last = re.compile(rf"last known: member {leader} led term \d+, heard \d.* ago")
        expect(page.locator("#leader-by")).to_have_text(last)
        expect(facts).to_contain_text(f"only {alone}, now")
        expect(facts).to_contain_text(re.compile(r"commands/s≥ "))
        for member in rest:
            row = page.locator(f'.row[data-member="{member}"]')
            expect(row).to_have_class(re.compile("stale"))
            expect(row.locator(".lag")).to_have_text("\N{EN DASH}")
            hatched = re.compile("repeating-linear-gradient")
            expect(row.locator("> .append")).to_have_css("background-image", hatched)
        own = page.locator(f'.row[data-member="{alone}"]')
        expect(own.locator(".lag")).to_have_text("\N{EN DASH}")
        assert reads_well(page) == []
    expect(page.locator("#margin")).to_have_text("● one more may fail", timeout=10_000)


def test_a_page_whose_member_stands_still_is_not_called_live(
    cluster: RealCluster, page: Page
) -> None:
    member = (cluster.leader + 1) % MEMBERS
    page.goto(f"http://127.0.0.1:{cluster.ports[member] + WEB_PORT_OFFSET}/")
    header = page.locator("header")
    expect(header).to_contain_text(f"● live, seen from member {member}")
    with stopped(cluster, [member]):
        expect(header).to_contain_text(
            f"seen from member {member}, which is silent for ", timeout=10_000
        )
        expect(header).not_to_contain_text("live")
    expect(header).to_contain_text(f"● live, seen from member {member}", timeout=10_000)

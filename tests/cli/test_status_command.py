"""`quorate status` shows what every member says, also when two disagree, and its exit status."""

import io
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from rich.console import Console

from quorate.cli.cluster import leader_line
from quorate.cli.params import parse_address
from quorate.cli.status import render
from quorate.doctor.cluster import judge_problems, judge_silence
from quorate.doctor.finding import Level
from quorate.errors import ConfigurationError
from quorate.local.cluster import HOST
from quorate.local.survey import (
    Answer,
    StuckError,
    Survey,
    Verdict,
    agreed,
    agreed_and_applied,
    ask,
    survey,
    until,
    with_list,
)
from quorate.node.requests.status import EtcdStatus, MemberAddress, NodeStatus, PeerStatus
from tests.cli.test_member_list import answer, listed, seat

ADDRESSES = tuple(MemberAddress(n, HOST, 7000 + n) for n in range(3))


def status_of(member_id: int, *, leader_id: int | None = 1, **changes: object) -> NodeStatus:
    peers = tuple(PeerStatus(n, True, 4096, 0.02) for n in range(3) if n != member_id)
    plain = NodeStatus(
        member_id=member_id,
        cluster="orders",
        role="leader" if member_id == leader_id else "follower",
        state="CLOSED",
        state_age_s=12.0,
        term=4,
        leader_id=leader_id,
        log_term=4,
        start_position=0,
        append_position=4096,
        commit_position=4096,
        applied_position=4096,
        elections=5,
        uptime_s=60.0,
        timestamp_ms=1_000,
        parked=0,
        forwarded=0,
        incarnation=77,
        snapshot_position=-1,
        snapshot_activity="",
        suspended=False,
        disk_full=False,
        damage="",
        standing="member",
        not_heard=(),
        entries=7,
        batches=5,
        commits=4,
        lease_s=0.0,
        clock_skew_ms=20,
        peers=peers,
    )
    return attrs.evolve(plain, **changes)  # type: ignore[arg-type]


def seen(*said: NodeStatus | None) -> Survey:
    return Survey(
        tuple(
            Answer(address, status, None if status else "connection refused", ADDRESSES)
            for address, status in zip(ADDRESSES, said, strict=True)
        )
    )


AGREED = seen(status_of(0), status_of(1), status_of(2))


def shown(what: Survey, width: int = 160) -> str:
    console = Console(width=width, file=io.StringIO())
    render(what, console, ("db1:7000",))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_three_members_that_agree_are_agreed() -> None:
    assert (AGREED.verdict, AGREED.problems, AGREED.spare) == (Verdict.AGREED, [], 1)


def test_the_summary_of_an_agreed_cluster_says_who_leads_and_how_many_can_be_lost() -> None:
    text = shown(AGREED)
    assert (
        'Cluster "orders": member 1 leads term 4; all 3 members agree, 1 more can be lost.' in text
    )


def test_a_line_tells_of_etcds_keyspace_by_the_member_that_has_most_of_it() -> None:
    ports = EtcdStatus(12, 0, 3, 0, 2, 1), EtcdStatus(1042, 40, 31, 1, 1, 0), None
    said = [status_of(each, etcd=port) for each, port in enumerate(ports)]
    text = " ".join(shown(seen(*said)).split())
    assert (
        "etcd: revision 1,042 (readable from 40 on), 31 keys, 1 lease; "
        "3 watches and 1 connection at 2 members." in text
    )
    (answer, *_) = json.loads(seen(*said).as_json())["members"]
    assert answer["status"]["etcd"]["keys"] == 3
    assert "etcd" not in shown(AGREED)


def test_each_member_has_a_row_with_its_state_and_age() -> None:
    rows = [line.split() for line in shown(AGREED).splitlines()[1:4]]
    assert [row[0] for row in rows] == ["0", "1", "2"]
    assert all(" ".join(row[3:7]) == "CLOSED for 12 s" for row in rows)
    assert [row[2] for row in rows] == ["follower", "leader", "follower"]
    assert all(row[8:11] == ["4,096"] * 3 for row in rows)


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160])
def test_a_narrow_terminal_loses_columns_and_never_a_digit(width: int) -> None:
    far = status_of(0, append_position=1_234_567_890, commit_position=1_234_567_890)
    text = shown(seen(far, status_of(1), None), width)
    header, *rows = text.splitlines()[:4]
    assert [row.split()[1] for row in rows] == [f"{HOST}:{7000 + n}" for n in range(3)]
    assert all(len(line.rstrip()) <= width for line in (header, *rows))
    for name in ("member", "listens at", "role", "term"):
        assert name in header
    assert ("lag" in header) == (width > 60)
    left_out = [line for line in text.splitlines() if line.startswith("Left out")]
    assert ("appended" in header) == (width == 160)
    assert ("1,234,567,890" in rows[0]) == ("committed" in header)
    assert bool(left_out) == (width < 160)
    assert all("appended" in line for line in left_out)


def test_lag_is_told_in_words() -> None:
    behind = status_of(0, append_position=1024, commit_position=1024, applied_position=512)
    ahead = status_of(2, append_position=8192)
    text = shown(seen(behind, status_of(1), ahead)).splitlines()
    assert "3.0 KiB behind, 512 B to apply" in text[1]
    assert "up to date" in text[2]
    assert "4.0 KiB ahead" in text[3]


def test_a_clock_that_differs_much_from_the_logs_time_is_a_problem() -> None:
    ahead = status_of(0, clock_skew_ms=86_400_000 * 3650)
    behind = status_of(2, clock_skew_ms=-7_000)
    assert seen(ahead, status_of(1, clock_skew_ms=-5_000), behind).problems == [
        "Member 0: its clock is 3650 d ahead of the log's time.",
        "Member 2: its clock is 7.0 s behind the log's time.",
    ]


def test_a_member_that_looks_for_a_leader_is_not_called_up_to_date() -> None:
    canvassing = status_of(0, state="CANVASS", role="candidate", leader_id=None)
    lines = shown(seen(canvassing, status_of(1), status_of(2))).splitlines()
    assert "not known yet" in lines[1]
    assert "up to date" in lines[3]


def test_without_a_leader_the_longest_log_is_named() -> None:
    short = status_of(0, leader_id=None, role="candidate", append_position=1024)
    longest = status_of(2, leader_id=None, role="candidate")
    lines = shown(seen(attrs.evolve(short, commit_position=0, applied_position=0), None, longest))
    assert "3.0 KiB behind" in lines.splitlines()[1]
    assert "longest log" in lines.splitlines()[3]


def test_whom_the_leader_has_not_heard_yet_is_told() -> None:
    unheard = tuple(PeerStatus(n, False, -1, None) for n in (0, 2))
    lines = shown(seen(status_of(0), status_of(1, peers=unheard), None)).splitlines()
    assert [line.rstrip()[-7:] for line in lines[1:4:2]] == ["not yet", "not yet"]
    lines = shown(seen(None, None, status_of(2, leader_id=None, peers=unheard))).splitlines()
    assert [line.split()[-1] for line in lines[1:4]] == ["-", "-", "-"]


def test_fewer_than_a_quorum_is_told() -> None:
    alone = seen(None, None, status_of(2, leader_id=None))
    assert "1 of 3 voters answer; writes need 2." in alone.problems


def test_damage_that_is_not_mended_yet_is_told() -> None:
    damaged = seen(
        status_of(0), status_of(1, damage="the end of its log was damaged"), status_of(2)
    )
    assert damaged.problems == ["Member 1: the end of its log was damaged."]
    assert damaged.verdict is Verdict.DISAGREED


def test_a_member_that_does_not_answer_is_a_row_and_a_problem() -> None:
    partly = seen(status_of(0), status_of(1), None)
    assert partly.verdict is Verdict.DISAGREED
    assert partly.problems == ["Member 2 does not answer: connection refused."]
    assert partly.spare == 0
    assert "no answer" in shown(partly).splitlines()[3]
    assert (
        shown(partly).splitlines()[3].rstrip().endswith("0.02 s ago")
    )  # when the leader heard it last


@pytest.mark.parametrize(
    "error", ["NOAUTH Authentication required.", "WRONGPASS invalid username-password pair"]
)
def test_a_member_that_refuses_its_status_does_answer(error: str) -> None:
    refusing = Survey((Answer(MemberAddress(-1, "::1", 22100), None, error),))
    (words,) = refusing.problems
    assert words.startswith(f"[::1]:22100 answers, but refuses its status: {error.strip('.')}. Set")
    assert "QUORATE_USER and QUORATE_PASSWORD" in words
    assert ".." not in words
    line = leader_line(refusing)
    assert line.startswith("members run, but refuse their status: ")
    assert "QUORATE_USER" in line
    assert refusing.verdict is Verdict.UNREACHABLE
    finding = judge_silence(refusing, asked=False)
    assert finding.level is Level.UNKNOWN
    assert finding.found.startswith("members answer, but refuse their status")


def test_without_a_quorum_the_doctor_has_one_problem() -> None:
    alone = seen(status_of(0, leader_id=None, role="candidate", state="CANVASS"), None, None)
    assert len(alone.problems) > 2
    found = judge_problems(alone)
    assert [each.level for each in found] == [Level.PROBLEM]
    assert "writes need 2" in found[0].found


def test_two_that_claim_to_lead_are_both_shown() -> None:
    split = seen(status_of(0, leader_id=0, term=3), status_of(1), status_of(2))
    assert split.verdict is Verdict.DISAGREED
    assert split.problems == [
        "2 members say that they lead: member 0 (term 3) and member 1 (term 4).",
        "They disagree about the leader: member 0 says member 0; members 1 and 2 say member 1.",
        "They disagree about the term: member 0 says 3; members 1 and 2 say 4.",
    ]
    assert split.leader == split.said[1]
    assert [line.split()[2] for line in shown(split).splitlines()[1:3]] == ["leader", "leader"]


def test_no_leader_is_a_problem() -> None:
    nobody = seen(*(status_of(n, leader_id=None, role="candidate") for n in range(3)))
    assert nobody.problems == ["No member says that it leads."]


def test_a_leader_that_others_do_not_know_yet_is_not_agreed() -> None:
    early = seen(status_of(0, leader_id=None), status_of(1), status_of(2))
    assert early.problems == [
        "They disagree about the leader: member 0 says no member; members 1 and 2 say member 1."
    ]


def test_a_member_that_has_not_joined_yet_is_not_agreed() -> None:
    joining = seen(status_of(0, state="FOLLOWER_CATCHUP"), status_of(1), status_of(2))
    assert joining.problems == ["Member 0 is in an election: FOLLOWER_CATCHUP."]


def test_before_its_founding_a_cluster_is_said_to_be_new() -> None:
    waiting = seen(
        status_of(0, leader_id=None, role="candidate", state="INIT", standing="fresh"),
        status_of(1, leader_id=None, state="INIT", standing="fresh", not_heard=(2,)),
        None,
    )
    assert waiting.problems == [
        "Member 2 does not answer: connection refused.",
        "Member 0 waits for all members of a new cluster.",
        "Member 1 waits for all members of a new cluster; it has not heard of member 2.",
    ]
    assert waiting.verdict is Verdict.DISAGREED


def test_a_member_alone_is_not_all_members() -> None:
    alone = Survey((Answer(ADDRESSES[1], status_of(1)),))
    assert "leads term 4; it is the only voter, none can be lost." in shown(alone)


def test_an_ipv6_address_is_in_brackets() -> None:
    address = MemberAddress(-1, "::1", 22100)
    silent = Survey((Answer(address, None, "connection refused"),))
    assert silent.problems == ["[::1]:22100 does not answer: connection refused."]
    assert "[::1]:22100" in shown(silent)


def test_nothing_reachable_is_its_own_verdict() -> None:
    assert seen(None, None, None).verdict is Verdict.UNREACHABLE


def test_json_holds_every_members_words() -> None:
    plain = json.loads(AGREED.as_json())
    assert (plain["verdict"], plain["leader_id"], plain["spare_members"]) == ("agreed", 1, 1)
    assert plain["members"][1]["status"] == json.loads(json.dumps(attrs.asdict(status_of(1))))
    assert plain["members"][1]["client_port"] == 7001


def joining(*seats: dict[str, object]) -> Survey:
    leads = status_of(1, config_version=7, voters=(0, 1, 2))
    return attrs.evolve(seen(status_of(0), leads, status_of(2)), listed=listed(*seats))


def test_a_member_that_joins_is_shown_with_what_it_waits_for() -> None:
    new = {"state": "joining", "waits": "lagging", "behind": 3 << 20, "replaces": 2}
    found = joining(seat(0), seat(1), seat(2), seat(3, **new))
    assert found.verdict is Verdict.AGREED
    text = shown(found)
    assert "Member 3 joins as a voter in the place of member 2: lagging, 3.0 MiB behind." in text
    assert "what to do: quorate member list --connect db1:7000" in text
    (one,) = json.loads(found.as_json())["joining"]
    assert (one["member_id"], one["waits"], one["replaces"]) == (3, "lagging", 2)
    assert "quorate member list" not in shown(joining(seat(0), seat(1), seat(2)))


def test_how_many_can_be_lost_is_said_although_a_member_is_gone() -> None:
    gone = seen(status_of(0), status_of(1), None)
    assert "leads term 4; 2 of 3 voters answer, none can be lost." in shown(gone)
    # Of five voters only three have an address that clients get.
    voters = status_of(1, config_version=9, voters=(0, 1, 2, 3, 4))
    found = seen(status_of(0), voters, status_of(2))
    assert (found.electorate, found.needed, found.spare) == (5, 3, 0)
    assert "4 of 5" not in shown(found)


async def test_until_returns_the_survey_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    surveys = iter([seen(None, None, None), seen(status_of(0), status_of(1), None), AGREED])

    async def next_one(_addresses: Sequence[MemberAddress]) -> Survey:
        await trio.lowlevel.checkpoint()
        return next(surveys)

    monkeypatch.setattr("quorate.local.survey.survey", next_one)
    assert await until(ADDRESSES, agreed, 10) is AGREED


async def test_until_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    behind = seen(status_of(0, applied_position=1), status_of(1), status_of(2))

    async def always(_addresses: Sequence[MemberAddress]) -> Survey:
        await trio.lowlevel.checkpoint()
        return behind

    monkeypatch.setattr("quorate.local.survey.survey", always)
    assert await until(ADDRESSES, agreed, 10) is behind
    with pytest.raises(StuckError, match=r"not there after 10 s: .*\[1, 4096, 4096\]"):
        await until(ADDRESSES, agreed_and_applied, 10)
    assert autojump_clock.current_time() == pytest.approx(10)


# Over a real connection -----------------------------------------------------------------------


@asynccontextmanager
async def serving(replies: Sequence[bytes]) -> AsyncGenerator[list[MemberAddress]]:
    """Listeners that answer whatever they are asked with one RESP reply each."""
    addresses: list[MemberAddress] = []
    async with trio.open_nursery() as nursery:
        for number, reply in enumerate(replies):

            async def answer(stream: trio.SocketStream, reply: bytes = reply) -> None:
                await stream.receive_some()
                await stream.send_all(reply)
                await stream.receive_some()

            (listener,) = await trio.open_tcp_listeners(0, host=HOST)
            addresses.append(MemberAddress(number, HOST, listener.socket.getsockname()[1]))
            nursery.start_soon(trio.serve_listeners, answer, [listener])
        yield addresses
        nursery.cancel_scope.cancel()


def bulk(status: NodeStatus, members: Sequence[MemberAddress]) -> bytes:
    topology = {"members": [attrs.asdict(member) for member in members], "leader_id": 1}
    text = json.dumps(attrs.asdict(status) | {"topology": topology}).encode()
    return b"$%d\r\n%s\r\n" % (len(text), text)


async def test_one_member_names_the_others_and_all_are_asked() -> None:
    async with (
        serving([b"-ERR not me\r\n"]) as (refusing,),
        serving([bulk(status_of(1), [])]) as (leader,),
    ):
        members = [attrs.evolve(refusing, member_id=0), attrs.evolve(leader, member_id=1)]
        async with serving([bulk(status_of(2), members)]) as (first,):
            found = await survey([first])
    assert [answer.address.member_id for answer in found.answers] == [0, 1, 2]
    assert [answer.error for answer in found.answers] == ["ERR not me", None, None]


async def test_a_closed_port_is_an_answer_in_words() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host=HOST)
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    answer = await ask(MemberAddress(0, HOST, port))
    assert (answer.status, answer.error) == (None, "connection refused")


async def test_a_connection_with_itself_is_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dial to a free port of this machine may be given that port for its own end."""

    async def dial(_host: str, _port: int) -> trio.SocketStream:
        sock = trio.socket.socket()
        await sock.bind((HOST, 0))
        await sock.connect(sock.getsockname())
        return trio.SocketStream(sock)

    monkeypatch.setattr(trio, "open_tcp_stream", dial)
    answer = await ask(MemberAddress(0, HOST, 7000))
    assert (answer.status, answer.error) == (None, "connection refused")


@pytest.mark.parametrize(
    "reply",
    [b"$2\r\n{}\r\n", b":7\r\n", b"$-1\r\n", b"$1\r\n{\r\n", b"HTTP/1.1 200", b"*1\r\n:1\r\n"],
)
async def test_an_answer_that_is_no_status_is_told(reply: bytes) -> None:
    async with serving([reply]) as (address,):
        with trio.fail_after(5):
            answer = await ask(address)
    assert answer.status is None
    assert answer.error


async def test_a_member_that_is_silent_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    began = autojump_clock.current_time()
    async with serving([b"$5\r\n"]) as (address,):
        answer = await ask(address)
    assert answer.error == "no answer within 2 s"
    assert autojump_clock.current_time() == pytest.approx(began + 2)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:7000", "127.0.0.1", 7000),
        ("[::1]:1", "::1", 1),
        ("db.example:65535", "db.example", 65535),
    ],
)
def test_addresses_are_read(text: str, host: str, port: int) -> None:
    assert parse_address(text) == MemberAddress(-1, host, port)


@pytest.mark.parametrize("text", ["7000", ":7000", "host:", "host:0", "host:65536", "host:x"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="expected HOST:PORT"):
        parse_address(text)


async def test_the_member_that_is_asked_says_where_others_reach_it() -> None:
    members = [MemberAddress(n, HOST, 7000 + n, 17000 + n) for n in range(3)]
    async with serving([bulk(status_of(2), members)]) as (asked,):
        found = await survey([attrs.evolve(asked, member_id=-1)])
    ports = {one["member_id"]: one["member_port"] for one in json.loads(found.as_json())["members"]}
    assert ports == {0: 17000, 1: 17001, 2: 17002}


async def test_the_leader_is_asked_for_the_members_if_they_have_changed() -> None:
    found = json.dumps(answer(seat(1), seat(3, state="joining", waits="behind"))).encode()
    async with serving([b"$%d\r\n%s\r\n" % (len(found), found)]) as (address,):
        where = attrs.evolve(address, member_id=1)
        first = Survey((Answer(where, status_of(1)),))
        assert (await with_list(first)).listed is None
        changed = Survey((Answer(where, status_of(1, config_version=3)),))
        assert [one.member_id for one in (await with_list(changed)).joining] == [3]
        nobody = Survey((Answer(where, None, "connection refused"),))
        assert (await with_list(nobody)).listed is None
    assert (await with_list(changed)).listed is None

"""Each check of the doctor judges what it measures, and says what to do."""

import socket
from pathlib import Path

import attrs
import pytest

from quorate.doctor import clock, directory, ports, sync_speed
from quorate.doctor.directory import check_directory, file_system
from quorate.doctor.finding import Level, Verdict, ok, problem, unknown, verdict, warning
from quorate.doctor.limits import memory_bytes
from quorate.doctor.peers import judge_answer, judge_skew
from quorate.doctor.software import check_software
from quorate.doctor.store import check_process
from quorate.local.survey import Answer
from quorate.node.config.config import PROFILES, Limits, MemberConfig, NodeConfig
from quorate.node.requests.status import MemberAddress

LAN = PROFILES["lan"]
HERE = MemberAddress(1, "127.0.0.1", 7001)


def config(directory: Path, port: int = 17100) -> NodeConfig:
    return NodeConfig("orders", 0, directory, (MemberConfig(0, "127.0.0.1", port, port + 1),))


def test_a_problem_counts_more_than_what_could_not_be_looked_at() -> None:
    fine, odd = ok("a", "x"), warning("a", "x", "y")
    assert verdict([fine, odd]) is Verdict.WELL
    assert verdict([fine, unknown("a", "x", "y")]) is Verdict.UNSEEN
    assert verdict([unknown("a", "x", "y"), problem("a", "x", "y"), fine]) is Verdict.PROBLEMS


@pytest.mark.parametrize(
    ("seconds", "slowest", "level"),
    [
        (0.001, 0.01, Level.OK),
        (0.001, 0.6, Level.WARNING),
        (0.2, 0.2, Level.WARNING),
        (0.5, 0.5, Level.PROBLEM),
    ],
)
def test_a_disk_is_compared_with_the_heartbeat_timeout(
    seconds: float, slowest: float, level: Level
) -> None:
    found = sync_speed.judge([*[seconds] * 199, slowest], LAN)
    assert found.level is level
    assert f"median {1000 * seconds:.2f} ms" in found.found
    assert found.figures["worst_seconds"] == slowest
    assert bool(found.remedy) == (level is not Level.OK)


def test_a_slow_disk_ends_the_measurement_and_leaves_no_file(tmp_path: Path) -> None:
    assert len(sync_speed.measure(tmp_path, seconds=0.0)) == 1
    assert len(sync_speed.measure(tmp_path, writes=3)) == 3
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("state", "status", "level"), [(0, 1, Level.OK), (5, 0, Level.WARNING), (0, 64, Level.WARNING)]
)
def test_a_clock_without_a_time_service_is_warned_of(state: int, status: int, level: Level) -> None:
    assert clock.judge(state, status, 16_000).level is level


def test_the_kernel_is_asked_for_the_clock() -> None:
    assert clock.check_clock().check == "clock"


@pytest.mark.parametrize(
    ("skew_ms", "doubt_ms", "level"),
    [
        (-20, 1, Level.OK),
        (1500, 1, Level.WARNING),
        (1500, 900, Level.OK),
        (-9000, 1, Level.PROBLEM),
    ],
)
def test_clocks_are_compared_with_regard_to_the_time_that_it_took(
    skew_ms: float, doubt_ms: float, level: Level
) -> None:
    assert judge_skew("member 1", skew_ms, doubt_ms).level is level


def test_the_nearest_mount_says_which_file_system_it_is(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        f"2 1 0:9 / {tmp_path} rw shared:1 - nfs4 server:/data rw\n"
        f"3 1 0:8 / {tmp_path}-other rw - tmpfs tmpfs rw\n"
    )
    assert file_system(tmp_path, mounts) == "nfs4"
    assert file_system(tmp_path.parent, mounts) == "ext4"
    assert file_system(tmp_path, tmp_path / "absent") == ""


@pytest.mark.parametrize("kind", ["nfs4", "tmpfs"])
def test_a_file_system_that_is_no_disk_is_warned_of(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(_place: Path) -> str:
        return kind

    monkeypatch.setattr(directory, "file_system", found)
    levels = {one.check: one.level for one in check_directory(config(tmp_path))}
    assert levels["file system"] is Level.WARNING


def test_a_full_disk_is_a_problem(tmp_path: Path) -> None:
    greedy = attrs.evolve(config(tmp_path), limits=Limits(reserve_bytes=2**50))
    levels = {one.check: one.level for one in check_directory(greedy)}
    assert levels["free space"] is Level.PROBLEM


def test_a_file_in_the_place_of_the_directory_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    first = next(check_directory(config(tmp_path / "file")))
    assert (first.level, first.check) == (Level.PROBLEM, "directory")


def test_the_least_of_machine_and_control_groups_is_the_memory(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal:       2048 kB\nMemFree: 1 kB\n")
    assert memory_bytes(tmp_path) == (2 << 20, "the machine")
    (tmp_path / "proc/self/cgroup").write_text("0::/a/b\n")
    (tmp_path / "sys/fs/cgroup/a/b").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    (tmp_path / "sys/fs/cgroup/a/b/memory.max").write_text("1048576\n")
    assert memory_bytes(tmp_path) == (1 << 20, "its control group")


def test_a_port_of_another_program_is_a_problem_and_ones_own_is_none(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = config(tmp_path, other.getsockname()[1])
        found = [one for one in ports.check_ports(taken, None) if "member_port" in one.found]
        assert found[0].level is Level.PROBLEM
        assert "ss -ltnp" in found[0].remedy
        found = [*ports.check_ports(taken, "4711")]
        assert found[0].level is Level.OK
        assert "process 4711" in found[0].found


def test_an_address_of_another_machine_can_not_be_listened_at(tmp_path: Path) -> None:
    away = attrs.evolve(config(tmp_path), member_listen_host="192.0.2.1")
    found = next(ports.check_ports(away, None))
    assert found.level is Level.PROBLEM
    assert "member_listen_host" in found.remedy


@pytest.mark.parametrize(
    ("error", "level"),
    [
        ("connection refused", Level.WARNING),
        ("no answer within 2 s", Level.PROBLEM),
        ("NOAUTH Authentication required.", Level.UNKNOWN),
        ("the connection was closed during the TLS handshake (is it a TLS port?)", Level.UNKNOWN),
    ],
)
def test_no_answer_is_judged_by_its_reason(error: str, level: Level) -> None:
    assert judge_answer("orders", 1, Answer(HERE, None, error)).level is level


def test_the_machine_of_these_tests_is_fit() -> None:
    assert {one.level for one in check_software()} <= {Level.OK, Level.WARNING}


def test_a_pid_file_that_was_left_is_warned_of(tmp_path: Path) -> None:
    assert check_process(tmp_path).level is Level.OK
    (tmp_path / "pid").write_text("4711\n")
    assert check_process(tmp_path).level is Level.WARNING

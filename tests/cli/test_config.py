"""A configuration that exists is valid, and an invalid one is told in the operator's words."""

from pathlib import Path
from typing import Any

import attrs
import pytest

from quorate.errors import ConfigurationError
from quorate.node.config.config import (
    PROFILES,
    Limits,
    MemberConfig,
    NodeConfig,
    Profile,
    Timeouts,
    load_config,
)

MEMBERS = tuple(MemberConfig(n, "127.0.0.1", 7100 + n, 7000 + n) for n in range(3))
GOOD = NodeConfig("orders", 1, Path(), MEMBERS)


def load(tmp_path: Path, text: str) -> NodeConfig:
    file = tmp_path / "node.toml"
    file.write_text(text)
    return load_config(file)


def told(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, text)
    lines = str(caught.value).splitlines()
    prefix = f"{tmp_path / 'node.toml'}: "
    assert all(line.startswith(prefix) for line in lines)
    return [line.removeprefix(prefix) for line in lines]


@pytest.mark.parametrize(
    "config",
    [
        GOOD,
        attrs.evolve(GOOD, directory=Path('/a "quoted" \\ plâce')),
        attrs.evolve(GOOD, profile="aeron", timeouts=Timeouts.of("aeron")),
        attrs.evolve(GOOD, timeouts=attrs.evolve(PROFILES["lan"], election_timeout=0.3)),
        attrs.evolve(GOOD, limits=Limits(max_clients=7, park_seconds=0.5)),
        attrs.evolve(GOOD, member_listen_host="0.0.0.0", client_listen_host="::"),
        NodeConfig("alone", 5, Path(), (attrs.evolve(MEMBERS[0], member_id=5),)),
        attrs.evolve(GOOD, members=(*MEMBERS[:2], attrs.evolve(MEMBERS[2], standby=True))),
        attrs.evolve(GOOD, members=(*MEMBERS[:2], attrs.evolve(MEMBERS[2], tls_port=7443))),
        attrs.evolve(
            GOOD, members=(*MEMBERS[:2], attrs.evolve(MEMBERS[2], client_port=0, tls_port=7443))
        ),
        attrs.evolve(GOOD, redirect="always"),
        attrs.evolve(GOOD, join=True),
        attrs.evolve(GOOD, members=(*MEMBERS[:2], attrs.evolve(MEMBERS[2], redirect_port=7062))),
    ],
    ids=[
        *["plain", "path", "profile", "timeouts", "limits", "listen", "alone", "standby"],
        *["tls_port", "tls_only", "redirect", "join", "redirect_port"],
    ],
)
def test_a_written_configuration_is_read_back_as_it_was(tmp_path: Path, config: NodeConfig) -> None:
    read = load(tmp_path, config.to_toml())
    assert read == attrs.evolve(config, directory=tmp_path / config.directory)


def test_a_standby_never_leads_and_somebody_must_have_a_vote(tmp_path: Path) -> None:
    text = GOOD.to_toml()
    last = "client_port = 7002\n"
    assert load(tmp_path, text.replace(last, last + "standby = true\n")).voters == (0, 1)
    (line,) = told(tmp_path, text.replace(last, last + "standby = true\npriority = 2\n"))
    assert "priority = 2: expected 0, since a standby never leads" in line
    (line,) = told(tmp_path, text.replace(last, last + "standby = 1\n"))
    assert "standby = 1: expected true or false" in line
    every = text.replace("[[members]]\n", "[[members]]\nstandby = true\n")
    assert told(tmp_path, every) == [
        "members: all are standbys: expected at least one member with a vote"
    ]


def test_a_witness_has_a_vote_and_is_never_half_of_a_majority(tmp_path: Path) -> None:
    text = GOOD.to_toml()
    last = "client_port = 7002\n"
    read = load(tmp_path, text.replace(last, last + "witness = true\n"))
    assert read.voters == (0, 1, 2)
    assert read.members[2].witness
    assert load(tmp_path, read.to_toml()).members == read.members
    (line,) = told(tmp_path, text.replace(last, last + "witness = true\npriority = 2\n"))
    assert "priority = 2: expected 0, since a witness only leads to hand over" in line
    (line,) = told(tmp_path, text.replace(last, last + "witness = true\nstandby = true\n"))
    assert "witness = true: expected false, since a standby has no vote" in line
    first = "client_port = 7001\n"
    two = text.replace(last, last + "witness = true\n").replace(first, first + "witness = true\n")
    (line,) = told(tmp_path, two)
    assert "members: 2 of 3 members with a vote are witnesses: expected at most 1, since" in line


def test_defaults_are_left_out_of_a_written_configuration() -> None:
    text = GOOD.to_toml()
    assert "timeouts" not in text
    assert "limits" not in text
    assert "listen" not in text
    assert "join" not in text


def test_a_member_joins_a_cluster_that_has_other_voters() -> None:
    alone = "join = true: members: no other member with a vote: expected one of the cluster"
    standbys = tuple(attrs.evolve(each, standby=each.member_id != 1) for each in MEMBERS)
    for members in ((MEMBERS[1],), standbys):
        with pytest.raises(ConfigurationError, match=alone):
            attrs.evolve(GOOD, members=members, join=True)
    own = attrs.evolve(MEMBERS[1], standby=True)
    assert attrs.evolve(GOOD, members=(MEMBERS[0], own), join=True).join


def test_a_member_has_a_port_for_clients(tmp_path: Path) -> None:
    text = GOOD.to_toml()
    last = "client_port = 7002\n"
    (line,) = told(tmp_path, text.replace(last, "client_port = 0\n"))
    expected = "a port number, 1 to 65535, since there is no tls_port"
    assert line == f"members[2].client_port = 0: expected {expected}"
    load(tmp_path, text.replace(last, "client_port = 0\ntls_port = 7443\n"))
    (line,) = told(tmp_path, text.replace(last, last + "tls_port = 7002\n"))
    expected = "a port of 127.0.0.1 other than that of members[2].client_port"
    assert line == f"members[2].tls_port = 7002: expected {expected}"


def test_a_redirect_port_is_a_port_of_its_own(tmp_path: Path) -> None:
    text = GOOD.to_toml()
    last = "client_port = 7002\n"
    (line,) = told(tmp_path, text.replace(last, last + "redirect_port = 7002\n"))
    expected = "a port of 127.0.0.1 other than that of members[2].client_port"
    assert line == f"members[2].redirect_port = 7002: expected {expected}"
    (line,) = told(tmp_path, text.replace(last, last + "redirect_port = -1\n"))
    assert line == "members[2].redirect_port = -1: expected a port number, or 0 for none"
    (line,) = told(tmp_path, 'redirect = "sometimes"\n' + text)
    assert line == 'redirect = "sometimes": expected one of "auto", "always", "never"'


def test_a_relative_directory_is_taken_from_the_files_folder(tmp_path: Path) -> None:
    config = attrs.evolve(GOOD, directory=Path("data"))
    assert load(tmp_path, config.to_toml()).directory == tmp_path / "data"


def test_one_timeout_may_be_set_alone(tmp_path: Path) -> None:
    text = GOOD.to_toml() + "[timeouts]\nelection_timeout = 0.4\n"
    assert load(tmp_path, text).timeouts == attrs.evolve(PROFILES["lan"], election_timeout=0.4)


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_the_timeouts_of_every_profile_fit_together(profile: Profile) -> None:
    config = NodeConfig("orders", 1, Path(), MEMBERS, profile=profile)
    assert config.timeouts == PROFILES[profile]


def test_own_and_peers_are_the_members(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD.to_toml())
    assert config.own == MEMBERS[1]
    assert config.peers == (MEMBERS[0], MEMBERS[2])


def test_a_member_listens_on_its_own_host_unless_told() -> None:
    assert (GOOD.member_listen_host, GOOD.client_listen_host) == ("127.0.0.1", "127.0.0.1")


def test_an_unknown_key_is_an_error_with_a_near_miss(tmp_path: Path) -> None:
    text = GOOD.to_toml() + "[timeouts]\nelection_timeuot = 1\n"
    assert told(tmp_path, text) == [
        "timeouts.election_timeuot: unknown key: did you mean 'election_timeout'?"
    ]


def test_an_unknown_key_like_no_other_is_told_with_the_keys_there_are(tmp_path: Path) -> None:
    assert told(tmp_path, GOOD.to_toml() + "[limits]\nxyzzy = 1\n") == [
        f"limits.xyzzy: unknown key: expected {', '.join(attrs.fields_dict(Limits))}"
    ]


def test_all_troubles_are_told_at_once(tmp_path: Path) -> None:
    text = """
        cluster = "a b"
        member_id = "0"
        profile = "wan"
        members = [{member_id = 0, host = "a:b [", member_port = 0, client_port = true}, 7]
        limits = 3
    """
    assert told(tmp_path, text) == [
        "cluster = \"a b\": expected a name of 1 to 64 letters, digits, '.', '_' or '-'",
        'member_id = "0": expected a member id, 0 to 2147483647',
        "directory: missing: expected a path",
        'members[0].host = "a:b [": expected a host name or an address, without port or brackets',
        "members[0].member_port = 0: expected a port number, 1 to 65535",
        "members[0].client_port = true: expected a port number, 1 to 65535",
        "members[1] = 7: expected a table",
        'profile = "wan": expected one of "lan", "aeron", "test"',
        "limits = 3: expected a table",
    ]


@pytest.mark.parametrize("members", ["7", '"abc"', "{a = 1}"])
def test_members_that_are_no_list_are_refused(tmp_path: Path, members: str) -> None:
    head = 'cluster = "a"\nmember_id = 0\ndirectory = "."\n'
    (line,) = told(tmp_path, f"{head}members = {members}")
    assert line.startswith("members = ")
    assert line.endswith(": expected [[members]] tables")


@pytest.mark.parametrize("value", ["7", "true", '""'])
def test_a_directory_that_is_no_path_is_refused(tmp_path: Path, value: str) -> None:
    text = GOOD.to_toml().replace('directory = "."', f"directory = {value}")
    assert told(tmp_path, text) == [f"directory = {value}: expected a path"]


def test_missing_members_are_told(tmp_path: Path) -> None:
    text = GOOD.to_toml().partition("[[members]]")[0]
    assert told(tmp_path, text) == ["members: missing: expected [[members]] tables"]


@pytest.mark.parametrize("value", ["0", "-1", "inf", "nan", '"1"', "true"])
def test_seconds_are_finite_and_above_zero(tmp_path: Path, value: str) -> None:
    text = GOOD.to_toml() + f"[timeouts]\nelection_timeout = {value}\n"
    (line,) = told(tmp_path, text)
    assert line.endswith(f"election_timeout = {value}: expected a number of seconds above 0")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"leader_heartbeat_interval": 0.3},
            (
                "leader_heartbeat_timeout = 0.5: expected at least 2 x leader_heartbeat_interval"
                " (2 x 0.3 = 0.6)"
            ),
        ),
        (
            {"startup_canvass": 0.9},
            "startup_canvass = 0.9: expected at least 2 x leader_heartbeat_timeout (2 x 0.5 = 1)",
        ),
        (
            {"election_timeout": 0.04},
            (
                "election_timeout = 0.04: expected at least 2 x leader_heartbeat_interval"
                " (2 x 0.1 = 0.2)"
            ),
        ),
        (
            {"canvass_interval": 0.1},
            "election_timeout = 0.25: expected at least 4 x canvass_interval (4 x 0.1 = 0.4)",
        ),
        (
            {"election_timeout": 0.6},
            (
                "leader_heartbeat_timeout = 0.5: expected at least 1 x election_timeout"
                " (1 x 0.6 = 0.6)"
            ),
        ),
        (
            {"leader_lease": 0.6},
            "leader_heartbeat_timeout = 0.5: expected at least 1 x leader_lease (1 x 0.6 = 0.6)",
        ),
        ({"leader_lease": -1}, "leader_lease = -1: expected a number of seconds, 0 to 600"),
    ],
    ids=["heartbeat", "startup", "election", "canvass", "ballot", "lease", "negative lease"],
)
def test_timeouts_that_do_not_fit_are_told_with_the_numbers(
    tmp_path: Path, change: dict[str, float], message: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        attrs.evolve(PROFILES["lan"], **change)
    assert str(caught.value) == message
    lines = "\n".join(f"{key} = {value}" for key, value in change.items())
    assert told(tmp_path, f"{GOOD.to_toml()}[timeouts]\n{lines}\n") == [f"timeouts.{message}"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"members": ()}, "members: 0 of them: expected 1 to 9"),
        ({"members": MEMBERS[::-1]}, "members: ids [2, 1, 0]: expected ascending, each once"),
        ({"members": MEMBERS[1:] * 2}, "members: ids [1, 2, 1, 2]: expected ascending, each once"),
        ({"member_id": 3}, "member_id = 3: expected one of members [0, 1, 2]"),
        (
            {"members": (*MEMBERS[:2], attrs.evolve(MEMBERS[2], member_port=7000))},
            (
                "members[2].member_port = 7000: expected a port of 127.0.0.1 other than that of"
                " members[0].client_port"
            ),
        ),
        ({"client_listen_host": ""}, 'client_listen_host = "": expected a host name'),
        (
            {"client_listen_host": "127.0.0.1:5"},
            'client_listen_host = "127.0.0.1:5": expected a host name or an address, without port',
        ),
    ],
    ids=["none", "descending", "twice", "not a member", "port twice", "no host", "a port"],
)
def test_members_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        attrs.evolve(GOOD, **change)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("host", ["::1", "fe80::1%eth0", "node-1.example.org", "10.0.0.1"])
def test_hosts_are_names_and_addresses_of_both_families(host: str) -> None:
    assert attrs.evolve(GOOD, client_listen_host=host).client_listen_host == host


def test_a_byte_order_mark_is_no_trouble(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(GOOD.to_toml(), encoding="utf-8-sig")
    assert load_config(file).members == GOOD.members


def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    file = tmp_path / "node.toml"
    file.write_text(attrs.evolve(GOOD, directory=Path("~/orders")).to_toml(), encoding="utf-8")
    assert load_config(file).directory == tmp_path / "home" / "orders"


def test_a_missing_file_is_told_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.toml: cannot be read: No such file"):
        load_config(tmp_path / "none.toml")


@pytest.mark.parametrize("text", [b"a = ", b"\xff"], ids=["toml", "utf-8"])
def test_a_file_that_is_no_toml_is_told(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "node.toml").write_bytes(text)
    with pytest.raises(ConfigurationError, match=r"node\.toml: not a TOML file: "):
        load_config(tmp_path / "node.toml")

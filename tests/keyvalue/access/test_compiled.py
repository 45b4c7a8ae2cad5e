"""What compiled rules allow, compared with a Redis 7.0.15 and with a plain model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.keyvalue.access.categories import ALL_NAMES, CATEGORIES, LISTED
from quorate.keyvalue.access.compiled import GETS, SETS, Access, Reason
from quorate.keyvalue.access.rules import DEFAULT, NOBODY, apply
from quorate.keyvalue.commands.table import all_commands, resolve
from tests.keyvalue.access.redis_facts import CATEGORIES as CATEGORIES_OF_REDIS
from tests.keyvalue.access.redis_facts import KEY_RIGHTS

LINES = [line.split(" | ") for line in KEY_RIGHTS.strip().splitlines()]


def access(line: str) -> Access:
    return Access(b"bob", apply(NOBODY, line.encode().split()))


def denied(user: Access, line: str) -> tuple[str, bytes] | None:
    arguments = line.encode().split()
    spec = resolve(arguments)
    assert spec is not None
    found = user.denial(spec, arguments)
    return None if found is None else (found.reason.value, found.what)


@pytest.mark.parametrize("line", CATEGORIES_OF_REDIS.strip().splitlines())
def test_categories_are_those_of_redis(line: str) -> None:
    name, *expected = line.split()
    spec = resolve([word.encode() for word in name.split("|")])
    assert spec is not None
    ours = {"@cluster-admin", "@session"}
    assert sorted(word[1:] for word in spec.categories if word not in ours) == expected


def test_our_own_commands_and_categories() -> None:
    assert CATEGORIES[b"@cluster-admin"] == {b"quorate.control"}
    assert b"quorate.once" in CATEGORIES[b"@session"]
    assert b"quorate.control" in CATEGORIES[b"@dangerous"]
    assert CATEGORIES[b"@hash"] == set()
    assert len(LISTED) == len(set(LISTED)) == 23
    known = {word for spec in all_commands() for word in spec.categories}
    assert {word.encode() for word in known} <= CATEGORIES.keys()


@pytest.mark.parametrize(("line", "allowed"), LINES, ids=[line for line, _ in LINES])
@pytest.mark.parametrize(
    ("at", "keys"), [(0, "%R~*"), (1, "%W~*"), (2, "%R~a %W~b"), (3, "%W~a %R~b")]
)
def test_rights_on_keys_are_those_of_redis(line: str, allowed: str, at: int, keys: str) -> None:
    found = denied(access(f"+@all {keys}"), line)
    assert (found is None) == (allowed.split()[at] == "1")
    assert found is None or found[0] == "key"


def test_who_may_do_everything_is_not_checked() -> None:
    assert Access(b"default", DEFAULT).open
    assert Access(b"default", DEFAULT).joins == SETS | GETS
    assert not access("+@all").open
    assert not access("+@all ~* -acl|setuser").open
    assert access("+@all ~* -acl|setuser").joins == SETS | GETS
    assert access("+get ~*").joins == GETS
    assert access("+set ~*").joins == SETS
    assert access("+@all ~a*").joins == 0
    assert access("+@all %R~*").joins == 0
    before = Access(b"default", NOBODY)
    assert (before.open, before.joins) == (False, 0)


def test_some_commands_are_for_everybody() -> None:
    for user in (access(""), Access(b"default", NOBODY)):
        for line in ("AUTH x", "HELLO 3", "QUIT", "RESET"):
            assert denied(user, line) is None
        assert denied(user, "PING") == ("command", b"ping")
        assert denied(user, "acl whoami") == ("command", b"acl|whoami")


def test_every_key_of_a_command_is_checked() -> None:
    user = access("+@all ~a* ~b?")
    assert denied(user, "MGET a1 a2 bb") is None
    assert denied(user, "MGET a1 c a2") == ("key", b"c")
    assert denied(user, "MSET a1 c b1 a") is None
    assert denied(user, "MSET a1 x c1 y") == ("key", b"c1")
    assert denied(user, "DEL b") == ("key", b"b")
    assert denied(user, "KEYS *") is None  # as in Redis, a walk over all keys has no key


def test_rights_on_keys_of_our_own_commands() -> None:
    lines = ("QUORATE.CAS {} ABSENT DELETE", "QUORATE.RECORDS {}", "QUORATE.POSITION")
    for rules, allowed in (("%R~a", 0b110), ("%W~a", 0b100), ("~a", 0b111), ("~b", 0b100)):
        user = access(f"+@all {rules}")
        found = [denied(user, line.format("a")) is None for line in lines]
        assert found == [bool(allowed & bit) for bit in (1, 2, 4)]
    assert b"quorate.request" in CATEGORIES[b"@connection"]


def test_words_of_a_denial() -> None:
    user = access("+get ~a")
    spec, other = resolve([b"get"]), resolve([b"config", b"get"])
    assert spec is not None
    assert other is not None
    denial = user.denial(spec, [b"get", b"b"])
    assert denial is not None
    assert denial.reason is Reason.KEY
    assert denial.text == (
        b"NOPERM this user has no permissions to access one of the keys used as arguments"
    )
    assert denial.dryrun == b"This user has no permissions to access the 'b' key"
    denial = user.denial(other, [b"config", b"get", b"x"])
    assert denial is not None
    assert denial.text == b"NOPERM this user has no permissions to run the 'config|get' command"
    assert denial.dryrun == b"This user has no permissions to run the 'config|get' command"


KEY_WORDS = st.sampled_from("%R~a %W~a ~a? %R~* %W~b* ~ab ~".split())  # noqa: SIM905 - words
KEYS = st.sampled_from([b"a", b"b", b"ab", b"bb", b""])


@given(st.lists(KEY_WORDS, max_size=4), st.lists(KEYS, min_size=1, max_size=8))
def test_remembered_rights_are_the_computed_ones(keys: list[str], asked: list[bytes]) -> None:
    user = access(" ".join(["+@all", *keys]))
    for key in [*asked, *asked]:
        for name in (b"get", b"set", b"incr", b"exists"):
            arguments = [name, key, b"1"][: 3 if name == b"set" else 2]
            spec = resolve(arguments)
            assert spec is not None
            fresh = access(" ".join(["+@all", *keys])).denial(spec, arguments)
            assert (user.denial(spec, arguments) is None) == (fresh is None)


def test_all_names_are_known() -> None:
    assert b"acl|setuser" in ALL_NAMES
    assert b"acl|setuser" not in CATEGORIES[b"@write"]
    assert b"acl|list" not in CATEGORIES[b"@read"]

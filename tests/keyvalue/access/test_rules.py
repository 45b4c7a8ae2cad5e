"""The words of a user: what each does, in which order, and Redis's errors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.keyvalue.access.categories import CATEGORIES, NAMES
from quorate.keyvalue.access.compiled import allowed_commands
from quorate.keyvalue.access.hashing import hash_secret
from quorate.keyvalue.access.rules import (
    DEFAULT,
    MAX_HASHES,
    MAX_USER_BYTES,
    NOBODY,
    RuleError,
    User,
    apply,
    words,
)

HASHES = [b"#" + digit * 64 for digit in (b"a", b"b", b"0")] + [hash_secret(b"x", bytes(16))]
PATTERNS = st.binary(max_size=8).filter(lambda text: not set(text) & set(b" \t\n\v\f\r\0"))


def joined(first: bytes, second: bytes) -> bytes:
    return first + second


RULES = st.builds(
    joined,
    st.sampled_from([b"+", b"-"]),
    st.sampled_from([*sorted(CATEGORIES), *sorted(NAMES)]),
)
WORDS = st.one_of(
    st.sampled_from(
        b"on off nopass resetpass allkeys resetkeys allchannels resetchannels allcommands "
        b"nocommands reset clearselectors sanitize-payload ~* &* %R~* %W~* %RW~*".split()
    ),
    st.sampled_from(HASHES),
    st.sampled_from(HASHES).map(lambda word: b"!" + word.removeprefix(b"#")),
    PATTERNS.map(lambda text: b"~" + text),
    st.builds(joined, st.sampled_from([b"%R~", b"%w~", b"%rW~"]), PATTERNS),
    PATTERNS.map(lambda text: b"&" + text),
    RULES,
)


def made(given_words: list[bytes], user: User = NOBODY) -> User:
    """Apply words, and skip those that can't be applied."""
    for word in given_words:
        try:
            user = apply(user, [word])
        except RuleError:
            continue
    return user


def of(line: str, user: User = NOBODY) -> User:
    return apply(user, line.encode().split())


def shown(user: User) -> str:
    return b" ".join(words(user)).decode()


@given(st.lists(WORDS, max_size=12))
def test_the_words_of_a_user_make_the_same_user(given_words: list[bytes]) -> None:
    user = made(given_words)
    assert apply(NOBODY, words(user)) == user
    assert apply(user, words(user)).commands == user.commands


@given(st.lists(RULES, max_size=8))
def test_kept_rules_allow_what_all_rules_in_their_order_allow(rules: list[bytes]) -> None:
    expected: set[bytes] = set()
    for rule in rules:
        covered = (CATEGORIES if rule[1:2] == b"@" else NAMES)[rule[1:]]
        expected = expected | covered if rule.startswith(b"+") else expected - covered
    assert allowed_commands(made(list(rules))) == expected


def test_the_order_of_rules_matters() -> None:
    assert b"keys" not in allowed_commands(of("+@all -@dangerous"))
    assert b"keys" in allowed_commands(of("-@dangerous +@all"))
    assert allowed_commands(of("-@all +get")) == {b"get"}
    assert allowed_commands(of("+get -@all")) == set()
    assert allowed_commands(of("+@string -@write +set")) >= {b"get", b"set"}
    assert b"append" not in allowed_commands(of("+@string -@write +set"))


def test_subcommands_have_rules_of_their_own() -> None:
    user = of("+config -config|set")
    assert b"config|get" in allowed_commands(user)
    assert b"config|set" not in allowed_commands(user)
    assert allowed_commands(of("+client|id")) == {b"client|id"}
    # the later rule on the container covers both
    assert of("+config|get -config|set +config").commands == (b"-@all", b"+config")


@pytest.mark.parametrize(
    ("line", "result"),
    [
        ("", "off resetchannels -@all"),
        ("on nopass ~* &* +@all", "on nopass ~* &* +@all"),
        ("ON NoPass AllKeys AllChannels AllCommands", "on nopass ~* &* +@all"),
        ("on ~a* %R~b &ch +get +@hash", "on ~a* %R~b resetchannels &ch -@all +get +@hash"),
        ("%R~a %W~a", "off ~a resetchannels -@all"),
        ("%rw~a", "off ~a resetchannels -@all"),
        ("~a ~b allkeys", "off ~* resetchannels -@all"),
        ("~a ~b resetkeys ~c", "off ~c resetchannels -@all"),
        ("~", "off ~ resetchannels -@all"),
        ("+get -get +GET", "off resetchannels -@all +get"),
        ("+@read +@write +@read", "off resetchannels -@all +@write +@read"),
        ("on nopass +@all ~* reset", "off resetchannels -@all"),
        ("skip-sanitize-payload clearselectors", "off resetchannels -@all"),
    ],
)
def test_words_and_what_they_make(line: str, result: str) -> None:
    assert shown(of(line)) == result


def test_passwords_and_nopass_exclude_each_other() -> None:
    user = apply(NOBODY, [HASHES[0]])
    assert shown(user).startswith("off #aaaa")
    assert apply(user, [b"nopass"]).hashes == ()
    again = apply(apply(user, [b"nopass"]), [HASHES[1]])
    assert (again.nopass, again.hashes) == (False, (HASHES[1],))
    assert apply(again, [b"resetpass"]) == NOBODY
    assert apply(user, [HASHES[0]]) == user
    assert apply(apply(user, [HASHES[3]]), [b"!" + HASHES[3]]) == user


@pytest.mark.parametrize(
    ("line", "word", "reason"),
    [
        ("+nosuch", "+nosuch", "Unknown command or category name in ACL"),
        ("+@nosuch", "+@nosuch", "Unknown command or category name in ACL"),
        ("+config|foo", "+config|foo", "Unknown command or category name in ACL"),
        ("+", "+", "Unknown command or category name in ACL"),
        ("+@", "+@", "Unknown command or category name in ACL"),
        ("foo", "foo", "Syntax error"),
        ("%X~a", "%X~a", "Syntax error"),
        ("%~a", "%~a", "Syntax error"),
        ("%RR~a", "%RR~a", "Syntax error"),
        ("%R", "%R", "Syntax error"),
        (
            "#zz",
            "#zz",
            (
                "The password hash must be exactly 64 characters and contain only "
                "lowercase hexadecimal characters"
            ),
        ),
        (
            "!zz",
            "!zz",
            (
                "The password hash must be exactly 64 characters and contain only "
                "lowercase hexadecimal characters"
            ),
        ),
        (
            "!" + "a" * 64,
            "!" + "a" * 64,
            "The password you are trying to remove from the user does not exist",
        ),
        (
            "~* ~x",
            "~x",
            (
                "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid "
                "and does not have any effect. Try 'resetkeys' to start with an empty list of "
                "patterns"
            ),
        ),
        (
            "&* &x",
            "&x",
            (
                "Adding a pattern after the * pattern (or the 'allchannels' flag) is not "
                "valid and does not have any effect. Try 'resetchannels' to start with an empty "
                "list of channels"
            ),
        ),
        ("(+get", "(+get", "Selectors are not supported"),
    ],
)
def test_redis_errors(line: str, word: str, reason: str) -> None:
    with pytest.raises(RuleError) as caught:
        of(line)
    assert caught.value.text == f"Error in ACL SETUSER modifier '{word}': {reason}".encode()


def test_a_pattern_has_no_spaces() -> None:
    for word in (b"~a b", b"&a\tb", b"%R~a\0"):
        with pytest.raises(RuleError, match="Syntax error"):
            apply(NOBODY, [word])


@pytest.mark.parametrize("word", [b">hunter2", b"<hunter2"])
def test_a_secret_is_neither_taken_nor_quoted(word: bytes) -> None:
    with pytest.raises(RuleError) as caught:
        apply(NOBODY, [word])
    assert b"hunter2" not in caught.value.text


def test_a_user_is_bounded() -> None:
    hashes = [b"#%064x" % number for number in range(MAX_HASHES + 1)]
    assert len(apply(NOBODY, hashes[1:]).hashes) == MAX_HASHES
    with pytest.raises(RuleError, match="passwords"):
        apply(NOBODY, hashes)
    with pytest.raises(RuleError, match="bytes"):
        apply(NOBODY, [b"~%0500d" % number for number in range(MAX_USER_BYTES // 500 + 2)])
    with pytest.raises(RuleError, match="pattern may have"):
        apply(NOBODY, [b"~" + b"x" * 1025])
    with pytest.raises(RuleError, match="modifiers"):
        apply(NOBODY, [b"on"] * 1025)


def test_the_default_user_is_redis_own() -> None:
    assert shown(DEFAULT) == "on nopass ~* &* +@all"

"""SessionRedis: each public method of redis-py's client goes through sessions, or is refused.

The walk reads the source of redis-py as it is installed. A method that a new redis-py brings is
sound if it does nothing but call `execute_command`, which knows what each command is. What reaches
for more (a connection, a pool, an object that is given the client) is found here, and must be
overridden or looked at.
"""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportPrivateUsage=false

import ast
import inspect
import subprocess
import sys
import textwrap
from functools import cache
from typing import Any, Final, cast

import pytest
import redis

from quorate.client.session_redis import _UNSUPPORTED, SessionRedis
from quorate.errors import ConfigurationError, QuorateError, UnsupportedError
from quorate.keyvalue.commands.table import Kind, all_commands, resolve

LOOKED_AT: Final = frozenset(
    {
        "bitfield",  # an object that calls execute_command
        "execute_command",  # overridden, and what everything else calls
        "get_cache",  # None: the option is refused
        "get_connection_kwargs",  # to read
        "get_encoder",  # to read
        "get_retry",  # to read
        "himport_registry",  # to read; nothing can be put into it
        "load_external_module",  # the user's own code
        "parse_response",  # of a reply that has come
        "response_callbacks",  # to read
        "set_response_callback",  # of a reply that has come
    }
)
"""What has no command, and what it does is right for a client of a whole cluster."""

MEMBERS: Final = [("127.0.0.1", 1), ("127.0.0.1", 2)]
CLIENT: Final = ("self", "cls")
ITEMS: Final = ("__contains__", "__delitem__", "__getitem__", "__setitem__")


def public_names() -> list[str]:
    return [name for name in dir(redis.Redis) if not name.startswith("_")] + [
        name for name in ITEMS if hasattr(redis.Redis, name)
    ]


@cache
def reaches_for(name: str) -> frozenset[str]:
    """Return what a method of redis-py uses of its client; "self" if it hands the client on."""
    found = inspect.getattr_static(redis.Redis, name)
    method = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    assert callable(method)
    nodes = [*ast.walk(ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(method)))))]
    used = [
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in CLIENT
    ]
    named = [node for node in nodes if isinstance(node, ast.Name) and node.id in CLIENT]
    return frozenset(used) | ({"self"} if len(named) > len(used) else set())


@cache
def is_sound(name: str) -> bool:
    """Whether a method comes down to `execute_command`, to what is overridden, or to nothing."""
    if name in vars(SessionRedis) or name in LOOKED_AT:
        return True
    if not hasattr(redis.Redis, name) or name == "__class__":
        return False
    return all(is_sound(used) for used in reaches_for(name))


def test_every_method_of_redis_py_is_supported_or_refused() -> None:
    assert [name for name in public_names() if not is_sound(name)] == []


def test_the_walk_finds_what_reaches_past_execute_command() -> None:
    reaching = {name for name in public_names() if not all(map(is_sound, reaches_for(name)))}
    assert {"pipeline", "lock", "pubsub", "monitor", "register_script", "json"} <= reaching
    assert "get" not in reaching


@pytest.mark.parametrize("name", sorted(_UNSUPPORTED))
def test_a_refused_method_says_why(name: str) -> None:
    with SessionRedis(MEMBERS) as client:
        with pytest.raises(UnsupportedError, match=rf"SessionRedis has no {name}\(\): \w+"):
            getattr(client, name)("a")
        assert issubclass(UnsupportedError, NotImplementedError)


@pytest.mark.parametrize(
    "words",
    [
        ("MULTI",),
        ("WATCH", "a"),
        ("SELECT", 1),
        ("READONLY",),
        ("RESET",),
        ("CLIENT REPLY", "OFF"),
        ("client", "setname", "a"),
        ("CLIENT NOSUCH",),
        ("QUORATE.ONCE", 1, 1, "INCR", "a"),
        ("SUBSCRIBE", "a"),
        ("BLPOP", "a", 0),
        ("EVAL", "return 1", 0),
        ("NOSUCH", "a"),
        ("EXEC a",),
        ("",),
    ],
)
def test_a_command_that_would_not_be_once_or_is_of_a_connection_is_refused(
    words: tuple[str | int, ...],
) -> None:
    with SessionRedis(MEMBERS) as client, pytest.raises(UnsupportedError, match="cannot do"):
        client.execute_command(*words)


def test_every_command_of_keys_is_sent_and_each_that_writes_in_a_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[tuple[object, ...]] = []

    def attempt(_self: SessionRedis, words: tuple[object, ...], *_: object) -> int:
        sent.append(words)
        return 417

    monkeypatch.setattr(SessionRedis, "_attempt", attempt)
    with SessionRedis(MEMBERS) as client:
        for spec in all_commands():
            if spec.kind is Kind.CONNECTION or spec.name == "quorate.session":
                continue
            name, word = spec.name.encode(), next(iter(spec.subcommands), b"word")
            client.execute_command(spec.name.upper(), word)
            stamped = sent[-1][0] == "QUORATE.ONCE"
            sent_one = resolve((name, word))
            assert sent_one is not None
            assert stamped is (sent_one.kind is Kind.WRITE), spec.name
            assert bytes(sent[-1][3 if stamped else 0]).lower() == name  # type: ignore[call-overload]


def test_urls_name_the_members() -> None:
    urls = [f"redis://:secret@127.0.0.1:{port}?socket_timeout=2" for port in (1, 2)]
    with SessionRedis.from_url(*urls, patience_s=3) as client:
        pools = [pool.connection_kwargs for pool in client._pools]
        assert [(one["host"], one["port"]) for one in pools] == MEMBERS
        assert [(one["password"], one["socket_timeout"]) for one in pools] == [("secret", 2)] * 2
        with client.client() as other:
            assert isinstance(other, SessionRedis)
            assert (other._members, other._patience_s) == (MEMBERS, 3)
            assert [pool.connection_kwargs["password"] for pool in other._pools] == ["secret"] * 2


@pytest.mark.parametrize(
    "urls",
    [
        ["http://127.0.0.1:1"],
        ["redis://127.0.0.1:1", "redis://:secret@127.0.0.1:2"],
        ["unix:///tmp/a"],
        [7],
    ],
)
def test_urls_that_name_no_cluster(urls: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="urls = "):
        SessionRedis.from_url(*urls)


@pytest.mark.parametrize("members", [[], "127.0.0.1:7000", [("127.0.0.1",)], [(1, "a")], None, 7])
def test_what_is_no_list_of_members(members: list[tuple[str, int]]) -> None:
    with pytest.raises(ConfigurationError, match=r"members = .* expected host and client port"):
        SessionRedis(members)


@pytest.mark.parametrize(
    "option", ["connection_pool", "single_connection_client", "retry", "unix_socket_path", "host"]
)
def test_an_option_that_it_sets_itself(option: str) -> None:
    with pytest.raises(QuorateError, match=f"{option} = "):
        SessionRedis(MEMBERS, **cast("dict[str, Any]", {option: "a"}))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"patience_s": -1}, r"^patience_s = -1: expected seconds, 0 to 86400$"),
        ({"patience_s": "5"}, r"^patience_s = '5': expected seconds"),
        ({"patience_s": True}, r"^patience_s = True: expected seconds"),
        ({"session_timeout_s": 0.5}, r"^session_timeout_s = 0.5: expected seconds, 1 to 86400$"),
        ({"session_timeout_s": float("nan")}, r"^session_timeout_s = nan: expected seconds"),
        ({"db": 1}, r"^db = 1: expected 0, members have one database$"),
    ],
)
def test_a_wrong_argument_is_named_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        SessionRedis(MEMBERS, **options)


def test_a_database_in_a_url_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="db = 3: expected 0"):
        SessionRedis.from_url("redis://127.0.0.1:1/3", "redis://127.0.0.1:2/3")


def test_a_program_with_redis_py_loads_no_event_loop() -> None:
    code = "import sys, quorate.client.session_redis; sys.exit('trio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

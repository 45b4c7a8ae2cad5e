"""The table of commands: finding one, what is wrong with one, and the replies of COMMAND."""

import pytest

from quorate.keyvalue.commands.introspection import command_reply, help_reply
from quorate.keyvalue.commands.numbers import HANDLERS as NUMBERS
from quorate.keyvalue.commands.table import Kind, all_commands, fault, keys_of, lookup, resolve
from quorate.keyvalue.protocol import resp
from quorate.keyvalue.protocol.payload import PayloadParser
from tests.support.service_world import Line, encode


def split(line: Line) -> list[bytes]:
    return PayloadParser().parse_untrusted(encode(line))[0]


def reply_to(line: str, *, resp3: bool = False) -> resp.Reply:
    (reply,) = resp.parse_replies_untrusted(command_reply(split(line), resp3=resp3))
    return reply


def test_commands_are_found_in_any_case() -> None:
    assert {lookup(name) for name in (b"GET", b"get", b"Get", b"gEt")} == {lookup(b"get")}
    assert lookup(b"nosuch") is None
    assert lookup(b"") is None
    assert lookup(b"\xff") is None


def test_names_are_unique_and_subcommands_belong_to_their_container() -> None:
    names = [spec.name for spec in all_commands()]
    assert len(names) == len(set(names))
    for spec in all_commands():
        for word, subcommand in spec.subcommands.items():
            assert subcommand.name == f"{spec.name}|{word.decode()}"


def test_who_answers_follows_from_the_flags() -> None:
    for spec in all_commands():
        assert (spec.kind is Kind.WRITE) == ("write" in spec.flags), spec.name
        # Those who may read keys must not see hashes of passwords by that.
        if spec.kind is Kind.READ and not spec.subcommands and spec.name != "quorate.users":
            assert "readonly" in spec.flags
    assert {name for name in NUMBERS if lookup(name.encode()) is None} == set()


@pytest.mark.parametrize(
    ("line", "trouble"),
    [
        ("GET a", None),
        ("set a b EX 10", None),
        ("CLIENT ID", None),
        ("client setname x", None),
        ("COMMAND", None),
        ("GET", b"ERR wrong number of arguments for 'get' command"),
        ("GET a b", b"ERR wrong number of arguments for 'get' command"),
        ("MGET", b"ERR wrong number of arguments for 'mget' command"),
        ("CLIENT", b"ERR wrong number of arguments for 'client' command"),
        ("CLIENT ID x", b"ERR wrong number of arguments for 'client|id' command"),
        ("CLIENT FOO x", b"ERR unknown subcommand 'FOO'. Try CLIENT HELP."),
        ("cluster foo", b"ERR unknown subcommand 'foo'. Try CLUSTER HELP."),
        ("FOO", b"ERR unknown command 'FOO', with args beginning with: "),
        ("foo bar baz", b"ERR unknown command 'foo', with args beginning with: 'bar' 'baz' "),
        (["a\0b"], b"ERR unknown command 'a', with args beginning with: "),
        (["x" * 200], b"ERR unknown command '%b', with args beginning with: " % (b"x" * 128)),
        (
            ["x", "y" * 120, "z" * 20, "never"],
            b"ERR unknown command 'x', with args beginning with: '%b' '%b' "
            % (b"y" * 120, b"z" * 5),
        ),
    ],
)
def test_what_is_wrong_is_said_as_redis_says_it(line: Line, trouble: bytes | None) -> None:
    assert fault(split(line)) == trouble


@pytest.mark.parametrize(
    ("line", "keys"),
    [
        ("GET a", [b"a"]),
        ("MSET a 1 b 2", [b"a", b"b"]),
        ("DEL a b c", [b"a", b"b", b"c"]),
        ("RENAME a b", [b"a", b"b"]),
        ("COPY a b REPLACE", [b"a", b"b"]),
        ("OBJECT ENCODING a", [b"a"]),
        ("SCAN 0", []),
        ("PING a", []),
    ],
)
def test_keys_are_found(line: str, keys: list[bytes]) -> None:
    spec = resolve(split(line))
    assert spec is not None
    assert list(keys_of(spec, split(line))) == keys
    if keys:
        assert reply_to(f"COMMAND GETKEYS {line}") == keys


def test_command_lists_every_command_with_the_place_of_its_keys() -> None:
    replies = reply_to("COMMAND")
    assert isinstance(replies, list)
    assert len(replies) == len(all_commands()) == reply_to("COMMAND COUNT")
    (get,) = [one for one in replies if isinstance(one, list) and one[0] == b"get"]
    assert get[:6] == [b"get", 2, [b"readonly", b"fast"], 1, 1, 1]
    assert get[6:8] == [[b"@read", b"@string", b"@fast"], []]
    assert len(get) == 10


@pytest.mark.parametrize("resp3", [False, True])
def test_command_info_gives_null_for_what_is_not_there(*, resp3: bool) -> None:
    reply = reply_to("COMMAND INFO get nosuch client|id", resp3=resp3)
    assert isinstance(reply, list)
    assert [one[0] if isinstance(one, list) else one for one in reply] == [
        b"get",
        None,
        b"client|id",
    ]


def test_command_docs_is_a_map_of_maps() -> None:
    docs = reply_to("COMMAND DOCS set client nosuch", resp3=True)
    assert isinstance(docs, dict)
    assert list(docs) == [b"set", b"client"]
    client = docs[b"client"]
    assert isinstance(client, dict)
    assert client[b"group"] == b"connection"
    subcommands = client[b"subcommands"]
    assert isinstance(subcommands, dict)
    assert b"client|id" in subcommands
    assert reply_to("COMMAND DOCS get") == [
        b"get",
        [b"summary", b"Return the value of a key", b"since", b"1.0.0", b"group", b"string"],
    ]


def test_command_list_filters() -> None:
    names = reply_to("COMMAND LIST")
    assert isinstance(names, list)
    assert len(names) == sum(1 + len(spec.subcommands) for spec in all_commands())
    assert reply_to("COMMAND LIST FILTERBY PATTERN mset*") == [b"mset", b"msetnx"]
    assert reply_to("COMMAND LIST FILTERBY ACLCAT transaction") == [
        b"multi",
        b"exec",
        b"discard",
        b"watch",
        b"unwatch",
    ]
    assert reply_to("COMMAND LIST FILTERBY MODULE x") == []
    for line in ("COMMAND LIST x", "COMMAND LIST FILTERBY x y"):
        assert command_reply(split(line), resp3=False) == b"-ERR syntax error\r\n"


def test_getkeys_says_why_it_finds_none() -> None:
    texts = {
        "COMMAND GETKEYS ping": b"-ERR The command has no key arguments\r\n",
        "COMMAND GETKEYS nosuch": b"-ERR Invalid command specified\r\n",
        "COMMAND GETKEYS get": b"-ERR Invalid number of arguments specified for command\r\n",
    }
    assert {line: command_reply(split(line), resp3=False) for line in texts} == texts


def test_help_names_the_subcommands() -> None:
    (lines,) = resp.parse_replies_untrusted(help_reply(b"client"))
    assert isinstance(lines, list)
    assert b"SETNAME" in lines
    assert reply_to("COMMAND HELP") != []

"""How the commands of a chunk are cut into runs."""

import pytest

from quorate.keyvalue.conversation import routes
from quorate.keyvalue.conversation.routes import run_of, uniform_kind
from quorate.keyvalue.limits import RUN_COMMANDS
from quorate.keyvalue.protocol.resp import pack
from quorate.node.requests.request import RequestKind

WALK = [b"SCAN", b"0"]
READ, WRITE, OWN, WRONG = [b"GET", b"a"], [b"set", b"a", b"1"], [b"PING"], [b"GET"]
COMMAND, QUERY = RequestKind.COMMAND, RequestKind.QUERY


@pytest.mark.parametrize(
    ("commands", "kind"),
    [
        ([READ], QUERY),
        ([WRITE], COMMAND),
        ([OWN], None),
        ([READ, [b"get", b"b"]], QUERY),
        ([READ, WRITE, READ], COMMAND),
        ([WRITE, WRITE], COMMAND),
        ([WALK], QUERY),
        ([WALK, WALK], None),
        ([WALK, READ], None),
        ([[b"KEYS", b"*"], WRITE], None),
        ([[b"randomkey"], READ, WRITE], None),
        ([WRITE] * RUN_COMMANDS, COMMAND),
        ([WRITE] * (RUN_COMMANDS + 1), None),
        ([READ, OWN], None),
        ([WRITE, READ, WRONG], None),
        ([[b"NOSUCH"], READ], None),
        ([[b"OBJECT", b"ENCODING", b"a"]], None),
    ],
)
def test_what_can_go_as_one_request(commands: list[list[bytes]], kind: RequestKind | None) -> None:
    assert uniform_kind(commands) is kind


@pytest.mark.parametrize(
    ("commands", "end", "kind"),
    [
        ([READ, READ, OWN, READ], 2, QUERY),
        ([READ, WRITE, READ, WRONG], 3, COMMAND),
        ([OWN, READ], 0, None),
        ([WRITE], 1, COMMAND),
        ([WALK, WALK, READ], 1, QUERY),
        ([WALK, WRITE], 1, QUERY),
        ([WRITE, READ, WALK], 2, COMMAND),
        ([READ, WALK], 1, QUERY),
        ([READ] * 2500 + [WRITE], RUN_COMMANDS, QUERY),
    ],
)
def test_a_run_ends_before_what_is_not_for_the_state_machine(
    commands: list[list[bytes]], end: int, kind: RequestKind | None
) -> None:
    run = [pack(tuple(one)) for one in commands[:end]]
    assert run_of(commands, 0, 100_000) == (run, kind)


def test_a_run_is_no_longer_than_asked_for_but_one_command_always_fits() -> None:
    commands = [READ] * 5 + [WRITE]
    read, write = pack(tuple(READ)), pack(tuple(WRITE))
    assert run_of(commands, 0, 4 * len(read) - 1) == ([read] * 3, QUERY)
    assert run_of(commands, 3, 4 * len(read) - 1) == ([read, read, write], COMMAND)
    assert run_of(commands, 0, 5) == ([read], QUERY)


def test_made_up_names_and_numbers_do_not_fill_the_memory() -> None:
    for n in range(10_000):
        assert uniform_kind([[b"DEL", *[b"k"] * (n % 100 + 1)]]) is COMMAND
        assert uniform_kind([[b"NOSUCH%d" % n]]) is None
    assert len(vars(routes)["_ROUTES"]) <= 8192

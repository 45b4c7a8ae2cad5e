"""Which commands travel in batches."""

import pytest

from quorate.client import joined
from quorate.client.batches import BATCH_COMMANDS
from quorate.keyvalue.commands.table import Kind, all_commands
from quorate.keyvalue.limits import LONGEST_KEPT_REPLY_BYTES
from quorate.keyvalue.protocol import resp

SPECS = {spec.name: spec for spec in all_commands()}


def test_reads_only_read_and_writes_only_write() -> None:
    assert {SPECS[name].kind for name in joined.READS} == {Kind.READ}
    assert {SPECS[name].kind for name in joined.WRITES} == {Kind.WRITE}


def test_a_command_whose_position_counts_travels_alone() -> None:
    assert "quorate.cas" not in joined.WRITES


def test_a_session_keeps_the_replies_to_a_batch_even_if_all_are_errors() -> None:
    longest = "ERR too much work in one request, by large values or many keys: not executed here"
    assert BATCH_COMMANDS * len(resp.error(longest)) < LONGEST_KEPT_REPLY_BYTES


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["SET", "k", "GET"], False),
        (["SET", "k", "v", "EX", "10"], False),
        (["SET", "k", "v", "GET"], True),
        (["set", "k", "v", "EX", "10", "get"], True),
    ],
)
def test_a_set_that_returns_the_old_value_is_told_apart(words: list[str], expected: object) -> None:
    assert joined.may_return_value(resp.encode_command(words)) is expected

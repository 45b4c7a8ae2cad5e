"""The commands that move slots, as rows and in words."""

from quorate.keyvalue.protocol.resp import encode_command
from quorate.local.slots_words import slots_in_words_untrusted
from quorate.pipeline.payloads.decoding import COPIED, decode_commands

CHUNK = encode_command(
    [
        *("QUORATE.SLOTS", "CHUNK", "7", "1"),
        *("a", "1", "0", "55", "1"),
        *("b", "2", "9000", "56", "1"),
        *("c", "", "0", "57", "-"),
    ]
)


def test_rows_that_were_copied_are_marked() -> None:
    assert decode_commands(CHUNK, 0, 0) == [
        (0, COPIED, b"a", b"1", None),
        (0, COPIED, b"b", b"2", 9000),
        (0, COPIED, b"c", None, None),
    ]


def test_each_step_of_a_move_has_an_operation_of_its_own() -> None:
    for line, operation in (
        ("QUORATE.SLOTS FREEZE 7 5-9 1", "QUORATE.SLOTS FREEZE"),
        ("quorate.slots release 7 1 0", "QUORATE.SLOTS RELEASE"),
        ("QUORATE.SLOTS CHUNK 7 1 odd", COPIED),
        ("QUORATE.SLOTS NOTHING", "QUORATE.SLOTS"),
    ):
        rows = decode_commands(encode_command(line.split()), 0, 0)
        assert rows == [(0, operation, None, None, None)]


def test_a_log_shows_moves_in_words() -> None:
    words = slots_in_words_untrusted
    assert words(CHUNK) == "QUORATE.SLOTS CHUNK 7 1: 3 rows, 20 B from a to c"
    assert words(encode_command(["QUORATE.SLOTS", "OWN", "7", "101", "5", "1"])) == (
        "QUORATE.SLOTS OWN 7 101 5 1"
    )
    long = encode_command(["QUORATE.SLOTS", "FOUND", ",".join(map(str, range(1000)))])
    assert str(words(long)).endswith("...")
    for other in (
        encode_command(["SET", "quorate.slots", "1"]),
        b"QUORATE.SLOTS",
        encode_command(["SET", "a", "b"]),
    ):
        assert words(other) is None

"""`quorate control`: an error reply is judged by its code; not each is a refusal."""

import json

import pytest
import trio

from quorate.cli.control import DONE, REFUSED, UNREACHABLE, ask_one_of
from tests.support.scripted import LOST, scripted


@pytest.mark.parametrize(
    ("reply", "status", "outcome", "words"),
    [
        (b"+suspended at 3264\r\n", DONE, "done", "suspended at 3264"),
        (b"-REFUSED no snapshot at 64: full\r\n", REFUSED, "refused", "no snapshot at 64: full"),
        (b"-CLUSTERDOWN no leader\r\n", REFUSED, "refused", "no leader"),
        (b"-UNKNOWN the outcome is\r\n", UNREACHABLE, "unknown", "the outcome is"),
    ],
)
def test_what_a_reply_says_of_the_request(
    reply: bytes, status: int, outcome: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted(b"+PONG\r\n", reply) as member:
        host, port = member.address
        answered = trio.run(ask_one_of, (f"{host}:{port}",), "suspend")
    assert (answered.status, answered.words) == (status, words)
    assert answered.tell(as_json=True) == status
    told = capsys.readouterr()
    positions = [3264] if status == DONE else []
    expected = {"request": "suspend", "outcome": outcome, "words": words, "positions": positions}
    assert json.loads(told.out) == expected
    assert told.err == (words + "\n") * (outcome == "unknown")


def test_a_member_that_ends_is_not_reached(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted(b"+PONG\r\n", LOST) as member:
        host, port = member.address
        answered = trio.run(ask_one_of, (f"{host}:{port}",), "suspend")
    assert (answered.status, answered.unknown) == (UNREACHABLE, False)
    assert capsys.readouterr().err != ""

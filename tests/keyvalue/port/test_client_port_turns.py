"""What clients send in one turn of the event loop goes to the member together."""

import pytest
import trio

from quorate.keyvalue.port import listener
from quorate.keyvalue.protocol import resp
from quorate.keyvalue.protocol.payload import PayloadParser
from quorate.node.requests.request import Request
from tests.support.client_port_world import RawClient, World, command

OK = b"+OK\r\n"
PONG = b"+PONG\r\n"


class Calls:
    """What a member is given, and how."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.together: list[list[bytes]] = []
        self.alone: list[bytes] = []
        self.commands: list[list[bytes]] = []  # of each call, in order, taken apart
        member = world.member
        # what it does itself with a turn's requests is no call of the port's
        submit, submit_all = member.submit, member.submit_all

        def record_all(requests: list[Request]) -> None:
            payloads = [each.payload for each in requests]
            self.together.append(payloads)
            self.commands.append(sorted(map(resp.pack, taken_apart(b"".join(payloads)))))
            monkeypatch.setattr(member, "submit", submit)
            submit_all(requests)
            monkeypatch.setattr(member, "submit", record)

        def record(request: Request) -> None:
            self.alone.append(request.payload)
            submit(request)

        monkeypatch.setattr(member, "submit_all", record_all)
        monkeypatch.setattr(member, "submit", record)


def taken_apart(payload: bytes) -> list[tuple[bytes, ...]]:
    return [tuple(each) for each in PayloadParser().parse_untrusted(payload)]


@pytest.fixture
def calls(world: World, monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(world, monkeypatch)


async def connect(world: World, count: int) -> list[RawClient]:
    """Clients that are registered with the port."""
    clients = [await world.connect() for _ in range(count)]
    for each in clients:
        await each.ask(command("PING"), PONG)
    return clients


def write(number: int) -> bytes:
    return command("SET", f"key {number}", "value")


async def test_requests_of_one_turn_are_one_batch(world: World, calls: Calls) -> None:
    clients = await connect(world, 5)
    for turn in range(3):
        for number, each in enumerate(clients):
            each.send_at_once(write(number))
        for each in clients:
            assert await each.receive(len(OK)) == OK
        assert calls.commands.pop() == [write(number) for number in range(5)]
        assert len(calls.together.pop()) == 1
        assert (turn, calls.together, calls.alone) == (turn, [], [])


async def test_what_is_no_request_makes_no_batch(world: World, calls: Calls) -> None:
    (client,) = await connect(world, 1)
    await client.ask(command("ECHO", "a"), b"$1\r\na\r\n")
    assert (calls.together, calls.alone) == ([], [])


async def test_a_conversation_that_goes_on_after_its_turn_is_not_held_back(
    world: World, calls: Calls
) -> None:
    """A reply that comes between turns lets the next command go, and at once."""
    (client,) = await connect(world, 1)
    world.member.parked = []
    client.send_at_once(write(1))
    await world.until(lambda: world.member.parked)
    client.send_at_once(write(2) + command("PING") + write(3))
    await world.has_read(len(write(1) + write(2) + write(3) + 2 * command("PING")))
    assert calls.together == [[write(1)]]
    world.member.release()
    assert await client.receive(len(OK + OK + PONG + OK)) == OK + OK + PONG + OK
    assert (calls.together, calls.alone) == ([[write(1)]], [write(2), write(3)])


async def test_what_a_member_answers_at_once_goes_on_behind_the_turn(
    world: World, calls: Calls
) -> None:
    """It answers within `submit_all`: what follows of the same client then goes alone."""
    one, other = await connect(world, 2)
    one.send_at_once(write(1) + command("PING") + write(2))
    other.send_at_once(write(3))
    assert await one.receive(len(OK + PONG + OK)) == OK + PONG + OK
    assert await other.receive(len(OK)) == OK
    assert sorted(calls.together[0]) == [write(1), write(3)]
    assert calls.together[1:] == []
    assert world.member.commands.count(write(2)) == 1


async def test_a_client_that_is_closed_in_the_turn_of_its_write_has_sent_none(
    world: World, calls: Calls
) -> None:
    one, other, third = await connect(world, 3)
    ids = list(world.port.state.clients)
    one.send_at_once(write(1))
    other.send_at_once(command("CLIENT", "KILL", "ID", str(ids[0])))
    third.send_at_once(write(3))
    assert await third.receive(len(OK)) == OK
    assert await other.receive(4) == b":1\r\n"
    assert await one.rest() == b""
    assert (calls.together, calls.alone) == ([[write(3)]], [])
    assert world.member.commands == [write(3)]


async def test_a_turn_of_which_nobody_is_left_makes_no_batch(world: World, calls: Calls) -> None:
    one, other = await connect(world, 2)
    ids = list(world.port.state.clients)
    one.send_at_once(write(1))
    other.send_at_once(command("CLIENT", "KILL", "ID", str(ids[0])))
    assert await other.receive(4) == b":1\r\n"
    assert await one.rest() == b""
    await other.ask(command("PING"), PONG)
    assert [each for each in calls.together if each] == []
    assert (calls.alone, world.member.commands) == ([], [])


async def test_a_turn_that_takes_too_long_gives_what_it_has(
    world: World, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has been read is on its way before others run, and before the next turn."""
    clients = await connect(world, 3)
    monkeypatch.setattr(listener, "TURN_SECONDS", -1.0)
    writes = [command("SET", f"key {number}", "value", "EX", "100") for number in range(3)]
    for each, one in zip(clients, writes, strict=True):
        each.send_at_once(one)
    for each in clients:
        assert await each.receive(len(OK)) == OK
    assert sorted(calls.together) == [[one] for one in writes]
    assert (world.port.state.gathered, calls.alone) == (None, [])


@pytest.mark.parametrize("turn_seconds", [-1.0, 60.0])
@pytest.mark.parametrize("options", [[], ["EX", "100"]])
async def test_a_long_turn_is_interrupted(
    world: World, monkeypatch: pytest.MonkeyPatch, turn_seconds: float, options: list[str]
) -> None:
    clients = [await world.connect() for _ in range(5)]
    for one in clients:
        await one.ask(command("PING"), b"+PONG\r\n")
    monkeypatch.setattr(listener, "TURN_SECONDS", turn_seconds)
    turns, seen = 0, list[int]()

    def submit(request: Request) -> None:
        seen.append(turns)
        world.member.answer(request)

    monkeypatch.setattr(world.member, "submit", submit)
    async with trio.open_nursery() as nursery:

        async def other_task() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        nursery.start_soon(other_task)
        for one in clients:
            one.send_at_once(command("SET", "a", "1", *options))
        for one in clients:
            assert await one.receive(5) == OK
        nursery.cancel_scope.cancel()
    # trio runs the two in any order in each of its rounds; plain commands take hardly any time
    interrupted = turn_seconds < 0 and options
    assert len(set(seen)) >= 3 if interrupted else len(set(seen)) == 1

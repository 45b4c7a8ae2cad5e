"""SETs of many tasks that travel together, on a store and on members."""

from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import trio
from trio.testing import wait_all_tasks_blocked

import quorate
from quorate.errors import RequestError, UnknownOutcomeError
from quorate.keyvalue.programs.gathering import Gathering
from quorate.keyvalue.protocol import resp
from quorate.keyvalue.protocol.payload import RESP3
from quorate.local.cluster import free_client_port
from quorate.node.requests.forwarding import ForwardStatus
from quorate.node.requests.request import COMMAND, Request, still_wanted
from quorate.node.state_machine.service import Command
from quorate.transport import ForwardReply, ForwardRequest, TermSpan
from tests.support.gathering_world import OK, Member, Tasks, keys_of, tasks_at
from tests.support.peers import log
from tests.support.script import Script, scripted
from tests.support.service_world import Fed, open_service


async def test_whoever_comes_and_goes_the_store_has_what_was_answered(tmp_path: Path) -> None:
    """Requests are held, sent and answered at random, and tasks are cancelled meanwhile."""
    service = open_service(tmp_path)
    fed, rng, member = Fed(service), Random(2), Member()
    results = dict[str, bool | RequestError | str]()
    held, sent = list[Request](), list[tuple[Request, bytes]]()
    withdrawn = set[str]()
    async with tasks_at(member, 400) as tasks:
        for turn in range(200):
            tasks.set(*(f"{turn}-{n}" for n in range(rng.randrange(12))))
            for _ in range(rng.randrange(3)):
                await trio.lowlevel.checkpoint()
            waiting = [key for key in tasks.waiting if rng.random() < 0.1]
            in_log = {key for request, _ in sent for key in keys_of(request)}
            withdrawn.update(key for key in waiting if key not in in_log)
            tasks.cancel(*waiting)
            await wait_all_tasks_blocked()
            held += [request for requests in member.turns for request in requests]
            member.turns.clear()
            if rng.random() < 0.5:
                for request in still_wanted(held):
                    command = Command(request.payload, RESP3, 0, 0, 1, fed.position, 0, fed.now)
                    sent.append((request, fed.replay(command)))
                held.clear()
            while sent and rng.random() < 0.6:
                request, reply = sent.pop(0)
                request.done(reply)
            results |= await tasks.seen()
    done = [key for key, result in results.items() if result is True]
    assert len(done) > 500
    assert len(withdrawn) > 50
    assert fed.query(*(["GET", key] for key in done)) == resp.bulk(b"x") * len(done)
    assert fed.query(*(["GET", key] for key in withdrawn)) == resp.NULL[0] * len(withdrawn)
    service.close()


@scripted(batches=log((0, 96), (0, 192)))
async def test_a_follower_forwards_again_only_what_tasks_still_wait_for(s: Script) -> None:
    leader = await s.follow(1, 1, TermSpan(0, 0, 192), TermSpan(1, 192, -1), log_term=0)
    gathering = Gathering(s.member, 1 << 20)
    async with trio.open_nursery() as running, trio.open_nursery() as nursery:
        await running.start(gathering.run)
        tasks = Tasks(Member(), gathering, nursery)
        tasks.set("a", "b", "c", "d")
        first = await leader.hears(ForwardRequest)
        keys = keys_of(Request(COMMAND, first.payload, first.flags, print))
        tasks.cancel(keys[0])
        assert await tasks.seen() == {keys[0]: "cancelled"}
        leader.say(ForwardReply(first.request_id, ForwardStatus.RETRY, b""))
        second = await leader.hears(ForwardRequest)
        assert keys_of(Request(COMMAND, second.payload, second.flags, print)) == keys[1:]
        tasks.cancel(keys[2])
        leader.say(ForwardReply(second.request_id, ForwardStatus.REPLY, OK * 3))
        await s.until(lambda: len(tasks.results) == 3, within=1)
        assert tasks.results == {keys[1]: True, keys[2]: "cancelled", keys[3]: True}
        assert (s.member.status().parked, s.member.status().forwarded) == (0, 0)
        tasks.results.clear()
        tasks.set("e", "f")
        await leader.hears(ForwardRequest)
        tasks.cancel("e")
        s.member.links.disconnect(1)
        await s.until(lambda: len(tasks.results) == 2, within=1)
        assert isinstance(tasks.results["f"], UnknownOutcomeError)
        running.cancel_scope.cancel()


async def test_members_inside_a_program_take_what_its_tasks_set_together(tmp_path: Path) -> None:
    first = free_client_port(13)
    members = tuple(
        quorate.MemberConfig(n, "127.0.0.1", first + 10 + n, first + n) for n in range(3)
    )
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(
                quorate.open_node(quorate.NodeConfig("together", n, tmp_path / f"{n}", members))
            )
            for n in range(3)
        ]
        await nodes[0].kv.set("first", "x")
        entries = nodes[0].status().entries

        async def write(node: quorate.Node, name: str) -> None:
            for n in range(10):
                assert await node.kv.set(f"{name}-{n}", name)

        async with trio.open_nursery() as nursery:
            for node in nodes:
                for task in range(20):
                    nursery.start_soon(write, node, f"{node.status().member_id}-{task}")
        names = [f"{member}-{task}" for member in range(3) for task in range(20)]
        for node in nodes:
            values = await node.kv.mget(*(f"{name}-9" for name in names))
            assert values == [name.encode() for name in names]
        assert nodes[0].status().entries - entries < 3 * 20 * 10 / 2

"""Peers that come and go while the links run."""

from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate.errors import ConfigurationError, HandshakeError
from quorate.transport import (
    Address,
    Connection,
    Hello,
    HelloReply,
    HelloStatus,
    LinkLimits,
    Links,
    Message,
    StreamPurpose,
    TcpNetwork,
    encode,
    open_stream,
)
from quorate.transport.peer_links import MAX_INTRODUCED
from quorate.transport.testing import MemoryNetwork
from quorate.transport.testing.memory_network import MemoryConnection, MemoryHost
from tests.support.transport_world import (
    Recorder,
    Stranger,
    World,
    address,
    commit,
    free_addresses,
    hello,
    make_links,
    simulated,
    stranger,
    world,
)


def everybody(*members: int) -> dict[int, Address]:
    return {member: address(member) for member in members}


def open_to_all(w: World) -> None:
    """Let all members admit whatever says hello."""
    for recorder in w.recorders.values():
        recorder.admitted = None


async def joiner(w: World, member: int, *listed: int) -> Recorder:
    """Run a member that lists others, and that these do not list."""
    recorder = Recorder()
    links = make_links(
        member,
        everybody(member),
        w.network.host(f"host{member}"),
        recorder,
        peers=everybody(*listed),
    )
    w.links[member], w.recorders[member] = links, recorder
    await w.nursery.start(run_in_scope, w, member)
    return recorder


async def run_in_scope(w: World, member: int, *, task_status: trio.TaskStatus[None]) -> None:
    async with trio.open_nursery() as nursery:
        w.scopes[member] = nursery.cancel_scope
        await nursery.start(w.links[member].run)
        task_status.started()


async def replied(made: Stranger) -> tuple[HelloStatus, str]:
    reply = await made.reply()
    assert reply is not None
    return reply.status, reply.reason


def tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


# --- listed peers ---------------------------------------------------------------------------------


@simulated
async def test_a_peer_that_is_added_is_dialled_at_once() -> None:
    async with world(2) as w:
        await joiner(w, 2)
        w.recorders[2].admitted = {0, 1}
        before = trio.current_time()
        w.links[0].set_peers(everybody(0, 1, 2))
        assert w.links[0].peers == (1, 2)
        assert w.recorders[0].peers == [(1, 2)]
        assert not w.links[0].connected(2)
        await w.recorders[0].until("up", 2)
        assert trio.current_time() - before < 0.01
        assert w.recorders[0].count("lost", 1) == 0


@simulated
async def test_a_peer_that_is_removed_loses_its_link_and_its_tasks() -> None:
    async with world(3) as w:
        before = tasks()
        w.stop(2)
        await w.recorders[0].until("lost", 2)
        await trio.sleep(1)
        gone = before - tasks()  # of the member that stopped, and what served it
        w.links[0].set_peers(everybody(0, 1))
        assert w.links[0].peers == (1,)
        assert w.recorders[0].peers == [(1,)]
        await trio.sleep(60)
        assert before - tasks() > gone
        assert w.recorders[0].count("up", 2) == 1
        w.links[0].set_peers(everybody(0, 1, 2))
        await trio.sleep(1)
        assert before - tasks() == gone  # one task per link, whatever happened before


@simulated
async def test_a_removed_peer_gets_no_message_and_sees_its_link_end() -> None:
    async with world(2) as w:
        w.network.refuse("host0")  # so that its link to us does not come back
        w.links[1].disconnect(0)
        await w.recorders[0].until("lost", 1)
        assert w.links[0].connected(1)
        w.links[0].set_peers({})
        assert not w.links[0].send(1, commit(1))
        w.links[0].broadcast(commit(2))
        await w.recorders[1].until("lost", 0)
        await trio.sleep(60)
        assert w.recorders[1].messages(0) == []
        assert w.recorders[1].count("lost", 0) == 1


@simulated
async def test_a_member_without_a_link_is_taken_by_every_method() -> None:
    async with world(2) as w:
        links = w.links[0]
        assert not links.send(7, commit(1))
        assert not links.send_frame(7, encode(commit(1)))
        assert not links.send_bulk(7, commit(1))
        assert not links.has_room(7)
        assert not links.connected(7)
        assert not links.refused(7)
        assert links.trouble(7) == ""
        links.disconnect(7)
        with pytest.raises(HandshakeError, match="member 7: no address of it is known"):
            await links.open_stream(7, purpose=StreamPurpose.REPLAY)


@simulated
async def test_the_same_list_again_changes_nothing() -> None:
    async with world(3) as w:
        w.links[0].set_peers({2: [address(2)], 1: address(1)})
        assert w.links[0].peers == (1, 2)
        await trio.sleep(1)
        assert w.recorders[0].peers == []
        assert [w.recorders[0].count("up", member) for member in (1, 2)] == [1, 1]


@simulated
async def test_a_list_may_be_replaced_before_the_links_run() -> None:
    async with world(2) as w:
        recorder = Recorder()
        links = make_links(2, everybody(0, 2), w.network.host("host2"), recorder)
        links.set_peers(everybody(1))
        w.recorders[1].admitted = None
        await w.nursery.start(links.run)
        await recorder.until("up", 1)
        assert recorder.peers == [(1,)]
        await trio.sleep(5)
        assert recorder.count("up", 0) == 0


@simulated
async def test_a_list_may_be_replaced_after_the_links_have_ended() -> None:
    async with world(2) as w:
        w.stop(0)
        w.links[0].set_peers(everybody(1, 2))
        await w.recorders[1].until("lost", 0)
        w.links[0].set_peers(everybody(2, 3))
        await trio.sleep(5)
        assert set(w.links[0].peers) >= {2, 3}
        assert w.recorders[0].count("up", 2) == 0


@simulated
async def test_what_is_dialled_when_it_is_removed_is_never_reported() -> None:
    async with world(2) as w:
        await joiner(w, 2)
        w.recorders[2].admitted = {0}
        for step in range(1, 60):
            w.links[0].set_peers(everybody(1, 2))
            # A dial takes 2 ms, the hello another 2 ms: cut off at every moment.
            await trio.sleep(0.0001 * step)
            ups = w.recorders[0].count("up", 2)
            w.links[0].set_peers(everybody(1))
            await trio.sleep(1)
            assert w.recorders[0].count("up", 2) == ups
        assert w.recorders[0].count("up", 2) > 0


@simulated
@pytest.mark.parametrize("admitted", [True, False])
async def test_an_answer_in_the_moment_of_the_removal_is_not_reported(
    admitted: bool,  # noqa: FBT001
) -> None:
    class Unlisting(MemoryConnection):
        async def receive(self, max_bytes: int) -> bytes:
            data = await super().receive(max_bytes)
            links.set_peers({})
            return data

    class Host(MemoryHost):
        async def connect(self, address: Address) -> MemoryConnection:
            made = await super().connect(address)
            made.__class__ = Unlisting
            return made

    async with world(1) as w:
        recorder = Recorder()
        recorder.admitted = set()
        if admitted:
            w.recorders[0].admitted = None
        else:
            setattr(w.recorders[0], "admits", removed)  # noqa: B010 - of this one recorder
        links = make_links(5, everybody(5), Host(w.network, "host5"), recorder, peers=everybody(0))
        await w.nursery.start(links.run)
        await trio.sleep(5)
        assert recorder.peers == [()]
        assert recorder.events == []
        assert recorder.removals == []
        if admitted:
            assert w.recorders[0].kinds(5) == ["lost"]


# --- callbacks that change the list ---------------------------------------------------------------


@simulated
@pytest.mark.parametrize("hook", ["on_link_up", "on_message", "on_hello", "on_receiving"])
@pytest.mark.parametrize("count", [1, 2])
async def test_a_callback_may_remove_the_peer_that_it_is_called_for(hook: str, count: int) -> None:
    async with world(1) as w:
        recorder = Recorder()
        usual: Callable[..., None] = getattr(recorder, hook)

        def remove(member: int, *rest: Message | Hello) -> None:
            usual(member, *rest)
            recorder.admitted = set()
            links.set_peers({})
            links.judge_anew()

        setattr(recorder, hook, remove)
        links = make_links(5, everybody(0, 5), w.network.host("host5"), recorder)
        await w.nursery.start(links.run)
        w.recorders[0].admitted = None
        greeting = encode(hello(0, at=address(0)))
        together = encode(commit(1)) * count + encode(commit(1))[:-1]
        made = await stranger(w.network.host("host0"), address(5), greeting + together)
        await trio.sleep(5)
        assert links.peers == ()
        assert not links.connected(0)
        assert await made.reply() or hook == "on_hello"
        assert await made.ends()
        kinds = [kind for kind in recorder.kinds(0) if kind != "up"]
        assert kinds[-1:] == (["lost"] if kinds else [])  # nothing comes after the end
        assert recorder.count("message", 0) <= 2
        assert recorder.peers == [()]


def test_on_peers_may_change_the_list_again() -> None:
    class Contrary(Recorder):
        def on_peers(self) -> None:
            self.peers.append(self.links.peers)
            self.links.set_peers(everybody(1))

    host = MemoryNetwork(Random(0)).host("host0")
    links = make_links(0, everybody(0), host, recorder := Contrary(), peers=everybody(1))
    links.set_peers(everybody(1, 2))
    assert recorder.peers == [(1, 2), (1,)]
    assert links.peers == (1,)


# --- introduced members ---------------------------------------------------------------------------


@simulated
async def test_a_member_in_no_list_is_dialled_back_and_both_can_talk() -> None:
    async with world(2) as w:
        open_to_all(w)
        recorder = await joiner(w, 7, 0)
        assert w.recorders[0].peers == []
        await w.recorders[0].until("up", 7)
        assert w.links[0].peers == (1, 7)
        assert w.links[7].peers == (0,)
        assert w.links[0].send(7, commit(1))
        assert w.links[7].send(0, commit(2))
        await recorder.until("message", 0)
        await w.recorders[0].until("message", 7)
        w.links[0].broadcast(commit(3))
        await recorder.until("message", 0, 2)


@simulated
async def test_an_introduced_link_ends_with_the_link_of_that_member() -> None:
    async with world(2) as w:
        open_to_all(w)
        before = tasks()
        recorder = await joiner(w, 7, 0)
        await w.recorders[0].until("up", 7)
        w.network.refuse("host0")
        w.links[7].disconnect(0)
        await w.recorders[0].until("lost", 7)
        assert w.links[0].peers == (1,)
        assert w.recorders[0].peers == [(1, 7), (1,)]
        await recorder.until("lost", 0)
        w.network.refuse("host0", refused=False)
        await w.recorders[0].until("up", 7, 2)
        w.stop(7)
        await w.recorders[0].until("lost", 7, 2)
        await trio.sleep(60)
        assert tasks() == before
        assert w.links[0].peers == (1,)


@simulated
async def test_a_newer_connection_of_an_introduced_member_keeps_its_link() -> None:
    async with world(1) as w:
        open_to_all(w)
        host, greeting = w.network.host("host7"), hello(7, at=address(7))
        older = await stranger(host, address(0), greeting, commit(1))
        await w.recorders[0].until("message", 7)
        newer = await stranger(host, address(0), greeting, commit(2))
        await w.recorders[0].until("message", 7, 2)
        assert await older.reply()
        assert await older.ends()
        assert w.recorders[0].kinds(7) == ["message", "lost", "message"]
        assert w.recorders[0].peers == [(7,)]
        newer.connection.close()
        await w.recorders[0].until("lost", 7, 2)
        assert w.recorders[0].peers == [(7,), ()]


@simulated
async def test_the_callbacks_of_an_introduction_come_in_their_order() -> None:
    calls = list[str]()

    class Ordered(Recorder):
        def on_peers(self) -> None:
            calls.append(f"peers {self.links.peers}")

        def on_hello(self, member: int, hello: Hello) -> None:
            calls.append(f"hello {member} {self.links.peers}")
            super().on_hello(member, hello)

        def on_message(self, sender: int, message: Message) -> None:
            calls.append(f"message {sender}")

        def on_link_lost(self, member: int) -> None:
            calls.append(f"lost {member} {self.links.peers}")

    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(Random(0))
        links = make_links(0, everybody(0), network.host("host0"), Ordered(), peers={})
        await nursery.start(links.run)
        made = await stranger(
            network.host("x"), address(0), hello(7, at=Address("x", 1)), commit(1)
        )
        await trio.sleep(1)
        made.connection.close()
        await trio.sleep(1)
        assert calls == ["peers (7,)", "hello 7 (7,)", "message 7", "lost 7 (7,)", "peers ()"]
        nursery.cancel_scope.cancel()


@simulated
async def test_a_member_may_be_refused_by_the_callback_that_reports_its_link() -> None:
    greeted = list[int]()

    class Hesitant(Recorder):
        def on_peers(self) -> None:
            super().on_peers()
            self.admitted = set()
            self.links.judge_anew()

        def on_hello(self, member: int, hello: Hello) -> None:
            greeted.append(member)

    async with trio.open_nursery() as nursery:
        network, recorder = MemoryNetwork(Random(0)), Hesitant()
        links = make_links(0, everybody(0), network.host("host0"), recorder, peers={})
        await nursery.start(links.run)
        made = await stranger(network.host("x"), address(0), hello(7, at=Address("x", 1)))
        assert await made.reply() is None
        assert recorder.peers == [(7,), ()]
        assert greeted == []
        nursery.cancel_scope.cancel()


@simulated
async def test_a_member_is_listed_and_unlisted_while_its_own_link_is_up() -> None:
    async with world(2) as w:
        open_to_all(w)
        recorder = await joiner(w, 7, 0)
        await w.recorders[0].until("up", 7)
        w.links[0].set_peers(everybody(1, 7))
        w.links[0].set_peers(everybody(1))
        assert w.links[0].connected(7)
        assert w.links[0].send(7, commit(1))
        await recorder.until("message", 0)
        assert w.recorders[0].count("up", 7) == 1
        assert w.recorders[0].peers == [(1, 7)]
        w.links[0].set_peers(everybody(1, 7))
        w.stop(7)
        await w.recorders[0].until("lost", 7)
        assert w.links[0].peers == (1, 7)  # listed: it may come back
        w.links[0].set_peers(everybody(1))
        assert w.recorders[0].peers == [(1, 7), (1,)]


@simulated
@pytest.mark.parametrize(
    "nowhere",
    [
        Address("", 7000),
        Address("x", 0),
        Address("x", -1),
        Address("x", 65536),
        Address("x\ny", 1),
        Address("x y", 1),
        Address("x\0", 1),
    ],
)
async def test_a_member_that_can_not_be_dialled_back_is_refused(nowhere: Address) -> None:
    async with world(2) as w:
        open_to_all(w)
        made = await stranger(w.network.host("x"), address(0), hello(7, at=nowhere))
        status, reason = await replied(made)
        assert status is HelloStatus.WRONG_MEMBER
        assert "member 7 names host" in reason
        listed = await stranger(w.network.host("x"), address(0), hello(1, at=nowhere))
        assert (await replied(listed))[0] is HelloStatus.ACCEPTED
        assert w.links[0].peers == (1,)


@simulated
async def test_introduced_links_are_limited_in_number() -> None:
    async with world(2) as w:
        open_to_all(w)
        host = w.network.host("x")
        made = [
            await stranger(host, address(0), hello(number, at=Address("x", number)))
            for number in range(100, 100 + MAX_INTRODUCED)
        ]
        for each in made:
            assert (await replied(each))[0] is HelloStatus.ACCEPTED
        status, reason = await replied(
            await stranger(host, address(0), hello(99, at=Address("x", 99)))
        )
        assert status is HelloStatus.BUSY
        assert "16 members that are in no list" in reason
        assert len(w.links[0].peers) == MAX_INTRODUCED + 1
        again = await stranger(host, address(0), hello(100, at=Address("x", 100)))
        assert (await replied(again))[0] is HelloStatus.ACCEPTED
        w.links[0].set_peers(everybody(1, 100))  # listed ones do not count
        late = await stranger(host, address(0), hello(99, at=Address("x", 99)))
        assert (await replied(late))[0] is HelloStatus.ACCEPTED


@simulated
async def test_a_hello_for_a_stream_introduces_nobody() -> None:
    async def wait(_hello: Hello, stream: object) -> None:
        await trio.sleep(1)

    async with world(1, on_stream=wait) as w:
        open_to_all(w)
        wish = hello(7, purpose=StreamPurpose.REPLAY, at=address(7))
        async with await open_stream(w.network.host("x"), address(0), wish):
            assert w.links[0].peers == ()


# --- addresses ------------------------------------------------------------------------------------


class Dials(MemoryHost):
    """A host that notes what it dials, and when."""

    def __init__(self, network: MemoryNetwork, name: str) -> None:
        super().__init__(network, name)
        self.made: list[tuple[float, Address]] = []

    @property
    def targets(self) -> list[Address]:
        return [target for _, target in self.made]

    async def connect(self, address: Address) -> MemoryConnection:
        self.made.append((trio.current_time(), address))
        return await super().connect(address)


@simulated
async def test_several_addresses_are_dialled_in_turn_until_one_answers() -> None:
    async with world(1) as w:
        host = Dials(w.network, "host5")
        where = [Address("no", 1), Address("no", 2), address(0)]
        links = make_links(5, everybody(5), host, recorder := Recorder(), peers={0: where})
        open_to_all(w)
        await w.nursery.start(links.run)
        await recorder.until("up", 0)
        assert host.targets == where
        assert trio.current_time() < 0.02  # no pause between them
        links.disconnect(0)
        await recorder.until("up", 0, 2)
        assert host.targets[3:] == [address(0)]  # the one that worked goes first


@simulated
async def test_all_addresses_get_one_pause_together_and_one_verdict() -> None:
    network = MemoryNetwork(Random(0), latency=0.0)
    host, where = Dials(network, "host0"), [Address("no", 1), Address("no", 2)]
    network.cut("host0", "cut")
    links = make_links(0, everybody(0), host, Recorder(), peers={1: where})
    async with trio.open_nursery() as nursery:
        await nursery.start(links.run)
        await trio.sleep(5)
        assert links.refused(1)
        assert host.targets == where * (len(host.made) // 2)
        times = [time for time, _ in host.made]
        assert times[::2] == times[1::2]
        assert len(set(times)) < 15
        links.set_peers({1: [Address("no", 1), Address("cut", 2)]})
        assert not links.refused(1)
        await trio.sleep(9)
        assert not links.refused(1)  # one of the two may be the peer, cut off
        assert links.trouble(1).startswith(("no:1: ", "cut:2: "))
        nursery.cancel_scope.cancel()


@simulated
async def test_an_address_that_is_silent_does_not_hold_up_the_next_one_for_long() -> None:
    async with world(1) as w:
        w.network.cut("host5", "silent")
        where = [Address("silent", 1), address(0)]
        links = make_links(
            5, everybody(5), w.network.host("host5"), peer := Recorder(), peers={0: where}
        )
        open_to_all(w)
        await w.nursery.start(links.run)
        await peer.until("up", 0)
        assert trio.current_time() < LinkLimits().alternative_seconds + 0.02


@simulated
async def test_on_a_slow_network_an_address_before_others_is_reached() -> None:
    network, where = MemoryNetwork(Random(0), latency=0.4), [address(0), Address("no", 1)]
    peer = Recorder()
    async with trio.open_nursery() as nursery:
        links = make_links(0, everybody(0, 5), network.host("host0"), Recorder())
        await nursery.start(links.run)
        links = make_links(5, everybody(5), network.host("host5"), peer, peers={0: where})
        await nursery.start(links.run)
        await peer.until("up", 0)
        assert trio.current_time() < 1.7  # one way and back for the dial, and for the hello
        nursery.cancel_scope.cancel()


@simulated
async def test_on_a_slow_network_two_addresses_of_one_peer_make_one_link() -> None:
    network, where = MemoryNetwork(Random(0), latency=0.4), [address(0), Address("host0", 1)]
    callers, peer = Recorder(), Recorder()
    async with trio.open_nursery() as nursery:
        links = make_links(0, everybody(0, 5), network.host("host0"), callers)
        await nursery.start(links.run)
        network.listeners[where[1]] = network.listeners[where[0]]
        links = make_links(5, everybody(5), network.host("host5"), peer, peers={0: where})
        await nursery.start(links.run)
        await trio.sleep(20)
        assert links.connected(0)
        assert peer.count("up", 0) == 1
        assert callers.count("lost", 5) == 0
        nursery.cancel_scope.cancel()


@simulated
async def test_an_address_is_dialled_on_while_another_one_is_silent() -> None:
    network = MemoryNetwork(Random(0), latency=0.001)
    host, where = Dials(network, "host5"), [Address("silent", 1), Address("no", 1)]
    network.cut("host5", "silent")
    links = make_links(5, everybody(5), host, Recorder(), peers={0: where})
    async with trio.open_nursery() as nursery:
        await nursery.start(links.run)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    times = [time for time, target in host.made if target == where[1]]
    limits = LinkLimits()
    longest = limits.backoff_longest + limits.alternative_seconds + 0.01
    assert max(after - before for before, after in pairwise(times)) < longest
    assert times[-1] > 58
    # The dial of the silent one goes on behind, and is made anew when it has failed.
    silent = [time for time, target in host.made if target == where[0]]
    assert min(after - before for before, after in pairwise(silent)) >= limits.dial_seconds
    assert len(silent) > 18


@simulated
async def test_a_link_that_ends_closes_all_connections_that_were_made_for_it() -> None:
    network, where = MemoryNetwork(Random(0), latency=0.7), [Address("x", 1), Address("x", 2)]
    ended = list[bytes]()

    async def listen(connection: Connection) -> None:
        # It answers no hello.
        while await connection.receive(1000):
            pass
        ended.append(b"")

    links = make_links(5, everybody(5), network.host("host5"), Recorder(), peers={0: where})
    async with trio.open_nursery() as nursery:
        for each in where:
            nursery.start_soon(network.host("x").serve, each, listen)
        await nursery.start(links.run)
        await trio.sleep(3)
        assert ended == []
        links.set_peers({})
        await trio.sleep(1)
        assert len(ended) == 2
        nursery.cancel_scope.cancel()


def test_reasons_of_several_addresses_are_logged_once_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", "quorate.transport")

    @simulated
    async def check() -> None:
        network = MemoryNetwork(Random(0))
        where = [Address("no", 1), Address("no", 2)]
        links = make_links(0, everybody(0), network.host("host0"), Recorder(), peers={1: where})
        with trio.move_on_after(60):
            await links.run()

    check()
    assert caplog.text.count("no link to member 1 at no:1") == 1
    assert caplog.text.count("no link to member 1 at no:2") == 1


@simulated
async def test_a_peer_with_new_addresses_keeps_a_connection_that_works() -> None:
    async with world(1) as w:
        open_to_all(w)
        host = Dials(w.network, "host5")
        links = make_links(5, everybody(5), host, recorder := Recorder(), peers=everybody(0))
        await w.nursery.start(links.run)
        await recorder.until("up", 0)
        await trio.sleep(1)  # its own hello has said where it is
        links.set_peers({0: [Address("new", 1), Address("new", 2)]})
        await trio.sleep(10)
        assert host.targets == [address(0)]
        assert links.send(0, commit(1))
        assert recorder.peers == []
        links.disconnect(0)
        await recorder.until("up", 0, 2)
        # Its own link is up and says where it is: tried, too, behind those that are listed.
        assert host.targets[1:] == [Address("new", 1), Address("new", 2), address(0)]


@simulated
async def test_new_addresses_of_a_peer_that_is_down_are_dialled_at_once() -> None:
    async with world(1) as w:
        w.recorders[0].admitted = None
        host = w.network.host("host5")
        links = make_links(
            5, everybody(5), host, recorder := Recorder(), peers={0: Address("no", 1)}
        )
        await w.nursery.start(links.run)
        await trio.sleep(60)
        before = trio.current_time()
        links.set_peers(everybody(0))
        await recorder.until("up", 0)
        assert trio.current_time() - before < 0.01


@simulated
async def test_a_member_that_has_moved_is_dialled_back() -> None:
    async with world(2) as w:
        w.stop(1)
        await w.recorders[0].until("lost", 1)
        w.network.cut("host0", "host1")  # a dial of its old address hangs for two seconds
        await trio.sleep(60)
        moved = Address("new", 7777)
        links = make_links(
            1, {1: moved}, w.network.host("new"), recorder := Recorder(), peers=everybody(0)
        )
        await w.nursery.start(links.run)
        before = trio.current_time()
        await w.recorders[0].until("up", 1, 2)
        assert trio.current_time() - before < 2.1
        assert w.links[0].send(1, commit(1))
        await recorder.until("message", 0)
        assert w.links[0].peers == (1,)
        stream = hello(0, purpose=StreamPurpose.REPLAY)
        with pytest.raises(trio.TooSlowError):
            await open_stream(w.network.host("host0"), address(1), stream)


@simulated
async def test_an_address_that_can_not_be_reached_is_tried_first_only_when_it_is_new() -> None:
    async def accept(connection: Connection) -> None:
        await connection.receive(1000)
        connection.send_nowait(encode(HelloReply(1, HelloStatus.ACCEPTED, "", 1)))
        await connection.receive(1000)

    async with trio.open_nursery() as nursery:
        network, recorder = MemoryNetwork(Random(0)), Recorder()
        host = Dials(network, "host0")
        links = make_links(0, everybody(0), host, recorder, peers=everybody(1))
        nursery.start_soon(network.host("host1").serve, address(1), accept)
        await nursery.start(links.run)
        await recorder.until("up", 1)
        host.made.clear()
        inside = Address("inside", 9)
        for _ in range(3):
            made = await stranger(network.host("host1"), address(0), hello(1, at=inside))
            assert (await replied(made))[0] is HelloStatus.ACCEPTED
            links.disconnect(1)
            await trio.sleep(3)
            assert links.connected(1)
        assert host.targets == [inside, address(1), address(1), address(1)]
        nursery.cancel_scope.cancel()


@simulated
async def test_a_stream_tries_every_address_and_reports_the_first_failure() -> None:
    async def serve(_hello: Hello, stream: object) -> None:
        await trio.sleep(1)

    async with world(1, on_stream=serve) as w:
        open_to_all(w)
        host, nowhere = w.network.host("host5"), [Address("no", 1), Address("no", 2)]
        links = make_links(
            5, everybody(5), host, Recorder(), peers={0: [*nowhere, address(0)], 1: nowhere}
        )
        w.network.cut("host5", "no")
        async with await links.open_stream(0, purpose=StreamPurpose.REPLAY) as stream:
            assert stream.peer == str(address(0))
        with pytest.raises(trio.TooSlowError):
            await links.open_stream(1, purpose=StreamPurpose.REPLAY)
        links.set_peers({1: []})
        with pytest.raises(HandshakeError, match="no address of it is known"):
            await links.open_stream(1, purpose=StreamPurpose.REPLAY)


@simulated
async def test_a_listed_peer_without_an_address_is_not_gone() -> None:
    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(Random(0))
        links = make_links(0, everybody(0), network.host("host0"), Recorder(), peers={1: []})
        await nursery.start(links.run)
        await trio.sleep(5)
        assert not links.refused(1)
        nursery.cancel_scope.cancel()


def test_an_advertised_host_that_no_hello_can_carry_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="host: a name of 257 bytes"):
        make_links(0, {0: Address("x" * 257, 1)}, TcpNetwork(), Recorder())


# --- who may come in ------------------------------------------------------------------------------


def removed(hello: Hello) -> tuple[HelloStatus, str]:
    return HelloStatus.REMOVED, f"version 4 removed member {hello.member_id}"


@simulated
async def test_a_member_that_was_removed_gets_the_reason_with_each_dial() -> None:
    async with world(2) as w:
        setattr(w.recorders[0], "admits", removed)  # noqa: B010 - of this one recorder
        assert w.recorders[1].removals == []
        w.links[0].set_peers({})
        w.links[0].judge_anew()
        assert w.recorders[0].count("lost", 1) == 1
        assert w.links[0].peers == ()
        await w.recorders[1].until_true(lambda: bool(w.recorders[1].removals))
        assert w.recorders[1].removals == [(0, "version 4 removed member 1")]
        before = len(w.recorders[1].removals)
        await trio.sleep(30)
        assert 20 < len(w.recorders[1].removals) - before < 60  # with growing pauses
        assert "version 4 removed member 1" in w.links[1].trouble(0)
        with pytest.raises(HandshakeError) as caught:
            await w.links[1].open_stream(0, purpose=StreamPurpose.REPLAY)
        assert caught.value.status is HelloStatus.REMOVED
        assert caught.value.reason == "version 4 removed member 1"
        assert w.recorders[0].count("message", 1) == 0


@simulated
async def test_another_refusal_is_no_removal() -> None:
    async with world(2) as w:
        w.recorders[0].admitted = set()
        w.links[0].judge_anew()
        await trio.sleep(5)
        assert w.recorders[1].removals == []
        with pytest.raises(HandshakeError) as caught:
            await w.links[1].open_stream(0, purpose=StreamPurpose.REPLAY)
        assert caught.value.status is HelloStatus.WRONG_MEMBER


@simulated
async def test_only_links_that_are_refused_now_are_closed() -> None:
    async with world(3) as w:
        w.links[0].judge_anew()
        w.recorders[0].admitted = {1}
        w.links[0].judge_anew()
        assert w.recorders[0].count("lost", 1) == 0
        assert w.recorders[0].count("lost", 2) == 1
        assert w.links[0].peers == (1, 2)  # still listed
        assert w.links[0].connected(2)
        await trio.sleep(5)
        assert w.recorders[0].count("lost", 2) == 1
        w.recorders[0].admitted = {1, 2}
        await trio.sleep(2)
        assert w.links[2].send(0, commit(1))
        await w.recorders[0].until("message", 2)


@simulated
async def test_the_handler_is_asked_for_every_purpose_and_not_about_tools() -> None:
    asked = list[tuple[int, StreamPurpose]]()

    class Asked(Recorder):
        def admits(self, hello: Hello) -> tuple[HelloStatus, str]:
            asked.append((hello.member_id, hello.purpose))
            return HelloStatus.WRONG_MEMBER, "nobody"

    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(Random(0))
        links = make_links(0, everybody(0), network.host("host0"), Asked(), peers={})
        await nursery.start(links.run)
        for purpose in StreamPurpose:
            for member in (-5, -1, 0, 7):
                await stranger(
                    network.host("x"), address(0), hello(member, purpose=purpose, cluster="other")
                )
                made = await stranger(network.host("x"), address(0), hello(7, purpose=purpose))
                assert await replied(made) == (HelloStatus.WRONG_MEMBER, "nobody")
        assert asked == [(7, purpose) for purpose in StreamPurpose for _ in range(4)]
        nursery.cancel_scope.cancel()


@simulated
async def test_a_change_during_the_callbacks_of_judge_anew_does_no_harm() -> None:
    class Eager(Recorder):
        def on_link_lost(self, member: int) -> None:
            super().on_link_lost(member)
            self.links.judge_anew()
            self.links.set_peers({})

    async with trio.open_nursery() as nursery:
        network, recorder = MemoryNetwork(Random(0)), Eager()
        links = make_links(0, everybody(0), network.host("host0"), recorder, peers={})
        await nursery.start(links.run)
        made = [
            await stranger(network.host("x"), address(0), hello(n, at=Address("x", n)))
            for n in (5, 6, 7)
        ]
        await trio.sleep(1)
        recorder.admitted = {6}
        links.judge_anew()
        assert [recorder.count("lost", member) for member in (5, 6, 7)] == [1, 0, 1]
        assert links.peers == (6,)
        made[1].connection.close()
        await recorder.until("lost", 6)
        assert not links.peers
        nursery.cancel_scope.cancel()


# --- whatever happens -----------------------------------------------------------------------------

MEMBERS = st.integers(1, 4)
STEPS = st.lists(
    st.tuples(st.sampled_from(["list", "admit"]), st.sets(MEMBERS))
    | st.tuples(st.sampled_from(["hello", "close", "break"]), MEMBERS.map(lambda one: {one})),
    max_size=20,
)


class Strict(Recorder):
    """Checks that the calls for one member make sense."""

    def __init__(self) -> None:
        super().__init__()
        self.up = set[int]()

    def on_hello(self, member: int, hello: Hello) -> None:
        super().on_hello(member, hello)
        assert member not in self.up
        self.up.add(member)

    def on_message(self, sender: int, message: Message) -> None:
        super().on_message(sender, message)
        assert sender in self.up

    def on_link_lost(self, member: int) -> None:
        super().on_link_lost(member)
        self.up.remove(member)

    def on_peers(self) -> None:
        super().on_peers()
        assert self.peers[-1:] != self.peers[-2:-1]


@settings(deadline=None, max_examples=60)
@given(STEPS)
def test_a_link_is_kept_to_listed_and_introduced_members_only(
    steps: list[tuple[str, set[int]]],
) -> None:
    @simulated
    async def check() -> None:
        async with trio.open_nursery() as nursery:
            network, recorder = MemoryNetwork(Random(0)), Strict()
            links = make_links(0, everybody(0), network.host("host0"), recorder, peers={})
            await nursery.start(links.run)
            await trio.sleep(1)
            idle, listed, made = tasks(), set[int](), dict[int, Stranger]()
            for step, members in [*steps, ("list", set[int]()), ("admit", set[int]())]:
                if step == "list":
                    listed = members
                    links.set_peers(everybody(*members))
                elif step == "admit":
                    recorder.admitted = members
                    links.judge_anew()
                for member in members:
                    if step == "hello":
                        greeting = hello(member, at=address(member))
                        host = network.host(f"host{member}")
                        made[member] = await stranger(host, address(0), greeting, commit(1))
                    elif step == "close" and member in made:
                        made[member].connection.close()
                    elif step == "break":
                        network.break_links("host0", f"host{member}")
                assert set(links.peers) == listed | recorder.up or step in {"hello", "close"}
                await trio.sleep(0.1)
                assert set(links.peers) == listed | recorder.up
            await trio.sleep(3)
            assert not recorder.up
            assert not links.peers
            assert tasks() == idle
            nursery.cancel_scope.cancel()

    check()


# --- over TCP -------------------------------------------------------------------------------------


async def test_an_introduction_over_tcp() -> None:
    addresses = dict(enumerate(free_addresses(2)))
    recorders = {0: Recorder(), 1: Recorder()}
    links: dict[int, Links] = {
        0: make_links(0, addresses, TcpNetwork(), recorders[0], peers={}),
        1: make_links(1, addresses, TcpNetwork(), recorders[1], peers={0: addresses[0]}),
    }
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            for each in links.values():
                await nursery.start(each.run)
            await recorders[0].until("up", 1)
            assert links[0].send(1, commit(1))
            await recorders[1].until("message", 0)
            links[0].set_peers({1: addresses[1]})
            recorders[0].admitted = set()
            links[0].set_peers({})
            links[0].judge_anew()
            await recorders[1].until("lost", 0)
            assert not links[0].peers
            nursery.cancel_scope.cancel()

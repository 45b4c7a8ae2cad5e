"""Plays a script to a whole cluster in virtual time, and writes down what comes of it.

A script is a text file. Lines that begin with ``>`` are events; between them stands what followed,
one fact a line: when, at whom, a transition or a message that has arrived. A message that repeats
the last one of its kind on its way is left out, and so is what is only there to find a reply again.
Lines that begin with ``#`` are for the reader.

=============================  ================================================================
``members N [latency S]``      first of all; S is in seconds, one way
``without scouting``           members stand without having asked
``observed``                   after every event all invariants of the simulation are checked
``without messages``           leave out messages, and states of elections but the last one
``log I TERM:END ...``         a member's log before its first start; ``TERM:`` is an empty term
``promised T I TERM:END ...``  the same, and it has voted for itself in term T, in vain
``start [I ...]``              start members, all if none is named
``settle``                     wait until all that run follow one leader, who takes requests; from
                               then on it is ``leader``, the others ``first``, ``second`` and so on
``lead``                       the same, as soon as anybody leads
``run S``                      let virtual seconds pass
``until I STATE``              wait until a member is in a state
``command I TEXT``             have a command done through a member
``attempt I TEXT``             the same, and give up after a second
``transfer I J``               ask a member that another one shall lead
``kill I``, ``stop I``         at once, or in order
``pause I``, ``resume I``      as SIGSTOP and SIGCONT do
``cut I J``, ``isolate I``     nothing comes through any more
``heal``                       undo all cuts
``drop KIND``, ``hold KIND``   messages of that kind are lost, or wait
``pass``                       take back all drops and holds
``deliver``                    let arrive what was held back
``expect I leads term T``      fail if another one does, or it leads another term
``member I WORDS``             give an order about members to a member, and wait for the answer
``begin I WORDS``              the same, and go on; the answer comes when it comes
``join I``                     make the machine of a new member, and start it
``version I N``                wait until version N of the configuration is in force at a member
``rival``                      wait until a member leads that is not ``leader``; it is ``rival``
``config I``                   write down the configuration in force at a member
``decided by I ...``           wait until just these members have a vote, as it is applied
``removed I``                  wait until a member has found out that it was removed
``wipe I``                     kill a member, and replace its disk; it is not started
``port I N``                   a member listens at another port, from its next start on
``hold J F KIND``              messages of that kind from J to F wait; F is ``all`` for anyone
``reach I``                    wait until a member has applied what the leader has committed
=============================  ================================================================

``leader`` and so on are names of members; so is a number, which is a member's id.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import attrs
import trio

from quorate.errors import RefusedError, RequestError
from quorate.node import State
from quorate.node.election.prevote import PreVote, stand
from quorate.simulation import Ledger, Observer, Setting, World, open_world
from quorate.storage import NodeState, decode_header_untrusted
from quorate.transport import LogBatch
from tests.simulation.members import decided_by, removed
from tests.support.peers import log, record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from quorate.node.election.transition import Next
    from quorate.transport import Message

QUIET: Final = {
    "app_version", "confirm_id", "correlation_id", "follower_member_id", "leader_recording_id",
    "log_session_id", "nonce", "payload", "protocol_version", "request_id", "timestamp",
}  # fmt: skip
"""Fields that no rule of the protocol goes by, and who sends, which stands before each message."""

STEPS: Final = 30
"""So many steps of the loop belong to an event: what it causes at that very moment."""

NOBODY: Final = 1 << 30
"""At one moment the script's own words come last."""

HEADS: Final = ("without scouting", "without messages", "observed")
"""Lines that say how a script is played, and are no events."""

NAMES: Final = ("first", "second", "third", "fourth", "fifth", "sixth")


class UnexpectedError(AssertionError):
    """What the script expects is not so."""


class Player:
    """Plays one script.

    Args:
        world: the cluster.
        nursery: waits for the answers to orders.
        messages: write down the messages that arrive.
    """

    def __init__(
        self, world: World[Ledger], nursery: trio.Nursery, *, messages: bool = True
    ) -> None:
        self.world = world
        self._nursery = nursery
        self._messages = messages
        self._facts: list[tuple[float, int, int, str]] = []
        self._names: dict[str, int] = {}
        self._last: dict[tuple[int, int, str], str] = {}
        self._told = 0
        self._rules: list[Callable[[], None]] = []
        self._kept_away: list[str] = []
        world.messages.drop(self._hear)

    # --- what happens -----------------------------------------------------------------------------

    def _hear(self, sender: int, receiver: int, message: Message) -> bool:
        """Look at a message on its way; it is none of those that are dropped."""
        if self._messages and type(message).__name__ not in self._kept_away:
            self._tell_message(sender, receiver, message)
        return False

    def _tell_message(self, sender: int, receiver: int, message: Message) -> None:
        text = describe(message)
        way = sender, receiver, type(message).__name__
        if self._last.get(way) != text:
            self._last[way] = text
            self._tell_transitions()
            self._tell(trio.current_time(), receiver, f"m{receiver} <- m{sender} {text}", sender)

    def _tell(self, at: float, member: int, words: str, sender: int = NOBODY) -> None:
        self._facts.append((round(at, 4), member, sender, words))

    def take(self) -> list[str]:
        """Give what has happened since the last call.

        The order in which tasks run at one moment is no fact of the protocol: at each member first
        comes what arrives, by sender, and then what it does.
        """
        facts, self._facts = sorted(self._facts, key=lambda fact: fact[:3]), []
        return [f"{at:12.4f}  {words}" for at, _, _, words in facts]

    def _tell_transitions(self) -> None:
        for each in self.world.transitions[self._told :]:
            self._told += 1
            if not self._messages and each.after is not State.CLOSED:
                continue
            self._tell(
                each.at,
                each.member_id,
                f"m{each.member_id} {each.before.name} -> {each.after.name}: {each.reason} "
                f"(term {each.term}, log {each.log_end.term}/{each.log_end.position}, "
                f"commit {each.commit_position})",
            )

    # --- events -----------------------------------------------------------------------------------

    async def play(self, event: str) -> None:
        """Play one event, and write down what happens meanwhile."""
        verb, *words = event.split()
        await getattr(self, f"_on_{verb}")(*words)
        for _ in range(STEPS):
            await trio.lowlevel.checkpoint()
        self._tell_transitions()

    def _id(self, word: str) -> int:
        return self._names[word] if word in self._names else int(word)

    async def _on_log(self, who: str, *ends: str, promised: int | None = None) -> None:
        spans = [(int(term), end) for term, _, end in (each.partition(":") for each in ends)]
        batches = log(*((term, int(end)) for term, end in spans if end))
        opened = [term for term, end in spans if not end]
        vote = None if promised is None else NodeState(promised, int(who))
        config = self.world.hosts[int(who)].config
        await record(config, batches, opened=opened, promised=vote)

    async def _on_promised(self, term: str, who: str, *ends: str) -> None:
        await self._on_log(who, *ends, promised=int(term))

    async def _on_start(self, *ids: str) -> None:
        await self.world.start(*(self._id(each) for each in ids))

    async def _on_settle(self) -> None:
        self._name(await self.world.settled(within=120.0))

    def _name(self, leader: int) -> None:
        others = [i for i in self.world.running() if i != leader]
        self._names = {"leader": leader, **dict(zip(NAMES, others, strict=False))}

    async def _on_lead(self) -> None:
        self._name(await self.world.leader(within=120.0))

    async def _on_run(self, seconds: str) -> None:
        await trio.sleep(float(seconds))

    async def _on_until(self, who: str, state: str) -> None:
        await self.world.reached(self._id(who), State[state])

    async def _on_command(self, who: str, text: str) -> None:
        await self.world.command(self._id(who), text.encode())

    async def _on_attempt(self, who: str, text: str) -> None:
        done = await self.world.attempt(self._id(who), text.encode())
        self._tell(
            trio.current_time(), NOBODY, f"{text} is {'done' if done else 'not acknowledged'}"
        )

    async def _on_transfer(self, who: str, target: str) -> None:
        words = f"transfer {self._id(target)}"
        try:
            answer = await self.world.hosts[self._id(who)].running.control(words)
        except RequestError as refusal:
            answer = f"refused: {refusal}"
        self._tell_transitions()
        self._tell(trio.current_time(), NOBODY, f"{words}: {answer}")

    async def _on_kill(self, who: str) -> None:
        await self.world.kill(self._id(who))

    async def _on_stop(self, who: str) -> None:
        await self.world.stop(self._id(who))

    async def _on_pause(self, who: str) -> None:
        self.world.pause(self._id(who))

    async def _on_resume(self, who: str) -> None:
        self.world.resume(self._id(who))

    async def _on_cut(self, one: str, other: str) -> None:
        self.world.network.cut(f"h{self._id(one)}", f"h{self._id(other)}")

    async def _on_isolate(self, who: str) -> None:
        self.world.isolate(self._id(who))

    async def _on_heal(self) -> None:
        self.world.mend()

    async def _on_drop(self, kind: str) -> None:
        messages = self.world.messages
        self._kept_away.append(kind)
        self._rules.append(messages.drop(lambda _s, _r, m: type(m).__name__ == kind))

    async def _on_hold(self, *words: str) -> None:
        messages, kind = self.world.messages, words[-1]
        if len(words) > 1:
            ends = [None if word == "all" else self._id(word) for word in words[:2]]

            def caught(sender: int, receiver: int, message: Message) -> bool:
                there = ends[0] in {None, sender} and ends[1] in {None, receiver}
                return there and type(message).__name__ == kind

            self._rules.append(messages.hold(caught))
            return
        self._kept_away.append(kind)
        self._rules.append(messages.hold(lambda _s, _r, m: type(m).__name__ == kind))

    async def _on_pass(self) -> None:
        self._kept_away.clear()
        while self._rules:
            self._rules.pop()()

    async def _on_deliver(self) -> None:
        messages = self.world.messages
        while messages.held:
            held = messages.held.pop(0)
            self._tell_message(held.sender, held.receiver, held.message)
            messages.deliver(held)

    async def _on_expect(self, who: str, _leads: str, _term: str, term: str) -> None:
        found = [(i, self.world.hosts[i].running.status().term) for i in self.world.leaders()]
        if found != [(self._id(who), int(term))]:
            raise UnexpectedError(f"{found} lead")

    # --- members that come and go -----------------------------------------------------------------

    async def _on_member(self, who: str, *words: str) -> None:
        await self._order(self._id(who), self._named(words))

    async def _on_begin(self, who: str, *words: str) -> None:
        self._nursery.start_soon(self._order, self._id(who), self._named(words))

    def _named(self, words: tuple[str, ...]) -> str:
        """Put the ids of members in the place of their names."""
        return " ".join(str(self._names.get(word, word)) for word in words)

    async def _order(self, member: int, words: str) -> None:
        try:
            answer = json.loads(await self.world.hosts[member].running.control(f"member {words}"))
            said = f"{answer['done']} (version {answer['version']})"
        except RefusedError as refusal:
            said = f"refused: {refusal}"
        except RequestError as error:
            said = f"unknown: {error}"
        self._tell_transitions()
        self._tell(trio.current_time(), NOBODY, f"{words}: {said}")

    async def _on_join(self, who: str) -> None:
        member = int(who)
        self.world.create(member)
        await self.world.start(member)

    async def _on_version(self, who: str, version: str) -> None:
        host = self.world.hosts[self._id(who)]
        with trio.fail_after(10):
            while host.running.state.membership.version < int(version):  # noqa: ASYNC110
                await trio.sleep(0.0001)  # before anybody hears of it

    async def _on_rival(self) -> None:
        old = self._names["leader"]
        await self.world.until(lambda: any(i != old for i in self.world.leaders()), within=60)
        (self._names["rival"],) = (i for i in self.world.leaders() if i != old)

    async def _on_config(self, who: str) -> None:
        now = self.world.hosts[self._id(who)].running.state.membership
        voters = [each.member_id for each in now.voters]
        after = f" after {[each.member_id for each in now.outgoing]}" if now.joint else ""
        words = f"version {now.version}: {voters}{after} of {[*now.ids]}"
        self._tell(trio.current_time(), NOBODY, f"m{self._id(who)} decides by {words}")

    async def _on_decided(self, _by: str, *members: str) -> None:
        await decided_by(self.world, *map(self._id, members), within=60)

    async def _on_removed(self, who: str) -> None:
        await removed(self.world, self._id(who))
        self._tell(trio.current_time(), NOBODY, f"m{self._id(who)} knows that it was removed")

    async def _on_wipe(self, who: str) -> None:
        await self.world.wipe(self._id(who))

    async def _on_port(self, who: str, port: str) -> None:
        self.world.readdress(self._id(who), int(port), self.world.membership)

    async def _on_reach(self, who: str) -> None:
        (leader,) = self.world.leaders()
        end = self.world.hosts[leader].running.status().commit_position
        host = self.world.hosts[self._id(who)]
        await self.world.until(lambda: host.running.status().applied_position >= end)


def describe(message: Message) -> str:
    """Write a message on one line."""
    if isinstance(message, LogBatch):
        head = decode_header_untrusted(message.batch)
        return f"LogBatch term={head.term} position={head.position} end={head.end}"
    fields = attrs.asdict(message, recurse=False)
    told = {name: value for name, value in fields.items() if name not in QUIET}
    if "terms" in told:
        told["terms"] = ",".join(f"{each.term}:{each.base}-{each.end}" for each in message.terms)  # type: ignore[union-attr]
    texts = [f"{name}={getattr(value, 'name', value)}" for name, value in told.items()]
    return " ".join([type(message).__name__, *texts])


async def stand_at_once(prevote: PreVote) -> Next:
    """Stand without asking before."""
    ctx = prevote.ctx
    terms = ctx.promised_term, ctx.highest_term_heard, ctx.state.leadership_term
    return await stand(ctx, max(terms) + 1)


async def transcribe(
    script: str,
    directory: Path,
    patch: pytest.MonkeyPatch,
    *,
    scouting: bool = True,
) -> str:
    """Play a script; give it as it should be, with what happens between its events.

    Args:
        script: the text of it; what stands between its events does not matter.
        directory: for the members' stores.
        patch: takes rules out.
        scouting: members ask before they stand.

    Raises:
        UnexpectedError: an expectation of the script does not hold.
    """
    kept = [line for line in script.splitlines() if line.startswith((">", "#"))]
    events = [line[1:].strip() for line in kept if line.startswith(">")]
    verb, members, *more = events[0].split()
    assert verb == "members", "a script begins with the number of its members"
    if not scouting or "without scouting" in events:
        patch.setattr(PreVote, "ask_voters", stand_at_once)
    setting = Setting(members=int(members), latency=float(more[1]) if more else 0.0005)
    done: list[str] = []
    observer = Observer([*range(setting.members)]) if "observed" in events else None
    async with (
        open_world(directory, Ledger, setting, observer=observer) as world,
        trio.open_nursery() as nursery,
    ):
        player = Player(world, nursery, messages="without messages" not in events)
        unexpected: UnexpectedError | None = None
        try:
            for line in kept:
                done.append(line)
                event = line[1:].strip()
                if line.startswith(">") and event not in {events[0], *HEADS}:
                    await player.play(event)
                    done += player.take()
        except UnexpectedError as error:
            unexpected = error  # raised below, outside of the nursery, which would wrap it
        nursery.cancel_scope.cancel()
    if unexpected is not None:
        raise unexpected
    return "\n".join(done) + "\n"

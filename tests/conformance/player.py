"""Plays a script to a whole cluster in virtual time, and writes down what comes of it.

A script is a text file. Lines that begin with ``>`` are events; between them stands what followed,
one fact a line: when, at whom, a transition or a message that has arrived. A message that repeats
the last one of its kind on its way is left out, and so is what is only there to find a reply again.
Lines that begin with ``#`` are for the reader.

=============================  ================================================================
``members N [latency S]``      first of all; S is in seconds, one way
``without scouting``           members stand without having asked
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
=============================  ================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from quorate.errors import RequestError
from quorate.node import State
from quorate.node.election.prevote import PreVote, stand
from quorate.simulation import Ledger, Setting, World, open_world
from quorate.storage import NodeState, decode_header_untrusted
from quorate.transport import LogBatch
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

NAMES: Final = ("first", "second", "third", "fourth", "fifth", "sixth")


class UnexpectedError(AssertionError):
    """What the script expects is not so."""


class Player:
    """Plays one script.

    Args:
        world: the cluster.
    """

    def __init__(self, world: World[Ledger]) -> None:
        self.world = world
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
        if type(message).__name__ not in self._kept_away:
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

    async def _on_hold(self, kind: str) -> None:
        messages = self.world.messages
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
    async with open_world(directory, Ledger, setting) as world:
        player = Player(world)
        for line in kept:
            done.append(line)
            event = line[1:].strip()
            if line.startswith(">") and event not in {events[0], "without scouting"}:
                await player.play(event)
                done += player.take()
    return "\n".join(done) + "\n"

"""One watch of a client, which goes from member to member, and what it must see.

What etcd guarantees is checked with each response: events come in the order of revisions, each one
once and none left out, all of a revision together; a watch goes on where it was; and a response
that says how far a watch is, lies about nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ...etcd.messages import rpc_pb2 as rpc
from .model import within

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .book import Book


@attrs.define(eq=False)
class Followed:
    """A watch.

    Args:
        book: knows the history.
        key: of the range, as `end` is.
        end: empty for a single key.
        puts: it wants puts.
        deletes: it wants deletions.
        prev_kv: it wants what was before.
        fragment: its responses may be split.

    Attributes:
        next_revision: the client has everything before; 0 for a watch that begins at present.
        broken: it must be made again, perhaps at another member.
        ask: sends a request to its stream; None without one. What other streams say does not count.
        seen: events.
    """

    book: Book
    key: bytes
    end: bytes
    puts: bool = True
    deletes: bool = True
    prev_kv: bool = False
    fragment: bool = False
    next_revision: int = 0
    broken: bool = True
    ask: Callable[[rpc.WatchRequest], None] | None = None
    seen: int = 0
    _parts: list[rpc.Event] = attrs.field(factory=list[rpc.Event])

    def request(self) -> rpc.WatchRequest:
        """Return the request that makes it, or goes on with it."""
        filters = [rpc.WatchCreateRequest.NOPUT] if not self.puts else []
        filters += [rpc.WatchCreateRequest.NODELETE] if not self.deletes else []
        create = rpc.WatchCreateRequest(
            key=self.key,
            range_end=self.end,
            start_revision=self.next_revision,
            filters=filters,
            prev_kv=self.prev_kv,
            fragment=self.fragment,
        )
        self._parts.clear()
        self.broken = False
        return rpc.WatchRequest(create_request=create)

    @property
    def behind(self) -> bool:
        """Whether there is something that it has not seen."""
        if self.broken or not self.next_revision:
            return True
        last = self.book.model.revision
        return any(self.expected(each) for each in range(self.next_revision, last + 1))

    def leave(self) -> None:
        """Note that its stream is over."""
        self.broken, self.ask = True, None

    def take(self, body: bytes) -> None:
        """Take a response of its stream."""
        response = rpc.WatchResponse.FromString(body)
        revision = response.header.revision
        if response.canceled:
            self._canceled(response.compact_revision)
        elif response.created:
            self.next_revision = self.next_revision or revision + 1
        elif not response.events:
            self._goes_on(revision, "progress")
        elif response.fragment:
            self._parts += response.events
        else:
            self._events([*self._parts, *response.events], revision)
            self._parts.clear()

    # --- what is right

    def expected(self, revision: int) -> list[tuple[bytes, rpc.KeyValue | None]]:
        """Return the events of a revision in order: keys, with what they are now."""
        states = self.book.model.states
        if not 0 < revision < len(states):
            return []
        now, before = states[revision], states[revision - 1]
        watched = {kv.key for kv in [*self._own(now), *self._own(before)]}
        changed = [key for key in sorted(watched) if now.get(key) is not before.get(key)]
        return [
            (key, now.get(key)) for key in changed if (self.puts if key in now else self.deletes)
        ]

    def _own(self, state: dict[bytes, rpc.KeyValue]) -> list[rpc.KeyValue]:
        return within(state, self.key, self.end)

    def _canceled(self, compacted: int) -> None:
        self.leave()
        if not self.next_revision < compacted <= self.book.model.compacted:
            self._complain(f"was cancelled by a compaction at {compacted} when it wanted {self.next_revision}")
        self.next_revision = compacted

    def _events(self, events: Sequence[rpc.Event], revision: int) -> None:
        at = 0
        while at < len(events):
            of = events[at].kv.mod_revision
            self._goes_on(of - 1, f"an event of {of}")
            expected = self.expected(of)
            if self.next_revision != of or not expected:
                self._complain(f"got an event of {of} when it wanted {self.next_revision}")
                return
            self._compare(of, events[at : at + len(expected)], expected)
            self.next_revision = of + 1
            at += len(expected)
        self.seen += len(events)
        if revision < self.next_revision - 1:
            self._complain(f"has events of {self.next_revision - 1} in a response of {revision}")

    def _compare(
        self,
        revision: int,
        events: Sequence[rpc.Event],
        expected: Sequence[tuple[bytes, rpc.KeyValue | None]],
    ) -> None:
        before = self.book.model.states[revision - 1]
        shown = [(each.kv.key, each.kv if each.type == rpc.Event.PUT else None) for each in events]
        gone = [each.kv for each in events if each.type != rpc.Event.PUT]
        bare = [rpc.KeyValue(key=each.key, mod_revision=revision) for each in gone]
        if shown != list(expected) or gone != bare:
            self._complain(f"got {shown} at {revision}, not {expected}")
        for each in events:
            previous = before.get(each.kv.key)
            if each.HasField("prev_kv"):
                right = self.prev_kv and each.prev_kv == previous
            else:
                # What is compacted need not be shown.
                compacted = revision <= self.book.model.compacted
                right = not self.prev_kv or previous is None or compacted
            if not right:
                self._complain(f"got the past {each.prev_kv}, not {previous}, at {revision}")

    def _goes_on(self, revision: int, words: str) -> None:
        """Check that it has all events up to a revision, which it is told it has."""
        for missed in range(self.next_revision, revision + 1):
            if self.expected(missed):
                self._complain(f"got {words} up to {revision}, but nothing of {missed}")
        self.next_revision = max(self.next_revision, revision + 1)

    def _complain(self, words: str) -> None:
        self.book.trouble.append(f"Watch: of {self.key!r} to {self.end!r} {words}")

"""What is known of users from outside: which the log has had since when, and what was allowed.

All members' tables of users must be equal behind equal entries. A write must have been allowed to
its user where it stands in the log, or not long before it took effect. A session is of no use to
another user than the one that opened it. A stranger, which has not logged in, gets nothing at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from ...keyvalue.access.compiled import Access
from ...keyvalue.access.rules import DEFAULT, User, words
from ...keyvalue.access.users import DEFAULT_NAME
from ...keyvalue.commands.table import resolve
from ...keyvalue.protocol.payload import PayloadParser
from ..machines.clock import EPOCH_MS
from ..watching.facts import Point

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...keyvalue.access.users import Users
    from ...node import Command
    from ..store import Store


@attrs.frozen(eq=False)
class Chapter:
    """The users between two changes.

    Args:
        point: of the entry that made them.
        began: when that was applied first.
        users: all of them.
    """

    point: Point
    began: float
    users: dict[bytes, User]


@attrs.frozen
class Asking:
    """What a client asks for, and as which user.

    Args:
        user: its name.
        proof: the hash of the password by which its session was let in.
        command: the words.
    """

    user: bytes
    proof: bytes
    command: tuple[bytes, ...]


class RuleBook:
    """All changes of users.

    Args:
        bound: so long after a change a command may still be executed by the rules before, seconds.

    Attributes:
        trouble: what must not be, in words.
        latest: how long after a change a command was executed that it forbids, at most, seconds.
        judged: commands that were looked at after their rules had changed.
    """

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self._chapters = [Chapter(Point(-1, -1), 0.0, {DEFAULT_NAME: DEFAULT})]
        self._tables: dict[Point, object] = {}
        self._asked: dict[bytes, Asking] = {}
        self._denied: set[bytes] = set()
        self._applied: set[bytes] = set()
        self._owners: dict[int, int] = {}  # of sessions
        self.trouble: list[str] = []
        self.latest = 0.0
        self.judged = 0

    # --- what members do

    def attend(self, store: Store) -> None:
        """See what a store applies, from now on."""
        apply = store.apply

        def watched(command: Command) -> bytes:
            version, reply = store.users.version, apply(command)
            point = Point(command.position, command.index)
            # By what the users are, not by their version, which may be what is wrong.
            if b"SETUSER" in command.payload or b"DELUSER" in command.payload:
                self._changed(point, store.users)
            elif b"token-" in command.payload:
                # Its batch was made at this moment. It may be committed much later.
                made = (command.timestamp_ms - EPOCH_MS) / 1000
                self._written(point, made, command.payload)
            self._in_session(command, reply)
            assert store.users.version >= version, "the version of the users went back"
            return reply

        setattr(store, "apply", watched)  # noqa: B010 - of this one store

    def _in_session(self, command: Command, reply: bytes) -> None:
        """Check that a session is used by the user that has opened it."""
        words = command.payload.split(b"\r\n")[2::2]
        used = command.session
        if not used and words[0] == b"QUORATE.SESSION":
            if words[1] == b"OPEN" and reply.startswith(b":"):
                self._owners[int(reply[1:])] = command.principal
                return
            used = int(words[2]) if words[1] in (b"CLOSE", b"KEEPALIVE") else 0
        # Nobody may want a reply here: then it is empty.
        if not used or not reply or reply.startswith(b"-NOSESSION "):
            return
        if (owner := self._owners.get(used, command.principal)) != command.principal:
            self.trouble.append(
                f"user {command.principal} was answered {reply!r} in session {used} of {owner}"
            )

    def _changed(self, point: Point, users: Users) -> None:
        now = {name: user for name in users if (user := users.get(name)) is not None}
        table = {name: words(user) for name, user in now.items()}
        if self._tables.setdefault(point, table) != table:
            self.trouble.append(f"two members have other users at {point}: {table}")
        if point.position > self._chapters[-1].point.position or (
            point.position == self._chapters[-1].point.position
            and point.index > self._chapters[-1].point.index
        ):
            self._chapters.append(Chapter(point, trio.current_time(), now))

    def _written(self, point: Point, made: float, payload: bytes) -> None:
        for arguments in PayloadParser().parse_untrusted(payload):
            if (token := arguments[-1]) in self._asked and token not in self._applied:
                self._applied.add(token)
                self._judge(self._asked[token], made, point)
                self._check_denied(token)

    # --- what clients do

    def asks(self, asking: Asking) -> None:
        """Note what a client is about to send; the last word of a write is unique."""
        self._asked[asking.command[-1]] = asking

    def denied(self, asking: Asking) -> None:
        """Note that a client was told that it may not do that."""
        self._denied.add(asking.command[-1])
        self._check_denied(asking.command[-1])

    def answered(self, asking: Asking) -> None:
        """Note that a client was given what it asked for, now."""
        self._judge(asking, trio.current_time())

    def strange(self, words: Sequence[bytes], reply: bytes) -> None:
        """Note what a stranger was answered."""
        if not reply.startswith(b"-NOAUTH "):
            self.trouble.append(f"a stranger asked {words} and was answered {reply!r}")

    def _check_denied(self, token: bytes) -> None:
        if token in self._denied and token in self._applied:
            self.trouble.append(f"{token!r} was denied, and was applied")

    def _judge(self, asking: Asking, now: float, point: Point | None = None) -> None:
        """Check that something was allowed not long before a time, or at a place in the log."""
        ends = float("inf")
        for chapter in reversed(self._chapters):
            behind = point is not None and chapter.point.position > point.position
            if not behind and _permits(chapter.users, asking):
                break
            ends = min(ends, chapter.began) if not behind else ends
        else:
            self.trouble.append(f"{asking} was never allowed")
            return
        if ends == float("inf"):
            return
        self.judged += 1
        self.latest = max(self.latest, now - ends)
        if now - ends > self._bound:
            words = f"{asking} was done {now - ends:.3f} s after it was forbidden"
            self.trouble.append(f"{words}; at most {self._bound:.3f} s are allowed")


def _permits(users: dict[bytes, User], asking: Asking) -> bool:
    user = users.get(asking.user)
    if user is None or not user.enabled or not (user.nopass or asking.proof in user.hashes):
        return False
    command: Sequence[bytes] = asking.command
    spec = resolve(command)
    assert spec is not None
    return Access(asking.user, user).denial(spec, command) is None

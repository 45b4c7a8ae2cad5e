"""A user's rules in the form that each command is checked against.

Most clusters have one user that may do everything. Then :attr:`Access.open` is all that the hot
path looks at. A user with all keys, SET and GET keeps the joined path (:attr:`Access.joins`). For
other users, each command costs a lookup in a set, and each key a match per pattern.

Rights on keys
    As in Redis: a command that returns content needs ``%R``, one that changes a key needs ``%W``,
    one that does both needs both. One that only asks for a property of a key (EXISTS, TYPE, STRLEN)
    is satisfied by any pattern that matches.
"""

import enum
from collections.abc import Sequence
from typing import Final

import attrs

from ..commands.glob import matcher
from ..commands.table import CommandSpec, Kind, keys_of
from .categories import ALL_NAMES, CATEGORIES, NAMES
from .rules import ALL_KEYS, READ, READ_WRITE, WRITE, User

__all__ = ["BEFORE_LOGIN", "GETS", "SETS", "Access", "Denial", "Reason", "allowed_commands"]

SETS: Final = 1
GETS: Final = 2

BEFORE_LOGIN: Final = frozenset(("auth", "hello", "quit", "reset"))
"""Commands for everybody, also before a login."""

# What a command needs of its keys where that differs from its kind (read: READ, write: WRITE).
_NOTHING: Final = frozenset(
    ("strlen", "exists", "type", "touch", "object|encoding", "object|refcount", "watch")
)
_BOTH: Final = frozenset(
    (
        *("getset", "getdel", "getex", "incr", "decr", "incrby", "decrby", "incrbyfloat"),
        "quorate.cas",  # a user who guesses a value could find it out
    )
)
_BY_PLACE: Final = {
    "rename": (READ_WRITE, WRITE),
    "renamenx": (READ_WRITE, WRITE),
    "copy": (READ, WRITE),
}
_SET_OPTIONS: Final = 3
_WATCH: Final = "quorate.watch"
_SPECIAL: Final = frozenset(b"*?[\\")
_MATCHES: Final = 256
"""Keys whose rights are remembered for each user. With fewer, clients that use a few keys over and
over pay for the patterns each time; with more, each user takes more memory."""


class Reason(enum.Enum):
    """Why a command was denied, as ACL LOG names it."""

    AUTH = "auth"
    COMMAND = "command"
    KEY = "key"


@attrs.frozen
class Denial:
    """A command that a user may not run, or a key that it may not use that way.

    Args:
        reason: which of the two.
        what: the name of the command, or the key.
    """

    reason: Reason
    what: bytes

    @property
    def text(self) -> bytes:
        """The error, in Redis 7.0's words; programs read the first one."""
        if self.reason is Reason.COMMAND:
            return b"NOPERM this user has no permissions to run the '%b' command" % self.what
        return b"NOPERM this user has no permissions to access one of the keys used as arguments"

    @property
    def dryrun(self) -> bytes:
        """What ACL DRYRUN answers."""
        if self.reason is Reason.COMMAND:
            return b"This user has no permissions to run the '%b' command" % self.what
        return b"This user has no permissions to access the '%b' key" % self.what


class Access:
    """What one user may do now; a change of the user makes a new one.

    Args:
        name: of the user.
        user: its rules.

    Attributes:
        open: every command on every key: nothing need be checked.
        joins: `SETS` and `GETS`, if it may use these two on all keys.
    """

    __slots__ = ("_allowed", "_known", "_patterns", "joins", "name", "open", "user")

    def __init__(self, name: bytes, user: User) -> None:
        self.name = name
        self.user = user
        self._allowed = allowed_commands(user)
        self._patterns = [(matcher(rule.pattern), rule.rights) for rule in user.keys]
        self._known: dict[bytes, int] = {}
        all_keys = ALL_KEYS in user.keys
        self.open = all_keys and self._allowed == ALL_NAMES
        self.joins = (
            SETS * (b"set" in self._allowed) | GETS * (b"get" in self._allowed) if all_keys else 0
        )

    def __repr__(self) -> str:
        return f"<Access of {self.name!r}>"

    def denial(self, spec: CommandSpec, arguments: Sequence[bytes]) -> Denial | None:
        """Return why a command may not run; None if it may."""
        if self.open or spec.name in BEFORE_LOGIN:
            return None
        if (name := spec.name.encode()) not in self._allowed:
            return Denial(Reason.COMMAND, name)
        if spec.name == _WATCH and not self._reads_all(arguments[1]):
            return Denial(Reason.KEY, arguments[1])
        if not spec.first_key:
            return None
        keys = keys_of(spec, arguments)
        needed = _needed(spec, arguments)
        for at, key in enumerate(keys):
            if not self._may_use(key, needed[min(at, len(needed) - 1)]):
                return Denial(Reason.KEY, key)
        return None

    def _reads_all(self, prefix: bytes) -> bool:
        """Whether it may read every key that begins with a prefix, also those to come."""
        # One pattern must cover them all: text, which begins the prefix, and then a star. Others
        # might cover them, too, but that would be hard to see for people as well.
        return any(
            rule.rights & READ
            and rule.pattern[-1:] == b"*"
            and _SPECIAL.isdisjoint(rule.pattern[:-1])
            and prefix.startswith(rule.pattern[:-1])
            for rule in self.user.keys
        )

    def _may_use(self, key: bytes, needed: int) -> bool:
        # As in Redis, one pattern must give all that is needed: read by one and write by another do
        # not add up.
        known = self._known.get(key)
        if known is None:
            # Bit n: some pattern gives the rights n (0: matches at all).
            known = sum(
                1 << rights
                for rights in range(READ_WRITE + 1)
                if any(have & rights == rights and fits(key) for fits, have in self._patterns)
            )
            if len(self._known) >= _MATCHES:
                self._known.clear()
            self._known[key] = known
        return bool(known >> needed & 1)


def allowed_commands(user: User) -> frozenset[bytes]:
    """Return the commands and subcommands that the rules allow, each rule over those before it."""
    allowed: set[bytes] = set()
    for rule in user.commands:
        covered = CATEGORIES[rule[1:]] if rule[1:2] == b"@" else NAMES[rule[1:]]
        if rule.startswith(b"+"):
            allowed |= covered
        else:
            allowed -= covered
    return frozenset(allowed)


def _needed(spec: CommandSpec, arguments: Sequence[bytes]) -> tuple[int, ...]:
    """Return the rights that a command needs of its first key, its second key, and so on."""
    if spec.name in _NOTHING:
        return (0,)
    if spec.name in _BOTH:
        return (READ_WRITE,)
    # Redis looks for the word GET at any place behind the value.
    if spec.name == "set" and any(word.lower() == b"get" for word in arguments[_SET_OPTIONS:]):
        return (READ_WRITE,)
    default = READ if spec.kind is Kind.READ else WRITE
    return _BY_PLACE.get(spec.name, (default,))

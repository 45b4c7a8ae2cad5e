r"""A user, and the words that describe one, as in ACL SETUSER and ACL LIST.

Order matters
    Words are applied one after the other, each to what the words before have made. So
    ``+@all -@dangerous`` and ``-@dangerous +@all`` differ. The rules of commands are kept in their
    order; a rule on the same name as an earlier one replaces it (as in Redis 7.2). Redis 7.0 makes
    a minimal description instead, so its ACL LIST may print other words for the same rights.

Secrets
    ``>secret`` and ``<secret`` are refused here. The member that a client talks to first replaces
    them by ``#hash``, ``$scrypt$...`` or ``!hash`` (:mod:`.hashing`): no log entry has a secret. It
    also refuses words that are no rules (`check`), as one may be a secret without its sign.

Not supported
    Selectors, ``(...)``, and rules on the first argument of a plain command (``+select|0``).
    Channels are kept, and nothing looks at them, because there is no publish and subscribe.
"""

from collections.abc import Callable, Iterable
from typing import Final

import attrs

from ..limits import MAX_PATTERN_BYTES
from .categories import CATEGORIES, NAMES
from .hashing import is_hash

__all__ = [
    "DEFAULT",
    "MAX_USER_BYTES",
    "NOBODY",
    "KeyRule",
    "RuleError",
    "User",
    "apply",
    "check",
    "shown_rule",
    "words",
]

READ: Final = 1
WRITE: Final = 2
READ_WRITE: Final = READ | WRITE

MAX_USER_BYTES: Final = 16 << 10
"""The words of one user. Smaller, and long lists of patterns are refused; larger, and all users
together may take more memory than a small member has."""

MAX_HASHES: Final = 16
"""Passwords of one user. Fewer, and some rotations of passwords are refused; more, and a wrong
password, which is compared with each of them, costs more processor time."""

MAX_WORDS: Final = 1024
"""Words of one command. Each may cost as much as the user has rules, so with many more of them one
command would hold up a member."""

_SIGNS: Final = frozenset((b"+", b"-"))
_PATTERNS: Final = frozenset((b"~", b"%", b"&"))
_SECRET: Final = frozenset((b">", b"<", b"#", b"!", b"$"))
_SPACES: Final = frozenset(b" \t\n\v\f\r\0")
_RIGHTS: Final = {ord("r"): READ, ord("w"): WRITE}

_SYNTAX: Final = "Syntax error"
_UNKNOWN: Final = "Unknown command or category name in ACL"
_AFTER_ALL: Final = (
    "Adding a pattern after the * pattern (or the '%s' flag) is not valid and does not have any "
    "effect. Try '%s' to start with an empty list of %s"
)
_AFTER_ALL_KEYS: Final = _AFTER_ALL % ("allkeys", "resetkeys", "patterns")
_AFTER_ALL_CHANNELS: Final = _AFTER_ALL % ("allchannels", "resetchannels", "channels")
_BAD_HASH: Final = (
    "The password hash must be exactly 64 characters and contain only lowercase hexadecimal "
    "characters"
)
_NO_SUCH_HASH: Final = "The password you are trying to remove from the user does not exist"
_UNHASHED: Final = "A secret must be replaced by its hash before it is sent to the state machine"
_TOO_MANY_HASHES: Final = f"A user may have {MAX_HASHES} passwords"
_TOO_MANY_WORDS: Final = f"One command may have {MAX_WORDS} modifiers"
_TOO_LONG: Final = f"The rules of a user may have {MAX_USER_BYTES} bytes"
_LONG_PATTERN: Final = f"A pattern may have {MAX_PATTERN_BYTES} bytes"
_SELECTOR: Final = "Selectors are not supported"


class RuleError(Exception):
    """A word that can't be applied; nothing was changed. The text is Redis's, without its code."""

    def __init__(self, word: bytes, reason: str) -> None:
        super().__init__(word, reason)
        # A secret must not come back in an error: programs write errors to their logs.
        shown = word[:1] + b"..." if word[:1] in (b"<", b">") else word
        self.text: Final = b"Error in ACL SETUSER modifier '%b': %b" % (shown, reason.encode())


@attrs.frozen
class KeyRule:
    """A glob pattern of keys, and what may be done with those: `READ`, `WRITE` or both."""

    pattern: bytes
    rights: int = READ_WRITE

    @property
    def word(self) -> bytes:
        """How ACL LIST shows it."""
        if self.rights == READ_WRITE:
            return b"~" + self.pattern
        return (b"%R~" if self.rights == READ else b"%W~") + self.pattern


ALL_KEYS: Final = KeyRule(b"*")


@attrs.frozen
class User:
    """What one user may do. The defaults are those of a user that was just created.

    Args:
        enabled: may log in.
        nopass: any password lets it in.
        hashes: of its passwords; each is ``#`` with 64 hexadecimal digits, or ``$scrypt$...``.
        keys: patterns; a key must match one of them.
        channels: patterns, kept for Redis's words only.
        commands: rules (``+get``, ``-@write``), the first is ``+@all`` or ``-@all``; a later one
            overrides an earlier one.
        number: of the name, for the entries of the log (:mod:`.principals`); no word shows it.
    """

    enabled: bool = False
    nopass: bool = False
    hashes: tuple[bytes, ...] = ()
    keys: tuple[KeyRule, ...] = ()
    channels: tuple[bytes, ...] = ()
    commands: tuple[bytes, ...] = (b"-@all",)
    number: int = 0


NOBODY: Final = User()
"""A user that was just created: it can't log in, and may do nothing."""

DEFAULT: Final = User(
    enabled=True, nopass=True, keys=(ALL_KEYS,), channels=(b"*",), commands=(b"+@all",)
)
"""The user `default` until somebody changes it."""


def shown_rule(word: bytes) -> bytes:
    """Return how a log may show a word of ACL SETUSER: without what may be a secret."""
    name = word[1:].lower()
    known = word[:1] in _SIGNS and (name in NAMES or name in CATEGORIES)
    if known or word[:1] in _PATTERNS or word.lower() in _CHANGES:
        return word
    return word[:1] + b"..." if word[:1] in _SECRET else b"..."


def words(user: User) -> list[bytes]:
    """Return the words that make this user of a new one, in the order of ACL LIST."""
    found = [b"on" if user.enabled else b"off"]
    found += [b"nopass"] * user.nopass
    found += user.hashes
    found += [rule.word for rule in user.keys]
    if user.channels != (b"*",):
        found.append(b"resetchannels")
    found += [b"&" + channel for channel in user.channels]
    found += user.commands
    return found


def apply(user: User, given: Iterable[bytes]) -> User:
    """Apply words to a user, one after the other.

    Raises:
        RuleError: one of them can't be applied.
    """
    given = list(given)
    if len(given) > MAX_WORDS:
        raise RuleError(given[MAX_WORDS], _TOO_MANY_WORDS)
    for word in given:
        try:
            user = _apply(user, word)
        except ValueError as error:
            raise RuleError(word, str(error)) from None
        if len(user.hashes) > MAX_HASHES:
            raise RuleError(word, _TOO_MANY_HASHES)
    if sum(map(len, shown := words(user))) + len(shown) > MAX_USER_BYTES:
        raise RuleError(shown[-1], _TOO_LONG)
    return user


def check(given: Iterable[bytes]) -> None:
    """Refuse words that are no rules, whatever the user is; secrets are not looked at.

    Raises:
        RuleError: for the first of them.
    """
    for word in given:
        if word[:1] in (b">", b"<"):
            continue
        try:
            _apply(NOBODY, word)
        except ValueError as error:
            # That one depends on the user.
            if str(error) != _NO_SUCH_HASH:
                raise RuleError(word, str(error)) from None


def _apply(user: User, word: bytes) -> User:
    """Apply one word; a ValueError has the reason why it can't be."""
    if (change := _CHANGES.get(word.lower())) is not None:
        return change(user)
    match word[:1]:
        case b"~" | b"%":
            return _with_keys(user, word)
        case b"&":
            return _with_channel(user, word[1:])
        case b"+" | b"-":
            return attrs.evolve(user, commands=_with_rule(user.commands, word))
        case b"#" | b"$":
            if not is_hash(word):
                raise ValueError(_BAD_HASH)
            kept = tuple(one for one in user.hashes if one != word)
            # In its old place if it is there already: a repeated command then changes nothing.
            hashes = user.hashes if word in user.hashes else (*kept, word)
            return attrs.evolve(user, hashes=hashes, nopass=False)
        case b"!":
            return _without_hash(user, word[1:])
        case b">" | b"<":
            raise ValueError(_UNHASHED)
        case b"(":
            raise ValueError(_SELECTOR)
        case _:
            raise ValueError(_SYNTAX)


def _allow_all_keys(user: User) -> User:
    return attrs.evolve(user, keys=(ALL_KEYS,))


def _allow_all_channels(user: User) -> User:
    return attrs.evolve(user, channels=(b"*",))


def _allow_all_commands(user: User) -> User:
    return attrs.evolve(user, commands=(b"+@all",))


def _allow_no_commands(user: User) -> User:
    return attrs.evolve(user, commands=(b"-@all",))


def _same(user: User) -> User:
    return user


_CHANGES: Final[dict[bytes, Callable[[User], User]]] = {
    b"on": lambda user: attrs.evolve(user, enabled=True),
    b"off": lambda user: attrs.evolve(user, enabled=False),
    b"nopass": lambda user: attrs.evolve(user, nopass=True, hashes=()),
    b"resetpass": lambda user: attrs.evolve(user, nopass=False, hashes=()),
    b"allkeys": _allow_all_keys,
    b"~*": _allow_all_keys,
    b"resetkeys": lambda user: attrs.evolve(user, keys=()),
    b"allchannels": _allow_all_channels,
    b"&*": _allow_all_channels,
    b"resetchannels": lambda user: attrs.evolve(user, channels=()),
    b"allcommands": _allow_all_commands,
    b"+@all": _allow_all_commands,
    b"nocommands": _allow_no_commands,
    b"-@all": _allow_no_commands,
    b"reset": lambda user: attrs.evolve(NOBODY, number=user.number),
    b"clearselectors": _same,
    # There is no DUMP and no RESTORE whose payload could be looked at.
    b"sanitize-payload": _same,
    b"skip-sanitize-payload": _same,
}


def _with_keys(user: User, word: bytes) -> User:
    rights, pattern = _key_rule(word)
    if ALL_KEYS in user.keys:
        raise ValueError(_AFTER_ALL_KEYS)
    keys = {rule.pattern: rule.rights for rule in user.keys}
    keys[pattern] = keys.get(pattern, 0) | rights
    if keys.get(b"*") == READ_WRITE:  # the other patterns mean nothing from now on
        keys = {b"*": READ_WRITE}
    return attrs.evolve(user, keys=tuple(KeyRule(*each) for each in keys.items()))


def _key_rule(word: bytes) -> tuple[int, bytes]:
    """Parse ``~pattern``, or ``%R~``, ``%W~`` and ``%RW~`` in front of one."""
    rights, at = (READ_WRITE, 1) if word[:1] == b"~" else (0, 1)
    if word[:1] == b"%":
        letters, tilde, _ = word[1:].lower().partition(b"~")
        found = [_RIGHTS.get(letter, 0) for letter in letters]
        if not tilde or not found or 0 in found or len(set(found)) < len(found):
            raise ValueError(_SYNTAX)
        rights, at = sum(found), 1 + len(letters) + 1
    pattern = word[at:]
    if len(pattern) > MAX_PATTERN_BYTES:
        raise ValueError(_LONG_PATTERN)
    if _SPACES.intersection(pattern):
        raise ValueError(_SYNTAX)
    return rights, pattern


def _with_channel(user: User, channel: bytes) -> User:
    if _SPACES.intersection(channel):
        raise ValueError(_SYNTAX)
    if user.channels == (b"*",):
        raise ValueError(_AFTER_ALL_CHANNELS)
    if channel in user.channels:
        return user
    return attrs.evolve(user, channels=(*user.channels, channel))


def _with_rule(rules: tuple[bytes, ...], word: bytes) -> tuple[bytes, ...]:
    """Add a rule on a command or a category behind those that it does not replace."""
    name = word[1:].lower()
    known = CATEGORIES if name.startswith(b"@") else NAMES
    if name not in known:
        raise ValueError(_UNKNOWN)
    # A rule on a container covers its subcommands, so rules on those mean nothing any more.
    kept = (old for old in rules if old[1:] != name and not old[1:].startswith(name + b"|"))
    return (*kept, word[:1] + name)


def _without_hash(user: User, text: bytes) -> User:
    word = text if text.startswith(b"$") else b"#" + text
    if not is_hash(word):
        raise ValueError(_BAD_HASH)
    if word not in user.hashes:
        raise ValueError(_NO_SUCH_HASH)
    return attrs.evolve(user, hashes=tuple(one for one in user.hashes if one != word))

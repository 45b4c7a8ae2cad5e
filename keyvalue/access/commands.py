"""The ACL commands of the state machine: SETUSER and DELUSER of the log, and those that read.

QUORATE.USERS [version] is what ACL LIST is, with the version in front, and the users' numbers
behind. If the version is the one that was named, it comes alone.

ACL SETUSER arrives here with hashes in place of secrets (:mod:`..conversation.acl_command`). Each
member applies it to the same users, with the same outcome.
"""

from collections.abc import Callable, Sequence
from typing import Final

from ..commands.arguments import arity_error
from ..commands.strings import Handler
from ..commands.table import resolve, unknown_subcommand, wrong_arity
from ..protocol import resp
from ..state.store import KeyStore
from .hashing import shown
from .rules import User, words
from .users import Users

__all__ = ["CHANGES", "handlers", "queries", "replacing"]

CHANGES: Final = frozenset(("acl|setuser", "acl|deluser"))
"""The commands that change users."""

_Reader = Callable[[Users, list[bytes], KeyStore], bytes]

_USER_WORK: Final = 20_000
"""Work of parsing, compiling and printing one user, in nanoseconds; see :mod:`..limits`."""


def handlers(users: Users) -> dict[str, Handler]:
    """Return the handler of ACL for entries of the log."""

    def handle(store: KeyStore, arguments: list[bytes]) -> bytes:
        if trouble := _trouble(arguments):
            return trouble
        match arguments[1].lower():
            case b"setuser":
                store.left -= _USER_WORK * (len(arguments) - 2)
                users.set(arguments[2], arguments[3:], store.revision)
                return resp.OK
            case b"deluser":
                return resp.integer(users.delete(arguments[2:], store.revision))
            case _:
                return _read(users, arguments, store)

    def versioned(store: KeyStore, arguments: list[bytes]) -> bytes:
        version = resp.integer(users.version)
        if arguments[1:] == [b"%d" % users.version]:
            return resp.array([version])
        numbers = [resp.integer(user.number) for name in users if (user := users.get(name))]
        return resp.array([version, _list(users, [], store), resp.array(numbers)])

    return {"acl": handle, "quorate.users": versioned}


def queries(users: Users) -> dict[str, Handler]:
    """Return the handler of ACL for queries, which changes nothing."""

    def handle(store: KeyStore, arguments: list[bytes]) -> bytes:
        return _trouble(arguments) or _read(users, arguments, store)

    return {"acl": handle, "quorate.users": handlers(users)["quorate.users"]}


def replacing(users: Users) -> Callable[[KeyStore, list[bytes]], None]:
    """Return what has a store have the users of some lines of ACL LIST, and no others.

    It raises a CommandError if a line is none, and then has changed nothing.
    """

    def replace(store: KeyStore, lines: list[bytes]) -> None:
        store.left -= _USER_WORK * len(lines)
        users.replace(lines, store.revision)

    return replace


def _trouble(arguments: Sequence[bytes]) -> bytes | None:
    """Return the error for a malformed command; the caller has checked the container's arity."""
    if len(arguments) < 2:  # noqa: PLR2004 - the container and its subcommand
        return arity_error("acl")
    spec = resolve(arguments)
    if spec is None:
        return resp.error(unknown_subcommand(arguments))
    return None if spec.takes(len(arguments)) else resp.error(wrong_arity(spec))


def _read(users: Users, arguments: list[bytes], store: KeyStore) -> bytes:
    reader = _READERS.get(arguments[1].lower())
    if reader is None:
        return resp.error(b"ERR 'acl|%b' can't be used here" % arguments[1].lower())
    return reader(users, arguments, store)


def _list(users: Users, _arguments: list[bytes], store: KeyStore) -> bytes:
    lines: list[bytes] = []
    for name in users:
        user = users.get(name)
        assert user is not None, "users are not changed in a query"
        store.left -= _USER_WORK
        lines.append(b" ".join([b"user", name, *words(user)]))
    return resp.bulk_array(lines)


def _names(users: Users, _arguments: list[bytes], _store: KeyStore) -> bytes:
    return resp.bulk_array([*users])


def _get(users: Users, arguments: list[bytes], store: KeyStore) -> bytes:
    user = users.get(arguments[2])
    return store.null if user is None else described(user, resp3=store.null == resp.NULL[True])


def described(user: User, *, resp3: bool) -> bytes:
    """Encode a user as ACL GETUSER does."""
    flags = [b"on" if user.enabled else b"off", *[b"nopass"] * user.nopass]
    pairs = {
        b"flags": resp.set_of([resp.bulk(flag) for flag in flags], resp3=resp3),
        b"passwords": resp.bulk_array([shown(word) for word in user.hashes]),
        b"commands": resp.bulk(b" ".join(user.commands)),
        b"keys": resp.bulk(b" ".join(rule.word for rule in user.keys)),
        b"channels": resp.bulk(b" ".join(b"&" + channel for channel in user.channels)),
        b"selectors": resp.EMPTY_ARRAY,
    }
    return resp.mapping([(resp.bulk(name), text) for name, text in pairs.items()], resp3=resp3)


_READERS: Final[dict[bytes, _Reader]] = {b"list": _list, b"users": _names, b"getuser": _get}

"""ACL: the subcommands that a member answers itself, and how a change of users is sent.

SETUSER and DELUSER go through the log, and LIST, USERS and GETUSER are queries
(:mod:`..access.commands`). Before SETUSER is sent, its secrets become hashes, off the event loop.
"""

from collections.abc import Callable, Sequence
from typing import Final

from ..access.categories import CATEGORIES, LISTED
from ..access.rules import RuleError, check
from ..access.secrets import has_secrets, without_secrets
from ..access.users import check_name
from ..clients.client_state import ClientState
from ..clients.port_state import PortState
from ..commands.arguments import parse_integer
from ..commands.introspection import help_reply
from ..commands.table import fault, resolve
from ..protocol import resp
from ..protocol.resp import CommandError
from .request_command import parse_request_untrusted

__all__ = ["acl_reply", "hashing"]

_MAX_BITS: Final = 4096
_USUAL_BITS: Final = 256
_USUAL_ENTRIES: Final = 10
_BAD_BITS: Final = resp.error(
    "ERR ACL GENPASS argument must be the number of bits for the output password, a positive "
    f"number up to {_MAX_BITS}"
)
_NOT_INTEGER: Final = resp.error("ERR value is not an integer or out of range")


def acl_reply(arguments: Sequence[bytes], client: ClientState, port: PortState) -> bytes:
    """Answer ACL; `table.fault` found nothing wrong."""
    match arguments[1].lower():
        case b"whoami":
            return resp.bulk(client.user)
        case b"cat":
            return _cat(arguments[2:])
        case b"genpass":
            return _genpass(arguments[2:], port)
        case b"dryrun":
            return _dryrun(arguments[2], arguments[3:], port)
        case b"log":
            return _denials(arguments[2:], client, port)
        # As in Redis with a file. Users are in the log, so there is nothing to do.
        case b"load" | b"save":
            return resp.OK
        case _:
            return help_reply(arguments[0])


def hashing(arguments: Sequence[bytes], port: PortState) -> Callable[[], bytes] | None:
    """Return the work that makes the command for the log; None if it can be sent as it is.

    The work returns an encoded command, or an encoded error.

    Raises:
        CommandError: the name can't be a user's, or a word is no rule.
    """
    name, words = arguments[2], list(arguments[3:])
    if arguments[1].lower() != b"setuser":
        return None
    check_name(name)
    # Before there is an entry: a word that is no rule may be a password without its sign, and the
    # log and backups would have it for ever.
    try:
        check(words)
    except RuleError as error:
        raise CommandError(resp.error(b"ERR " + error.text)) from None
    if not has_secrets(words):
        return None
    user = port.access.users.get(name)
    hashes = () if user is None else user.hashes
    random_bytes = port.access.random_bytes

    def work() -> bytes:
        try:
            made = without_secrets(words, hashes, random_bytes)
        except RuleError as error:
            return resp.error(b"ERR " + error.text)
        return resp.pack((*arguments[:3], *made))

    return work


def _cat(names: Sequence[bytes]) -> bytes:
    match names:
        case []:
            return resp.bulk_array(LISTED)
        case [name] if name.lower() in LISTED:
            return resp.bulk_array(sorted(CATEGORIES[b"@" + name.lower()]))
        case [name]:
            return resp.error(b"ERR Unknown category '%b'" % name[:128])
        case _:
            return resp.error(
                "ERR unknown subcommand or wrong number of arguments for 'cat'. Try ACL HELP."
            )


def _genpass(words: Sequence[bytes], port: PortState) -> bytes:
    bits = parse_integer(words[0]) if words else _USUAL_BITS
    if len(words) > 1:
        return resp.error(
            "ERR unknown subcommand or wrong number of arguments for 'genpass'. Try ACL HELP."
        )
    if bits is None:
        return _NOT_INTEGER
    if not 1 <= bits <= _MAX_BITS:
        return _BAD_BITS
    digits = (bits + 3) // 4
    return resp.bulk(port.access.random_bytes((digits + 1) // 2).hex().encode()[:digits])


def _dryrun(name: bytes, command: Sequence[bytes], port: PortState) -> bytes:
    access = port.access.users.access(name)
    if port.access.users.get(name) is None:
        return resp.error(b"ERR User '%b' not found" % name[:128])
    spec = resolve(command)
    if spec is None:
        return resp.error(b"ERR Command '%b' not found" % command[0][:128])
    if (trouble := fault(command)) is not None:
        return resp.error(trouble)
    if access is None:
        return resp.bulk(b"This user is disabled")
    denial = access.denial(spec, command)
    if denial is None and spec.name == "quorate.request":
        inner = parse_request_untrusted(command).specs()
        denials = (access.denial(each, words) for each, words in inner)
        denial = next(filter(None, denials), None)
    return resp.OK if denial is None else resp.bulk(denial.dryrun)


def _denials(words: Sequence[bytes], client: ClientState, port: PortState) -> bytes:
    match words:
        case []:
            count: int | None = _USUAL_ENTRIES
        case [word] if word.lower() == b"reset":
            port.access.denials.clear()
            return resp.OK
        case [word]:
            count = parse_integer(word)
        case _:
            return resp.error(
                "ERR unknown subcommand or wrong number of arguments for 'log'. Try ACL HELP."
            )
    if count is None:
        return _NOT_INTEGER
    return port.access.denials.reply(max(count, 0), port.now, resp3=client.resp3)

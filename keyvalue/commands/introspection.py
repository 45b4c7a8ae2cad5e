"""COMMAND and HELP: the command table in the form that clients read.

Cluster clients read first key, last key and step to route a command, and refuse commands that are
not listed. redis-cli shows COMMAND DOCS as hints.
"""

from collections.abc import Sequence
from functools import cache
from typing import Final

from ..protocol import resp
from .glob import matcher
from .table import CommandSpec, Kind, all_commands, keys_of, lookup, resolve

_FILTER_ARGUMENTS: Final = 3
_PAIR: Final = 2  # a container and its subcommand


def command_reply(arguments: Sequence[bytes], *, resp3: bool) -> bytes:
    """Answer COMMAND. `arguments` include its own name; `table.fault` found nothing wrong."""
    names = arguments[2:]
    match arguments[1].lower() if len(arguments) > 1 else b"info":
        case b"count":
            reply = resp.integer(len(all_commands()))
        case b"info":
            reply = _infos(names, resp3=resp3)
        case b"docs":
            reply = _all_docs(names, resp3=resp3)
        case b"list":
            reply = _list(names)
        case b"getkeys":
            reply = _getkeys(names)
        case _:
            reply = help_reply(arguments[0])
    return reply


def help_reply(name: bytes) -> bytes:
    """Answer HELP of a container: its subcommands with their summaries."""
    spec = lookup(name)
    assert spec is not None, "only containers of the table have a HELP"
    head = b"%b <subcommand> [<arg> [value] [opt] ...]. Subcommands are:" % name.upper()
    lines = [head]
    for word, subcommand in spec.subcommands.items():
        lines += [word.upper(), b"    %b." % subcommand.summary.encode()]
    return resp.array([resp.simple(line) for line in lines])


def _infos(names: Sequence[bytes], *, resp3: bool) -> bytes:
    if not names:
        return _all_infos(resp3=resp3)
    missing = resp.null(resp3=resp3)
    specs = map(_named, names)
    return resp.array([_info(spec, resp3=resp3) if spec else missing for spec in specs])


# Cluster clients ask for all of it when slots have moved, all at the same time.
@cache
def _all_infos(*, resp3: bool) -> bytes:
    return resp.array([_info(spec, resp3=resp3) for spec in all_commands()])


def _named(name: bytes) -> CommandSpec | None:
    """Find a command or ``container|subcommand``."""
    words = name.split(b"|")
    container = lookup(words[0])
    if container is None or len(words) == 1:
        return container
    return container.subcommands.get(words[1].lower()) if len(words) == _PAIR else None


def _info(spec: CommandSpec, *, resp3: bool) -> bytes:
    def statuses(words: Sequence[str]) -> bytes:
        return resp.set_of([resp.simple(word.encode()) for word in words], resp3=resp3)

    return resp.array(
        [
            resp.bulk(spec.name.encode()),
            resp.integer(spec.arity),
            statuses(spec.flags),
            resp.integer(spec.first_key),
            resp.integer(spec.last_key),
            resp.integer(spec.step),
            statuses(spec.categories),
            resp.set_of([resp.bulk(tip.encode()) for tip in spec.tips], resp3=resp3),
            resp.set_of(_key_specs(spec, resp3=resp3), resp3=resp3),
            resp.array([_info(one, resp3=resp3) for one in spec.subcommands.values()]),
        ]
    )


def _key_specs(spec: CommandSpec, *, resp3: bool) -> list[bytes]:
    """Describe where the keys are, in the longer form of Redis 7."""
    if spec.first_key == 0:
        return []

    def fields(**values: bytes) -> bytes:
        pairs = [(resp.bulk(name.encode()), value) for name, value in values.items()]
        return resp.mapping(pairs, resp3=resp3)

    access = (b"RW", b"access", b"update") if spec.kind is Kind.WRITE else (b"RO", b"access")
    last = spec.last_key - spec.first_key if spec.last_key > 0 else spec.last_key
    found = fields(
        lastkey=resp.integer(last), keystep=resp.integer(spec.step), limit=resp.integer(0)
    )
    begin = fields(index=resp.integer(spec.first_key))
    return [
        fields(
            flags=resp.set_of([resp.simple(flag) for flag in access], resp3=resp3),
            begin_search=fields(type=resp.bulk(b"index"), spec=begin),
            find_keys=fields(type=resp.bulk(b"range"), spec=found),
        )
    ]


def _all_docs(names: Sequence[bytes], *, resp3: bool) -> bytes:
    specs = [spec for name in names if (spec := _named(name))] if names else all_commands()
    return resp.mapping([_docs(spec, resp3=resp3) for spec in specs], resp3=resp3)


def _docs(spec: CommandSpec, *, resp3: bool) -> tuple[bytes, bytes]:
    texts = (("summary", spec.summary), ("since", spec.since), ("group", spec.group))
    pairs = [(resp.bulk(name.encode()), resp.bulk(text.encode())) for name, text in texts]
    if spec.subcommands:
        inner = [_docs(one, resp3=resp3) for one in spec.subcommands.values()]
        pairs.append((resp.bulk(b"subcommands"), resp.mapping(inner, resp3=resp3)))
    return resp.bulk(spec.name.encode()), resp.mapping(pairs, resp3=resp3)


def _list(options: Sequence[bytes]) -> bytes:
    """Answer COMMAND LIST [FILTERBY MODULE name | ACLCAT category | PATTERN pattern]."""
    specs = tuple(one for spec in all_commands() for one in (spec, *spec.subcommands.values()))
    if options:
        if len(options) != _FILTER_ARGUMENTS or options[0].lower() != b"filterby":
            return resp.error("ERR syntax error")
        match options[1].lower():
            case b"module":
                specs = ()
            case b"aclcat":
                category = "@" + options[2].decode("utf-8", "replace").lower()
                specs = tuple(spec for spec in specs if category in spec.categories)
            case b"pattern":
                matches = matcher(options[2])
                specs = tuple(spec for spec in specs if matches(spec.name.encode()))
            case _:
                return resp.error("ERR syntax error")
    return resp.bulk_array([spec.name.encode() for spec in specs])


def _getkeys(arguments: Sequence[bytes]) -> bytes:
    spec = resolve(arguments)
    if spec is None:
        return resp.error("ERR Invalid command specified")
    if spec.first_key == 0:
        return resp.error("ERR The command has no key arguments")
    if not spec.takes(len(arguments)):
        return resp.error("ERR Invalid number of arguments specified for command")
    return resp.bulk_array(keys_of(spec, arguments))

"""The shape of one entry in the table of commands (:mod:`.table`)."""

import enum

import attrs


class Kind(enum.Enum):
    """Which part of the program answers a command."""

    WRITE = "write"
    """The replicated state machine, through the log."""
    READ = "read"
    """The replicated state machine, as a query (or through the log, inside MULTI)."""
    CONNECTION = "connection"
    """The client's connection itself."""


@attrs.frozen(eq=False)
class CommandSpec:
    """One command, or one subcommand (its name is then ``container|subcommand``).

    Args:
        name: in lower case.
        arity: number of arguments including the name(s); -n means at least n (as in Redis).
        kind: which part answers it.
        flags: Redis's command flags (``write``, ``readonly``, ``fast``, ...).
        first_key: index of the first argument that is a key, 0 for none.
        last_key: index of the last one; -1 is the last argument.
        step: distance from one key to the next.
        group: Redis's documentation group.
        since: the first Redis version with this command.
        summary: what it does, in one line.
        categories: ACL categories with their ``@``.
        tips: hints for clients of a cluster.
        subcommands: of a container, by name in lower case without the container's.
    """

    name: str
    arity: int
    kind: Kind
    flags: tuple[str, ...]
    first_key: int
    last_key: int
    step: int
    group: str
    since: str
    summary: str
    categories: tuple[str, ...]
    tips: tuple[str, ...] = ()
    subcommands: dict[bytes, "CommandSpec"] = attrs.field(factory=dict[bytes, "CommandSpec"])

    def takes(self, count: int) -> bool:
        """Whether it may have `count` arguments, its own name included."""
        return count == self.arity if self.arity >= 0 else count >= -self.arity

"""A change of a key, as watchers get it."""

import attrs

__all__ = ["Change"]


@attrs.frozen
class Change:
    """One version of a key.

    Args:
        key: the key.
        deleted: the key ends here.
        row: encoded `KeyValue`, as an event shows it; for a deletion only key and mod_revision.
        revision: of the request that made it.
        sub: its place among the changes of that revision, from 0.
        created: the key begins here.
    """

    key: bytes
    deleted: bool
    row: bytes
    revision: int
    sub: int
    created: bool

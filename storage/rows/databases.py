"""The five sub-databases of a store's LMDB environment.

::

    log         key term u64, position u64 (big endian)      value: a record batch, see `batch`
    terms       key term u64 (big endian)                    value: a term row, see `term_table`
    snapshots   key position u64, term u64 (big endian)      value: a snapshot row, see `term_table`
    meta        key a name, such as b"node_state"            value: a sealed row, see `meta_rows`
    members     key position u64 (big endian)                value: a row, see `membership`

Keys are big endian, since LMDB sorts them as bytes. A store of format 3 has no table ``members``
until it is opened for writing (:mod:`quorate.storage.log.upgrade`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import lmdb

if TYPE_CHECKING:
    from ..lmdb.environment import Transaction

MAX_DBS: Final = 5
"""Sub-databases of a store. With a smaller number LMDB refuses to open the last of them."""
LOG_TABLE: Final = "log"

_MEMBERS: Final = b"members"


class Databases:
    """Handles of the sub-databases of an open environment.

    Attributes:
        service: kind of the service that opened the store, empty without one. It is written with
            the next row of a term, see `identity`.
        has_members: whether there is a table of configurations; without one, `members` is not set.
    """

    def __init__(self, raw: lmdb.Environment, *, create: bool = False) -> None:
        self.service = ""
        # Opened once, up front: `open_db` begins a transaction of its own, so it must never be
        # called inside another one.
        self.log = raw.open_db(LOG_TABLE.encode(), create=create)
        self.terms = raw.open_db(b"terms", create=create)
        self.snapshots = raw.open_db(b"snapshots", create=create)
        self.meta = raw.open_db(b"meta", create=create)
        self.has_members = True
        try:
            self.members = raw.open_db(_MEMBERS, create=create)
        except lmdb.NotFoundError:
            # Not an error yet: the identity says whether the store's format has this table, and it
            # is read later. Left unset, since LMDB takes None for the list of all tables.
            self.has_members = False

    def add_members(self, raw: lmdb.Environment, txn: Transaction) -> None:
        """Make the table of configurations, in a transaction."""
        self.members = raw.open_db(_MEMBERS, txn, create=True)
        self.has_members = True

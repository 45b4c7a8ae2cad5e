"""The four sub-databases of a store's LMDB environment.

::

    log         key term u64, position u64 (big endian)      value: a record batch, see `batch`
    terms       key term u64 (big endian)                    value: a term row, see `term_table`
    snapshots   key position u64, term u64 (big endian)      value: a snapshot row, see `term_table`
    meta        key a name, such as b"node_state"            value: a sealed row, see `meta_rows`

Keys are big endian, since LMDB sorts them as bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import lmdb

MAX_DBS: Final = 4
"""Sub-databases of a store. With a smaller number LMDB refuses to open the last of them."""
LOG_TABLE: Final = "log"


class Databases:
    """Handles of the sub-databases of an open environment.

    Attributes:
        service: kind of the service that opened the store, empty without one. It is written with
            the next row of a term, see `identity`.
    """

    def __init__(self, raw: lmdb.Environment, *, create: bool = False) -> None:
        self.service = ""
        # Opened once, up front: `open_db` begins a transaction of its own, so it must never be
        # called inside another one.
        self.log = raw.open_db(LOG_TABLE.encode(), create=create)
        self.terms = raw.open_db(b"terms", create=create)
        self.snapshots = raw.open_db(b"snapshots", create=create)
        self.meta = raw.open_db(b"meta", create=create)

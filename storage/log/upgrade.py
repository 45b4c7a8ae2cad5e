"""Upgrading a store of format 3, in one transaction, when it is opened for writing.

Format 4 has a table of configurations (`rows.membership`). A store of format 3 has none: in its
log, the only MEMBERSHIP entries are those that admit a store, which are no configurations. So the
new table begins empty, and no batch is read. A row says up to where that is so, for `tools.verify`.

A crash leaves the store in format 3 or in format 4, never between them. Reading alone changes
nothing, so tools of this version may look into a store that an older version goes on with.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import attrs

from ...log_events import log_event
from ..lmdb.sealed_rows import irreplaceable_row
from ..rows.identity import FORMAT_VERSION, IDENTITY_KEY, encode_identity
from ..rows.meta_rows import UNLISTED_KEY, encode_unlisted, load_last_admission

if TYPE_CHECKING:
    from ..lmdb.environment import Environment, Transaction
    from ..rows.databases import Databases
    from ..rows.identity import Identity

log = logging.getLogger("quorate.storage")


def upgrade(environment: Environment, dbs: Databases, identity: Identity) -> Identity:
    """Bring a store that is being opened to the present format, durably; return its identity.

    Args:
        environment: of the store, open for writing.
        dbs: its sub-databases; afterwards all of them are there.
        identity: of the store, checked by the caller: this writes into it.

    Raises:
        LostStoreError: the row about the last admission is damaged.
        StoreFullError: the disk is full; the store stays as it was.
    """
    if identity.format_version == FORMAT_VERSION:
        return identity
    after = attrs.evolve(identity, format_version=FORMAT_VERSION)

    def write(txn: Transaction) -> None:
        dbs.add_members(environment.raw, txn)
        # No MEMBERSHIP batch ends behind the last admission: every one of them has moved it.
        admission = irreplaceable_row(
            identity.member_id, "its last admission", lambda: load_last_admission(txn, dbs)
        )
        txn.put(UNLISTED_KEY, encode_unlisted(admission.position), db=dbs.meta)
        # In the transaction that makes the table: an older version must never open a store that has
        # one, since it would append configurations without their rows.
        txn.put(IDENTITY_KEY, encode_identity(after), db=dbs.meta)

    environment.write(write)
    log_event(
        log,
        logging.WARNING,
        "store_upgraded",
        "member %(member)d: %(directory)s: the store is upgraded from format %(before)d to "
        "%(after)d; older versions can't open it",
        member=identity.member_id,
        directory=str(environment.directory),
        before=identity.format_version,
        after=FORMAT_VERSION,
    )
    return after

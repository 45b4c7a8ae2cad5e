"""What a member's next start will do: which state it loads, and which part of the log it replays.

The service's own state is used if the log reaches back to it. Otherwise the newest whole snapshot
is loaded; a damaged or missing one is passed over. The log is kept from the oldest snapshot on, so
an older snapshot only makes the replay longer. (Aeron: RecordingLog.createRecoveryPlan.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ...errors import StorageError
from ..log.readonly import open_readonly
from ..rows.identity import Identity  # noqa: TC001 - resolved at run time by serialisers
from ..rows.term_table import SnapshotRow  # noqa: TC001 - as above
from ..snapshots.file import NO_STATE
from ..snapshots.folder import SnapshotFolder
from ..tables.disk import tables_position

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def candidates(position: int, start: int, rows: Sequence[SnapshotRow]) -> list[SnapshotRow]:
    """Return the snapshots to load, best first; none if the service's own state will do.

    Args:
        position: log position up to which the service's own state is complete; 0 for none.
        start: where the log begins.
        rows: the snapshots, ascending.
    """
    if position >= start and position > 0:
        return []
    return [row for row in reversed(rows) if row.position >= start]


@attrs.frozen
class LookedAt:
    """A snapshot that was checked.

    Args:
        row: of the store.
        file_bytes: of its file.
        raw_bytes: unpacked.
        digest: equal for equal states.
        damage: what is wrong with it, empty if it is whole.
        of_witness: it is that of a witness, and has only the position.
    """

    row: SnapshotRow
    file_bytes: int = 0
    raw_bytes: int = 0
    digest: str = ""
    damage: str = ""
    of_witness: bool = False


@attrs.frozen
class RecoveryPlan:
    """What the next start of a member will do. Positions are byte offsets of the log.

    Args:
        identity: of the store.
        start_position: where the log begins.
        append_position: where it ends.
        commit_position: it is known to be committed up to here.
        log_term: the last term in the term table, -1 without one.
        tables_position: up to which the tables are complete, 0 without any.
        tables_damage: why they can't be read, empty if they can.
        snapshots: all of them, newest first, each read completely.
        load: the snapshot that will be loaded, None if none will.
        replay_from: where the replay begins.
        trouble: why the member can't start, empty if it can.
    """

    identity: Identity
    start_position: int
    append_position: int
    commit_position: int
    log_term: int
    tables_position: int
    tables_damage: str
    snapshots: tuple[LookedAt, ...]
    load: SnapshotRow | None
    replay_from: int
    trouble: str = ""


def plan_recovery(directory: Path, *, witness: bool = False) -> RecoveryPlan:
    """Work out what the next start of the member in `directory` will do; changes nothing.

    A witness loads and replays nothing: it has no tables, and its snapshots have no state.

    This is for a member with the key-value store. A service that keeps nothing on disk always
    begins with the newest snapshot.

    Args:
        directory: of the member.
        witness: the member is a witness.

    Raises:
        StorageError: its log can't be read.
    """
    with open_readonly(directory / "log") as store:
        recorded, identity, log_term = store.recorded, store.identity, store.log_term
    position, damage = 0, ""
    try:
        position = tables_position(directory / "tables")
    except StorageError as error:
        damage = str(error)
    folder = SnapshotFolder(directory / "snapshots")
    looked_at = tuple(_look(folder, row, witness) for row in reversed(recorded.snapshots))
    damaged = {each.row for each in looked_at if each.damage}
    start = recorded.start_position
    wanted = candidates(position, start, recorded.snapshots)
    load = next((row for row in wanted if row not in damaged), None)
    trouble, replay_from = "", position if load is None else load.position
    if witness:
        position, damage, load, replay_from = 0, "", None, recorded.append_position
    elif load is None and position < start:
        trouble = (
            f"the tables are at {position}, the log begins at {start}, and no snapshot is whole: "
            "the member will wait for a snapshot from another member"
        )
    return RecoveryPlan(
        identity=identity,
        start_position=start,
        append_position=recorded.append_position,
        commit_position=recorded.last_commit_position,
        log_term=log_term,
        tables_position=position,
        tables_damage=damage,
        snapshots=looked_at,
        load=load,
        replay_from=replay_from,
        trouble=trouble,
    )


def _look(folder: SnapshotFolder, row: SnapshotRow, witness: bool) -> LookedAt:  # noqa: FBT001
    try:
        summary = folder.check(row)
    except StorageError as error:
        return LookedAt(row, damage=str(error))
    if summary.head.service == NO_STATE:
        # In place of the tables of any other member, it would lose all keys.
        damage = "" if witness else "it is of a witness, which keeps no state"
        return LookedAt(row, summary.file_bytes, damage=damage, of_witness=True)
    return LookedAt(row, summary.file_bytes, summary.raw_bytes, summary.digest)

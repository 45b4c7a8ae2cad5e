"""Where a member's recording lies in its directory, and who owns it."""

from pathlib import Path

from ..errors import StorageError, StoreMismatchError
from ..storage.lmdb.environment import translating_errors
from ..storage.lmdb.file_check import DATA_FILE
from ..storage.log.readonly import open_readonly
from ..storage.rows.identity import Identity
from ..storage.rows.voting_status import VotingRight

__all__ = ["has_store", "store_of", "was_removed", "whose"]


def has_store(directory: Path) -> bool:
    """Say whether a member has a recording in its directory."""
    return (directory / "log" / DATA_FILE).exists()


def was_removed(directory: Path) -> bool:
    """Say whether a member knows that it was removed from its cluster."""
    if not has_store(directory):
        return False
    try:
        with open_readonly(directory / "log") as store:
            return store.recorded.voting_status.kind is VotingRight.REMOVED
    except StorageError:  # its start says what is wrong with it
        return False


def store_of(directory: Path) -> Path:
    """Return the folder of the recording: the directory itself, or ``log`` in it.

    Raises:
        StoreMismatchError: there is no recording in either.
        StorageError: this user has no permission to look.
    """
    if directory.name == "tables" and (directory.parent / "log").is_dir():
        raise StoreMismatchError(
            f"{directory}: these are the tables that the member makes of its recording; the "
            f"recording is {directory.parent / 'log'}"
        )
    with translating_errors(directory):
        for place in (directory, directory / "log"):
            if (place / DATA_FILE).exists():
                return place
    members = sorted(place.parent.name for place in directory.glob("member-*/log"))
    which = f": ask for one of {', '.join(members)} in it" if members else ""
    raise StoreMismatchError(f"{directory}: no recording there{which}")


def whose(identity: Identity) -> str:
    """Say in words which member, or which cluster's backup, a store belongs to."""
    if identity.member_id < 0:
        return f'a backup of cluster "{identity.cluster}"'
    return f'member {identity.member_id} of cluster "{identity.cluster}"'

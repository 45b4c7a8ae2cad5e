"""The CA of a torture. It needs the library `cryptography`, so only runs with TLS import this."""

from pathlib import Path

from ..local.certificates import (
    CA_FILE,
    Authority,
    begin_rotation,
    finish_rotation,
    found_authority,
)
from ..transport import Identity
from .machines import CLUSTER
from .rotations import SECURITY

__all__ = ["OwnAuthority"]


class OwnAuthority:
    """Makes the certificates of members, by a CA of its own.

    Args:
        folder: for the CA; made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        found_authority(folder, CLUSTER)

    def equip(self, directory: Path, member_id: int) -> None:
        """Write a new certificate of a member, and the CAs that are trusted, into its directory."""
        made = Authority.load(self._folder).issue(Identity.member(CLUSTER, member_id))
        # Moved: the CA may forget its predecessor once nothing of that is left in its folder.
        made.key.replace(directory / SECURITY.key)
        made.certificate.replace(directory / SECURITY.certificate)
        self.trust(directory)

    def trust(self, directory: Path) -> None:
        """Write the CAs that are trusted into the directory of a member."""
        place = directory / "ca.new"
        place.write_bytes((self._folder / CA_FILE).read_bytes())
        place.replace(directory / SECURITY.ca)

    def begin(self) -> None:
        """Make the next CA; from now on both are trusted, and the next one issues."""
        begin_rotation(self._folder)

    def finish(self) -> None:
        """Trust the former CA no more."""
        left = finish_rotation(self._folder)
        assert not left, f"certificates of the former CA: {left}"

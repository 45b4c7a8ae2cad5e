"""What a member does otherwise while it fetches the log that it lacks from another one's disk.

It comes as fast as it can be taken, and is applied at once. So what would be done again and again
meanwhile is better done once.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..storage.memory import freed_memory_kept
from .service import PatientService

if TYPE_CHECKING:
    from collections.abc import Generator

    from .applier import Applier


class Backlog:
    """Tells the service when such a time begins and ends.

    Args:
        applier: feeds the service, which then puts off what may wait.
    """

    def __init__(self, applier: Applier) -> None:
        self._applier = applier
        self._fetching = 0

    @contextmanager
    def fetching(self) -> Generator[None]:
        """It comes for the length of the block; the blocks of two streams may overlap."""
        self._fetching += 1
        self._tell()
        try:
            with freed_memory_kept():
                yield
        finally:
            self._fetching -= 1
            self._tell()

    def _tell(self) -> None:
        under_way = self._fetching > 0
        service = self._applier.service
        if isinstance(service, PatientService):
            service.put_off(wanted=under_way)

"""All uses of recipes, with their weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .holding import use_election, use_lock, use_rw_lock, use_semaphore
from .tools import (
    put_jobs,
    take_job,
    use_barrier,
    use_batches,
    use_copy,
    use_counter,
    use_party,
)

if TYPE_CHECKING:
    from .holding import Use

USES: Final[dict[Use, int]] = {
    use_lock: 4,
    use_semaphore: 3,
    use_rw_lock: 3,
    use_election: 2,
    put_jobs: 3,
    take_job: 4,
    use_counter: 1,
    use_batches: 1,
    use_copy: 1,
    use_party: 2,
    use_barrier: 3,
}

"""The stores of members, made from a backup, verified, and started once."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from ..storage.tools.restore import restore as restore_store
from .restored import start_once
from .words import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..node.config.config import NodeConfig
    from ..storage.tools.restore import RestorePlan

__all__ = ["restore_all"]


async def restore_all(
    plan: RestorePlan,
    configs: Sequence[NodeConfig],
    tell: Callable[[str], None],
    *,
    recovering: bool,
) -> None:
    """Make the stores of members, verify them, and start them once.

    Args:
        plan: what to restore.
        configs: of all members that are made.
        tell: called with a text for each of them.
        recovering: they become members of the cluster that the backup is of.

    Raises:
        StorageError: something is damaged, or they do not start.
    """
    rng = random.Random(random.SystemRandom().getrandbits(64))  # noqa: S311 - not for secrets
    made: list[int] = []
    for config in configs:
        batches = await restore_store(
            plan,
            config.directory,
            cluster=config.cluster,
            member_id=config.member_id,
            rng=rng,
            recovering=recovering,
        )
        made.append(batches)
    complete = {config.member_id for config in configs} >= {*configs[0].voters}
    elect = complete and not recovering
    await start_once(configs, plan.point.position, rng, elect=elect)
    for config, batches in zip(configs, made, strict=True):
        tell(
            f'{config.directory}: member {config.member_id} of cluster "{config.cluster}", '
            f"{counted(batches, 'batch', 'batches')} of log, verified and started once"
        )

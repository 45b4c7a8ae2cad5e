"""The stores of members, made from a backup, verified, and started once."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from ..etcd.messages import rpc_pb2 as rpc
from ..etcd.messages.requests import RESTORED_RAISE, Op, encode_request
from ..keyvalue.protocol.payload import ETCD
from ..node.state_machine.service import KEY_VALUE
from ..storage import Entry, EntryKind, open_readonly
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
    last = None if recovering else _raised(plan)
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
            last=last,
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


def _raised(plan: RestorePlan) -> Entry | None:
    """Return the entry by which a new cluster raises the revision of etcd's keys.

    The cluster before may have gone on behind the backup. Its clients must not take the revisions
    of the new one for those that they have seen. None for the log of another service.
    """
    with open_readonly(plan.source / "log") as store:
        if (store.recorded.service or KEY_VALUE) != KEY_VALUE:
            return None
    message = rpc.CompactionRequest(revision=RESTORED_RAISE).SerializeToString()
    return Entry(EntryKind.COMMAND, encode_request(Op.RESTORED, message), ETCD)

"""The map of the cluster as a member sends it: the reply to QUORATE.MAP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from ...errors import ConfigurationError, WireError
from ...keyvalue.protocol.resp import encode_command
from ...keyvalue.slots.cluster_map import decode_map_untrusted

if TYPE_CHECKING:
    from ...keyvalue.slots.cluster_map import ClusterMap

__all__ = ["ASK_MAP", "MapReply", "decode_reply_untrusted"]

ASK_MAP: Final = encode_command(["QUORATE.MAP"])
_MOST_BYTES: Final = 2 << 20


class _Reply(msgspec.Struct):
    map: msgspec.Raw
    partition: int
    leaders: dict[str, int | None] = {}


class MapReply(msgspec.Struct, frozen=True):
    """What a member knows of the cluster.

    Attributes:
        map: the newest one that it has seen.
        leaders: the machine that leads each partition, as its machine has heard last.
        partition: its own.
    """

    map: ClusterMap
    leaders: dict[int, int]
    partition: int


def decode_reply_untrusted(data: bytes) -> MapReply:
    """Decode the reply to QUORATE.MAP.

    Raises:
        WireError: it is malformed, or the member knows no map yet.
    """
    if len(data) > _MOST_BYTES:
        raise WireError(f"a map of {len(data)} bytes: expected {_MOST_BYTES} at most")
    try:
        found = msgspec.json.decode(data, type=_Reply)
        if bytes(found.map) == b"null":
            raise WireError("the member knows no map of the cluster yet")
        cluster_map = decode_map_untrusted(bytes(found.map))
        leaders = {int(at): machine for at, machine in found.leaders.items() if machine is not None}
    except (msgspec.MsgspecError, ConfigurationError, ValueError) as error:
        raise WireError(f"the reply to QUORATE.MAP: {error}") from None
    return MapReply(cluster_map, leaders, found.partition)

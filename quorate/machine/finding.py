"""The newest map of a cluster, for programs of operators: from files, or from any member.

Files are those of a machine, so they answer even when nothing runs. A member of a partition answers
``QUORATE.MAP`` from its machine's ``map.json``; one of the metadata group has the map as a key.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from ..client.resp import RespError, open_resp
from ..client.secure import port_of
from ..errors import ConfigurationError, NoLeaderError
from ..keyvalue.slots.cluster_map import MAP_KEY, ClusterMap, decode_map_untrusted
from ..local.survey import ANSWER_SECONDS, at, in_words
from .maps import map_at

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..client.resp import Reply, RespClient
    from ..node.requests.status import MemberAddress

__all__ = ["ask_for_map", "find_map"]

_MOST_BYTES: Final = 1 << 21


async def find_map(
    places: Sequence[str], parse_address: Callable[[str], MemberAddress]
) -> ClusterMap:
    """Return the newest map that some places have.

    Args:
        places: each HOST:PORT of a member's client port, or a path: ``map.json``, ``machine.toml``,
            the folder of a machine, or the directory of `quorate cluster --partitions`.
        parse_address: reads HOST:PORT.

    Raises:
        ConfigurationError: a file is wrong, or a member says that its cluster has no partitions.
        NoLeaderError: no member answers.
        UsageError: a place is neither a path that exists nor HOST:PORT.
    """
    found: list[ClusterMap] = []
    silent: list[str] = []
    for place in places:
        if (stored := _map_in(place)) is not None:
            found.append(stored)
            continue
        address = parse_address(place)
        try:
            found.append(await ask_for_map(address))
        except OSError as trouble:
            silent.append(f"{at(address)}: {in_words(trouble)}")
    if not found:
        raise NoLeaderError("\n".join(silent))
    return max(found, key=lambda each: each.epoch)


def _map_in(place: str) -> ClusterMap | None:
    """Return the map of a path; None if there is none of that name."""
    path = Path(place)
    if not path.exists():
        return None
    if path.suffix == ".json":
        try:
            return decode_map_untrusted(path.read_bytes(), what=str(path))
        except OSError as error:
            raise ConfigurationError(f"{path}: {error.strerror}: expected a map") from None
    return map_at(path)


async def ask_for_map(address: MemberAddress) -> ClusterMap:
    """Ask a member for the newest map that it knows.

    Raises:
        OSError: it does not answer.
        ConfigurationError: it has none, or refuses to say.
    """
    with trio.move_on_after(ANSWER_SECONDS):
        try:
            async with open_resp(address.host, port_of(address)) as client:
                said = await client.call("QUORATE.MAP")
                if said is not None:
                    return _map_in_answer_untrusted(said)
                said = await _key_of_metadata(client)
        except RespError as refusal:
            raise ConfigurationError(f"{at(address)}: {refusal}") from None
        if not isinstance(said, bytes):
            raise ConfigurationError(
                f"{at(address)}: this member knows no map: expected one of a cluster with "
                "partitions; just after its start it may know none yet"
            )
        return decode_map_untrusted(said, what=f"the map of {at(address)}")
    raise TimeoutError(f"no answer within {ANSWER_SECONDS:g} s")


async def _key_of_metadata(client: RespClient) -> Reply:
    """Read the map's key, in case the member is one of the metadata group."""
    try:
        return await client.call("GET", MAP_KEY)
    except RespError as refusal:
        # A partition's member that has no map yet knows no owner of the key's slot either.
        if refusal.code in {"CLUSTERDOWN", "MOVED"}:
            return None
        raise


class _Answer(msgspec.Struct):
    map: msgspec.Raw


def _map_in_answer_untrusted(said: Reply) -> ClusterMap:
    """Decode the answer to QUORATE.MAP.

    Raises:
        ConfigurationError: no member answers so.
    """
    what = "the answer to QUORATE.MAP"
    try:
        data = said if isinstance(said, bytes) and len(said) <= _MOST_BYTES else b""
        found = msgspec.json.decode(data, type=_Answer)
    except msgspec.MsgspecError:
        raise ConfigurationError(f"{what}: {said!r:.80}: expected a map") from None
    return decode_map_untrusted(bytes(found.map), what=what)

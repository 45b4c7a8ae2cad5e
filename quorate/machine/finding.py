"""The newest map of a cluster, for programs of operators: from files, or from any member.

Files are those of a machine, so they answer even when nothing runs. A member of a partition answers
``QUORATE.MAP`` from its machine's ``map.json``; one of the metadata group has the map as a key.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from ..client.resp import RespError, open_resp
from ..client.secure import port_of
from ..errors import ConfigurationError, NoLeaderError
from ..keyvalue.slots.cluster_map import MAP_KEY, META, ClusterMap, decode_map_untrusted, encode_map
from ..local.survey import ANSWER_SECONDS, at, in_words
from .maps import map_at
from .reach import address_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..client.resp import Reply, RespClient
    from ..node.requests.status import MemberAddress
    from .config import MachineConfig
    from .map_watch import KnownMap

__all__ = ["ask_for_map", "find_map", "look_for_map"]

_MOST_BYTES: Final = 1 << 21

_LOOK_SECONDS: Final = 4.0
"""How long a machine without a map looks for one. Shorter, and busy members are not heard. Longer,
and a new cluster starts later, if machines are down."""

_MOST_QUESTIONS: Final = 64


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
                if said is not None and (found := _map_in_answer_untrusted(said)) is not None:
                    return found
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


def _map_in_answer_untrusted(said: Reply) -> ClusterMap | None:
    """Decode the answer to QUORATE.MAP; None if the member has no map yet.

    Raises:
        ConfigurationError: no member answers so.
    """
    what = "the answer to QUORATE.MAP"
    try:
        data = said if isinstance(said, bytes) and len(said) <= _MOST_BYTES else b""
        found = msgspec.json.decode(data, type=_Answer)
    except msgspec.MsgspecError:
        raise ConfigurationError(f"{what}: {said!r:.80}: expected a map") from None
    return (
        None if bytes(found.map) == b"null" else decode_map_untrusted(bytes(found.map), what=what)
    )


async def look_for_map(config: MachineConfig, known: KnownMap) -> None:
    """Ask all members of the other machines for a map, before this machine founds anything.

    A machine with a new disk does not know that its cluster was founded long ago, perhaps in other
    places by now.

    Args:
        config: of the machine.
        known: gets the newest map that is found, if any is.

    Raises:
        ConfigurationError: it is of another cluster.
        OSError: its file cannot be written.
    """
    limit = trio.CapacityLimiter(_MOST_QUESTIONS)

    async def look(address: MemberAddress) -> None:
        # Who does not answer, or refuses to say, keeps nobody from founding a cluster.
        async with limit:
            with suppress(OSError, ConfigurationError):
                found.append(await ask_for_map(address))

    found: list[ClusterMap] = []
    with trio.move_on_after(_LOOK_SECONDS):
        async with trio.open_nursery() as nursery:
            for each in config.machines:
                for partition in range(META, config.partitions):
                    if each.machine_id != config.machine_id:
                        nursery.start_soon(look, address_in(each.as_machine(), partition))
    if found:
        known.offer(encode_map(max(found, key=lambda each: each.epoch)))

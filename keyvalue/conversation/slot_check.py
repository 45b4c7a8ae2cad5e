"""Whether the keys of a command are in a slot that this partition serves, before it is sent.

The state machine decides that at the command's place in the log. This look at the applied state is
a hint that saves log entries, and it is what sends a client elsewhere: only the port knows whether
the client came by TLS. Without partitions nothing here is called.

Commands of sessions are not looked at here. Their outcome must be one that a repetition gets, too,
so the state machine alone answers them.
"""

from collections.abc import Sequence
from typing import Final

from ..clients.client_state import ClientState
from ..clients.port_state import PortState
from ..commands.table import CommandSpec, Kind, keys_of, lookup
from ..protocol import resp
from ..protocol.payload import FROZEN
from ..slots.cluster_map import META
from ..slots.hashing import key_slot
from ..slots.signposts import Signposts
from ..state.ownership import FROZEN_SLOT, OWNED

__all__ = ["CROSSED", "CROSSED_ERROR", "NO_KEYS", "misplaced", "serves", "slot_of", "verdict"]

NO_KEYS: Final = -1
"""In place of a slot: the command has no keys."""

CROSSED: Final = -2
"""In place of a slot: its keys are in several."""

CROSSED_ERROR: Final = resp.error("CROSSSLOT Keys in request don't hash to the same slot")


def slot_of(signposts: Signposts, spec: CommandSpec, arguments: Sequence[bytes]) -> int:
    """Return the slot of a command's keys, `NO_KEYS` or `CROSSED`."""
    keys = keys_of(spec, arguments)
    if not keys or signposts.has(keys):
        return NO_KEYS
    slot = key_slot(keys[0])
    return slot if len(keys) == 1 or all(key_slot(key) == slot for key in keys) else CROSSED


def serves(signposts: Signposts, arguments: Sequence[bytes]) -> bool:
    """Return whether a command of a run has no keys, or only keys in one slot that is owned."""
    spec = lookup(arguments[0])
    slot = CROSSED if spec is None else slot_of(signposts, spec, arguments)
    return slot == NO_KEYS or (slot >= 0 and signposts.ownership.states[slot] == OWNED)


def misplaced(
    port: PortState, client: ClientState, spec: CommandSpec, arguments: Sequence[bytes]
) -> bytes | None:
    """Return why a command is not to be sent; None if it is.

    Returns:
        The error to reply, or `FROZEN`: its slot may be served in a moment.
    """
    if port.signposts is None:
        return None
    slot = slot_of(port.signposts, spec, arguments)
    return verdict(port, client, slot, waits=client.read_only and spec.kind is Kind.READ)


def verdict(
    port: PortState, client: ClientState, slot: int, *, waits: bool = False
) -> bytes | None:
    """Return why a command is not to be sent; see `misplaced`.

    Args:
        port: of the member.
        client: has sent it.
        slot: see `slot_of`.
        waits: it waits for a frozen slot also at a follower.
    """
    signposts = port.signposts
    if signposts is None or slot == NO_KEYS:
        return None
    if slot == CROSSED:
        return CROSSED_ERROR
    state = signposts.ownership.states[slot]
    if state == OWNED:
        return None
    # If the map gives the slot to us, our log may be about to: a follower may be behind.
    if state == FROZEN_SLOT or signposts.owner(slot) == signposts.partition != META:
        # The leader of this partition knows more than a follower, which sends the client there.
        return FROZEN if waits or port.gateway.topology.is_leader else None
    port.counters.redirections += 1
    return signposts.moved(slot, tls=client.tls)

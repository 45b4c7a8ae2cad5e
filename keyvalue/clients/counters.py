"""Figures of one client port, as INFO shows them."""

import attrs

__all__ = ["Counters"]


@attrs.define(eq=False)
class Counters:
    """Figures since the start of the member, or since CONFIG RESETSTAT."""

    connections: int = 0
    refused_connections: int = 0
    commands: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    protocol_errors: int = 0
    slow_clients: int = 0
    refused_clients: int = 0
    closed_strangers: int = 0
    redirections: int = 0
    failed_handshakes: int = 0

    def reset(self) -> None:
        """Set all figures to zero."""
        # In place: requests under way hold this object and go on counting into it.
        for figure in attrs.fields(Counters):
            setattr(self, figure.name, 0)

"""A member's live events, and those of the other members."""

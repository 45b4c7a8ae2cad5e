"""What a member shows of itself, and what it hears of the other members."""

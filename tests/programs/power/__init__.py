"""What a loss of power leaves, and that it is enough."""

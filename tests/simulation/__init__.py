"""The simulated world, its invariants and its determinism."""

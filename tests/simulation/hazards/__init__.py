"""Helpers of the hazard tests and of the soak: a directed cluster, and what must always hold."""

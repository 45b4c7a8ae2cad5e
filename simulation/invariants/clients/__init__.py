"""Invariants on what clients may observe.

One file each. `INVARIANTS` in :mod:`quorate.simulation.invariants` lists all of them.
"""

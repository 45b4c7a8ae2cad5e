"""Invariants on what is committed and what is applied.

One file each. `INVARIANTS` in :mod:`quorate.simulation.invariants` lists all of them.
"""

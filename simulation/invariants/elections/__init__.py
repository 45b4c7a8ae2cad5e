"""Invariants on who leads, who may lead, and what elections cost.

One file each. `INVARIANTS` in :mod:`quorate.simulation.invariants` lists all of them.
"""

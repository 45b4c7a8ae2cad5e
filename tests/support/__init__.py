"""Helpers that several rooms of tests share; no tests.

script.py plays one member against scripted peers, real.py runs a real cluster as child processes,
damage.py damages files, and each `*_world.py` makes what one room's tests begin with.
"""

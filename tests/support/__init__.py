"""Helpers that several rooms of tests share; no tests.

- ``script.py`` runs one member against the scripted peers of ``peers.py``.
- ``real.py`` runs a real cluster as child processes.
- ``damage.py`` damages logs; ``settled.py`` and ``founding.py`` start simulated clusters.
- Each ``*_world.py`` makes the fixtures of one folder's tests.

Read ``script.py`` first.
"""

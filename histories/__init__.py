"""Recorded histories of clients, and the check that they are linearizable.

A history lists what clients asked, what they were answered, and when. Simulations, the torture of
real members and the Spark pipeline write histories in one form and check them with one checker.
This room knows nothing of members: anything that records operations can be checked.

Read first: ``history.py`` (the form of a history), ``specification.py`` (what operations do to one
key) and ``linearizability.py`` (the check; ``search.py`` is its algorithm, ``window.py`` makes a
violation small enough to read).
"""

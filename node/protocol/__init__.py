"""The rules of the protocol, without I/O: who wins, what is committed, where two logs agree.

``ballots.py``, ``quorum.py`` and ``log_matching.py`` are pure functions on frozen data. The model
checker (``tests/model``) runs the very functions that a member runs. ``states.py`` has the states
of an election and their legal transitions. The rest are small parts that both roles use: the base
of a role, waiting, heartbeats, the promise to a leader with a lease, the bound on forged terms.

Nothing here knows a member, its store or its links. Read ``states.py`` and ``ballots.py`` first.
"""

"""Which stores may vote: how a cluster begins, and how a lost store is replaced.

``founding.py`` founds a cluster with NEW stores. ``admission.py`` has the entry of the log by
which a store gets its vote, and the proof that all this is safe; read that first.

The members themselves never change: they are those of the configuration. The leader's half of an
admission is in ``leader/leadership.py``, the follower's in ``follower/following.py``.
"""

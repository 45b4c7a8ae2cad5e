"""The leader's role: one term of leadership, from the won ballot until something deposes it.

- :mod:`.leadership` is the role: which message does what, and which tasks run.
- :mod:`.replication` sends the log: the window, the batches, the live log of each follower.
- :mod:`.commit` turns the followers' positions into commits, and announces them.
- :mod:`.reads` answers linearizable reads, by a round or under a :mod:`.lease`.
- :mod:`.handover` hands the leadership on: for an :mod:`.operator`, for the :mod:`.preference` of
  the configuration, and when a disk stalls (:mod:`.disk_watch`) or fills up.

How a leader is elected is in :mod:`..election`; what its followers do in :mod:`..follower`. Read
`leadership`, `replication` and `commit`, in this order.
"""

"""The client of a cluster with partitions: a store whose requests go to the owners of their keys.

- `placement.py`: the newest map of the cluster; which partition owns a slot, where its members are
- `map_reply.py`: the map as a member sends it
- `routes.py`: the way to the members of one partition
- `groups.py`: one inner store for each partition, with its own connections and session
- `search.py`: what is done when a partition does not own a slot any more
- `one_slot.py`: the slot that all keys of a call must have
- `store.py`: the store; `transaction.py` and `watches.py`: its transactions and watches

Exactly once
    A slot may move while a write is under way. The partition that has answered, or may have got the
    write, is asked until it answers, with the same stamp: its inner store does that. So the answer
    is definite: a reply, or ``-NOTHERE``, which the session keeps like a reply. Only after that the
    write goes to the new owner, with a stamp of that partition's session.

Read first: `store.py`, then `search.py`.
"""

"""Slots and partitions: which group of members has which keys, as files and messages say it.

A *slot* is one of 16,384 classes of keys, as in Redis Cluster (:mod:`.hashing`). A *partition* is a
group of members with a log and a leader of its own, which owns some slots. A *machine* runs a
member of several partitions. The member ids of all groups are machine ids.

- :mod:`.ranges`: sets of slots
- :mod:`.cluster_map`: machines, partitions, and who is meant to own which slot
- :mod:`.folder`: what the processes of one machine tell each other, in files
- :mod:`.history`: whether the logs of all partitions agree on who owned which slot
- :mod:`.signposts`: where a member sends clients for keys that are not there

What a partition *really* owns is part of its state machine: `keyvalue/state/ownership.py`. The map
only says where to look.
"""

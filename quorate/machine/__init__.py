"""A machine of a cluster with partitions: its supervisor, and its members as child processes.

- :mod:`.config`: the file ``machine.toml``
- :mod:`.files`: the file of each member of the machine, made of that and of the map
- :mod:`.children`: the members' processes, which are started again when they end
- :mod:`.map_watch`: the newest map, in ``map.json`` of the machine
- :mod:`.maps`: where that is found without asking anybody
- :mod:`.finding`: the newest map, from files or from any member
- :mod:`.reach`: the groups of members, as the director and the supervisor talk to them
- :mod:`.login`: as whom they do
- :mod:`.direction`: the director, on the machine that leads the metadata group
- :mod:`.supervisor`: all of this, until a signal
- :mod:`.layout`: a whole cluster on this machine, for trials and for crash tests
- :mod:`.manifest`: what a backup of all partitions holds
- :mod:`.restored`: the machines of a new cluster that is made of one
- :mod:`.partition_survey`: what each partition reports of itself

Read first: `config`, then `supervisor`.
"""

"""Readers of the committed log: backups, exports, and members that fetch a part of our log.

- :mod:`.serving` is the member's end: it answers streams that others open.
- :mod:`.replay_client` is the reader's end: it asks all members, chooses one and checks what comes.
- :mod:`.backup` keeps a copy of a cluster in a directory, with that client.
- :mod:`.history` gives a reader in this process our snapshots and the log behind them.
- :mod:`.pace` bounds the rate of all outside readers together.

Outside readers never see uncommitted log, and they are not part of any quorum. A follower's
catch-up is elsewhere (:mod:`..leader.catchup_sender`, :mod:`..follower`). Read `serving` and
`replay_client` first.
"""

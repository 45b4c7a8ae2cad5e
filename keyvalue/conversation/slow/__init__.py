"""SLOWLOG and LATENCY: what took long, in the form in which clients of Redis ask for it.

In Redis an entry of the slow log is a command and its arguments. Here commands of many clients
travel as one batch, so an entry is a batch of the leader. Its arguments say how large it was and
where its time went. They have nothing in them that a client has sent, so an operator that may not
read keys may read them.

Both commands show the figures that the member keeps anyway (``node/requests/journey.py`` and
``clients/counters.py``). They are those of this member: ask the leader. Read first: ``slowlog.py``.
"""

"""The keyspace of etcd on a simulated cluster, and the judgement of what its clients saw.

- ``model``: a plain model of etcd
- ``book``: applies the committed log to the model, and compares replies and leases
- ``members``: the API of each member, without sockets: its backend and its watches
- ``followed``: one watch of a client, whose events are compared with the model
- ``logins``: tokens, and what each member must make of them

What clients do is in ``simulation/workloads/etcd.py``. Read ``book.py`` first.
"""

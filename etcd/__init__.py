"""The etcd v3 API: a second keyspace in the same log, for etcdctl, Patroni and the like.

The way of one request, ``Put``, from socket to reply:

1. `port/`: listens, with TLS if the member has it. The first bytes say which protocol it is.
2. `gateway/` (HTTP/1.1 with JSON) or `grpc/` (HTTP/2 with protobuf): bytes become a method of
   `methods.py` and a protobuf message
3. `backend/`: the message becomes a request of the member: a command for the log, or a query. The
   form of its payload: `messages/requests.py`
4. the member records, replicates and commits it; `keyvalue/service.py` sees by the flag `ETCD` that
   it is not one of Redis's
5. `state/`: each member applies it: revisions, leases, transactions, history
6. back in `backend/` the reply gets its header, and goes to the client
7. `watching/`: the change goes to those who watch the key

What is kept, and the rows that hold it, is in `keyspace/`. `access/` says who calls and what that
user may do. `services/` has what is more than one request: keep-alive, locks, elections, the
cluster.

Redis's keys and etcd's keys do not see each other. One snapshot, one backup and one log hold both.

Imports run one way: codes < messages < methods < keyspace < state < backend < watching,
access < services < gateway, grpc < port < opening.

Read first: `messages/requests.py`, `state/machine.py`, `watching/hub.py`.
"""

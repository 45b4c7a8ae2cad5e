"""Clients of etcd in a torture.

- ``clients`` puts, deletes, swaps, reads, keeps leases and takes locks at all members.
- ``connecting`` has the connections: to the gateway, or over gRPC (``grpc_client``).
- ``compacting`` compacts, and reads and watches around there.
- ``watching`` has a watch at each member, which goes on where it was when it breaks.
- ``records`` is what they were asked, answered and shown.
- ``judging`` finds what does not fit in that; ``judging_past``, what is wrong about compactions.
"""

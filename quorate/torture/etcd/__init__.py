"""Clients of etcd in a torture.

- ``clients`` puts, deletes, swaps, reads, keeps leases and takes locks at all members.
- ``watching`` has a watch at each member, which goes on where it was when it breaks.
- ``records`` is what they were asked, answered and shown.
- ``judging`` finds what does not fit in that.
"""

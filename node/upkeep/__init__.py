"""Upkeep of a running member: damaged batches are repaired, and a full disk is avoided.

- :mod:`.repair` reads the log; what it finds damaged it fetches from another member.
- :mod:`.disk_space` makes the member leave its role before its disk is full.

What is damaged before a store opens is the business of :mod:`quorate.storage.log.mending`, and a
disk that hangs that of :mod:`..leader.disk_watch`.
"""

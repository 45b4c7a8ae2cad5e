"""Locks, elections, queues and the like: on a log in virtual time, under trio and asyncio.

Read first: `test_cache.py`, then `test_lease.py`.
"""

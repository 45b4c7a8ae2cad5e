"""Locks, queues and the like, in virtual time on a store of one process.

Read first: `test_cache.py`, and `support/lone_store.py` for what the tests start with.
"""

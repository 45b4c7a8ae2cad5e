"""Replicated objects: what is refused when a class is made, calls, rollback, snapshots, sessions.

Read first: `test_calls.py`.
"""

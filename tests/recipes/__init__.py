"""Locks, elections and the like: on a log in virtual time, under trio and asyncio."""

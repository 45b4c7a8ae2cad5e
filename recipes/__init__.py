"""Locks, elections, queues and the like, over the key-value store and its leases."""

"""Requests from clients: how they are queued, forwarded, answered and timed out."""

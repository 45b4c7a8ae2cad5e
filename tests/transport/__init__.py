"""Tests of messages and links between members.

Every message survives encoding, arbitrary bytes never do more than raise `WireError`, and links
reconnect. Read first: test_wire.py, test_links.py.
"""

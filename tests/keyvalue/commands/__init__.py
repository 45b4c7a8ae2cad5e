"""Each command: its arguments, its effect and its reply.

test_replies.py compares replies with those of a real redis-server, where there is one.
"""

"""Who calls, and what that user may do.

- `users.py`: the users of the replicated ACL as etcd knows them: names, passwords, tokens
- `tokens.py`: what a member knows of tokens; `logged_tokens.py`: the log's word on them
- `needs.py`: the rights that a request needs; `rights.py`: those that a user has

Read first: `users.py`, `needs.py`.
"""

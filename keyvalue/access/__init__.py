"""Users and rules: which client may run which command on which key.

- `rules.py`: a user, and Redis's words for one (``on >secret ~cache:* +get``); pure
- `categories.py`: the commands of a category (``@read``), with two of our own
- `compiled.py`: a user's rules in the form that each command is checked against
- `hashing.py`: secrets become hashes, and are compared with them
- `users.py`: the replicated users, in the notes of the tables
- `principals.py`, `names_in_log.py`: the numbers by which the log's entries name users
- `users_in_log.py`: the users that the changes in a log make
- `commands.py`: the ACL commands of the state machine
- `judges.py`: how an embedding program judges clients by itself
- `denials.py`: what ACL LOG shows; `verifier.py`: hashing off the event loop

A secret never gets into this room's state: the member that a client talks to makes a hash of it
before there is a log entry. Read first: `rules.py`, `compiled.py`, `users.py`.
"""

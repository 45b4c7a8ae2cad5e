"""The commands of one client, from bytes to replies. No sockets here.

- `conversation.py`: commands in order, one request at a time
- `one_command.py`: what becomes of a command that is not part of a run
- `transactions.py`, `once_command.py`: MULTI's queue, EXEC, WATCH; QUORATE.ONCE
- `request_command.py`: QUORATE.REQUEST, a whole request of our own clients
- `watch_command.py`: QUORATE.WATCH and QUORATE.UNWATCH
- `permission.py`, `login.py`, `acl_command.py`, `user_change.py`: users
- `slot_check.py`, `parking.py`: with partitions: whether keys are here; waiting for slots that move
- `routes.py`: which commands of one client travel together
- `connection_commands.py`, `client_command.py`, `cluster_view.py`, `shards.py`, `info.py`: commands
  answered without the log
- `steps.py`: how all these reply and send requests; `unfinished_input.py`: the memory of input

It knows nothing of the state machine but the form of requests (:mod:`..protocol.payload`).

Read first: `conversation.py`, `one_command.py`.
"""

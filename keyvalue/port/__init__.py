"""The port that Redis clients connect to: sockets, conversations, and commands of the connection.

- `listener.py`: accepts clients; one epoll, one task, and turns
- `connection.py`: one socket: back-pressure, slow clients, the end in order
- `conversation.py`: one client's commands in order
- `client_state.py`, `port_state.py`, `counters.py`: what is remembered of one client, and of all
- `routes.py`, `joined.py`: which commands travel together, within one client and across clients
- `transaction.py`, `watching.py`, `once_command.py`: MULTI, WATCH, QUORATE.ONCE
- `port_access.py`, `login.py`, `acl_command.py`, `user_change.py`, `leader_users.py`,
  `port_audit.py`: users, and what they do that is noted
- `connection_commands.py`, `client_command.py`, `cluster_view.py`, `info.py`: commands answered
  without the log
- `request_errors.py`, `unfinished_input.py`: error replies; the memory that input takes

It knows the member only as a `Gateway`, and nothing of the state machine but the form of requests
(:mod:`..protocol.payload`).

Read first: `conversation.py`, `connection.py`, `listener.py`.
"""

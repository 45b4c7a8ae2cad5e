"""The key-value store: Redis's commands over a replicated log.

The way of one command, ``SET k v``, from socket to reply:

1. `port/listener.py`: one epoll for all clients; a *turn* serves those that are ready
2. `port/connection.py`: reads the socket, applies back-pressure
3. `protocol/parser.py`: hostile bytes become commands, or the connection ends
4. `conversation/conversation.py`: one client's commands in order. PING is answered here. Commands
   on keys become a request: as a run (`conversation/routes.py`), or joined with those of other
   clients (`clients/joined.py`). The form of a request: `protocol/payload.py`
5. `clients/port_state.py`: the requests of a turn go to the member together, `Gateway.submit_all`;
   `node/` appends them to the log, replicates and commits them
6. `service.py`: each member applies the entry: parses it, checks the budget (`limits.py`), and
   calls the command's handler
7. `commands/strings.py`: the handler changes `state/store.py`, and returns the encoded reply
8. back in `conversation/conversation.py` the reply is queued; `port/connection.py` sends it

Who may do what is decided in 4, by the rules of `access/`. Clients with TLS come through `tls/`.

A program that embeds a member replaces 1 to 5 by `programs/client.py`. `native/` has parts in C.

Read first: `service.py`, `commands/strings.py`, `conversation/conversation.py`.

Imports run one way: limits < native < protocol < state < commands < access < service < retry <
clients < conversation < port, and programs (`pyproject.toml` holds that).

To add a command on keys (say, ``SWAPCASE key``):

1. `commands/rows.py`: one line; W if it writes, R if it only reads
2. `commands/strings.py`, or its neighbours: a handler, and its name in `HANDLERS`. Look up
   everything before changing anything; use `store.now` as the time, and no randomness. A command
   that makes a large value calls `store.charge`.
3. `tests/keyvalue/commands/replies.py`: a script with Redis's exact replies
4. `tests/keyvalue/state/test_work.py`: a line in `WRITES` or `READS`
5. `pipeline/jobs/replay.py`: its name in `_RETURN_VALUES` if its reply contains values

Tests fail until 3 and (for writes) 4 are there. All members need the new version before a client
may use the command: an old member would apply it as an error, and the stores would differ.

To add a command of the connection (kind C): a line in `commands/rows.py`, a handler in `_HANDLERS`
of `conversation/connection_commands.py`, and a line in
`tests/keyvalue/port/connection_replies.py`.
"""

"""The key-value store: Redis's commands over a replicated log.

The way of one command, ``SET k v``, from socket to reply:

1. `port/listener.py`: one epoll for all clients; a *turn* serves those that are ready
2. `port/connection.py`: reads the socket, applies back-pressure
3. `protocol/parser.py`: hostile bytes become commands, or the connection ends
4. `port/conversation.py`: one client's commands in order; answers PING and the like itself,
   else cuts a run of commands (`port/routes.py`) or joins them with other clients'
   (`port/joined.py`) and makes a request; its form: `protocol/payload.py`
5. `port/port_state.py`: the requests of a turn go to the member together, `Gateway.submit_all`;
   `node/` appends them to the log, replicates and commits them
6. `service.py`: each member applies the entry: parses it, checks the budget (`limits.py`), and
   calls the command's handler
7. `commands/strings.py`: the handler changes `state/store.py`, and returns the encoded reply
8. back in `port/conversation.py` the reply is queued; `port/connection.py` sends it

A program that embeds a member replaces 1 to 5 by `embedded/client.py`. `native/` has parts in C.

Read first: `service.py`, `commands/strings.py`, `port/conversation.py`.

Imports run one way: limits < native < protocol < state < commands < service < embedded, port
(`tests/keyvalue/test_wings.py` holds that).

@@TOADD@@
"""

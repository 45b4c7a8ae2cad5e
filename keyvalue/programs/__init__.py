"""The key-value store for Python programs that embed a member; no sockets.

- `client.py`: :class:`KeyValue`, the usual commands as methods
- `transaction.py`: reads and writes that take place together, or not at all
- `records.py`, `encoding.py`: reads of many keys; arguments and replies
- `session.py`: the same with exactly-once writes
- `watch.py`, `figures.py`: the changes of keys, as an async iterator; what monitors see of that
- `gathering.py`: joins the SETs of many tasks into one request

It sends payloads (:mod:`..protocol.payload`) to an endpoint, usually a node, and decodes the
replies. Programs that connect over a socket use `quorate/client`.

Read first: `client.py`.
"""

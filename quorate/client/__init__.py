"""Clients: they talk to a cluster from another process, over its client ports.

For programs
    `connect.py`: :func:`quorate.connect`, the key-value store on trio and asyncio; `blocking.py`:
    the same without an event loop, in a thread of its own (`thread.py`). `session_redis.py`:
    redis-py's client, with writes that are done exactly once.
For the command line and the tools of this project
    `resp.py`: :class:`RespClient`, on trio.

The parts of `connect`, from the socket upwards:

- `dialling.py`: TCP, TLS and the login; a connection that sends bytes and returns values
- `routing.py`: which member leads
- `lanes.py`: connections to it, each with one request at a time
- `endpoint.py`: requests, and what became of them
- `batches.py`: joins the commands of many tasks into one request
- `joined.py`: the store whose commands travel so; `watch.py`: its watches
- `group.py`: all of that for one group of members; `partitioned/`: a store over several groups

None holds the policy of repeats: that is :mod:`quorate.keyvalue.retry`, which the store's own
sessions use, too. A program that runs a member needs no client: see :mod:`quorate.embed`.

Read first: `connect.py`, then `endpoint.py`.
"""

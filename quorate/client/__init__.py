"""Clients: they talk to a cluster from another process, over its client ports.

`SessionRedis` is for programs: redis-py's client, with writes that are done exactly once.
`RespClient` is for the command line and the tools of this project, on trio.

Neither holds the policy of repeats: that is :mod:`quorate.keyvalue.retry`, which the store's own
sessions use, too. A program that runs a member needs no client: see :mod:`quorate.embed`.

Read first: `session_redis`, then `redis_replies`.
"""

"""Programs that write through cluster clients, unmodified, and say what they saw.

Each is given one or more ports, and writes keys of its own until its input ends. It prints a line
after the first write. In the end it prints one of JSON: `acknowledged`, the keys; `errors`, in the
words of the client; and `longest_s`, the longest time that a write took.

- `python.py`: redis-py, its asyncio half, coredis, `redis-cli` and `redis-benchmark`
- `node.mjs`: ioredis and node-redis
"""

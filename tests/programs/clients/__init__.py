"""Clients of a real cluster: redis-py, redis-cli, redis-benchmark, and every `quorate` command."""

"""Clients that know nothing of quorate: redis-py, redis-cli, redis-benchmark."""

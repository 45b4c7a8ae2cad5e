"""Tests of the Redis commands over the log.

`commands` and `state` call the service directly, `protocol` feeds bytes to the parser, `port`
speaks RESP to a listener in memory, `programs` uses the client inside a program, and `native`
compares the compiled parts with their Python twins. Read first: commands/test_commands.py,
port/test_client_port.py.
"""

"""The one reader of plain RESP, compiled and in Python.

`resp_reader.c` and `resp_reader.py` do the same: they split bytes into commands, recognise runs of
SETs and GETs, and cut joined replies apart. The compiled functions are used where they could be
built; ``INFO server`` shows which.

This room does not know the rest of the protocol: inline commands, incomplete commands and protocol
errors are in `keyvalue/protocol/parser.py`. It reads no sockets and touches no tables.

Read `resp_reader.py` first.
"""

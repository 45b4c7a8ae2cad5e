"""gRPC: the API over HTTP/2, on a stream that the port has accepted.

- `server.py`: the tasks of a connection: one reads, one sends, one watches deadlines
- `connection.py`: the calls of a connection
- `server_call.py`, `unary_call.py`, `stream_call.py`: one call, from its headers to its trailers
- `http2.py`: frames and flow control, over the package h2
- `header_blocks.py`: blocks of headers that are the same each time are coded once
- `metadata.py`: what the headers of a call say
- `framing.py`: messages in the bytes of a call
- `wire.py`: the bytes of the connection

Read first: `server_call.py`, `connection.py`.
"""

"""gRPC: the API over HTTP/2, on a stream that the port has accepted.

- `server.py`: the tasks of a connection: one reads, one sends, one watches deadlines
- `connection.py`: the calls of a connection
- `server_call.py`, `unary_call.py`, `stream_call.py`: one call, from its headers to its trailers
- `http2.py`: what comes in frames of HTTP/2, `sending.py`: what goes out, as far as windows take it
- `frames.py`: the bytes of frames
- `header_blocks.py`: blocks of headers that are the same each time are coded once
- `metadata.py`: what the headers of a call say
- `framing.py`: messages in the bytes of a call

Read first: `server_call.py`, `connection.py`.
"""

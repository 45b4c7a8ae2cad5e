"""The Redis protocol (RESP), and the form of requests; no sockets, no state.

- `resp.py`: encoders of replies and commands, a decoder of replies
- `parser.py`: what a socket delivers becomes commands; it trusts nothing
- `payload.py`: what a request carries; the contract between clients' side and state machine
- `replies.py`: splits our own encoded replies

Which commands there are, and what they do, is in :mod:`..commands`.

Read first: `payload.py`, then `parser.py`.
"""

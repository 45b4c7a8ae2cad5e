"""TLS for clients: it stands between the client port and its sockets.

- `socket.py`: a socket with TLS, with those methods of a plain one that the port calls
- `handshakes.py`: connections whose handshake is under way, and what they may cost
- `certified.py`: the user that a client's certificate names

Plain clients pass nothing of this room, so they pay nothing for it. The cryptography is OpenSSL's,
through Python's `ssl`. Contexts are made, checked and replaced where the member's own certificate
is (:mod:`quorate.node.upkeep.access`).

It knows no commands and no users: a name from a certificate is judged by `port/port_access.py`.

Read first: `socket.py`.
"""

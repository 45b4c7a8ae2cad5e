"""The port of this API: connections, and which protocol each speaks.

- `listener.py`: listens, bounds and ends connections
- `protocols.py`: TLS, and what the first bytes say
- `refusals.py`: connections that never became clients
- `figures.py`: what monitors see of the port and its keyspace

Read first: `listener.py`.
"""

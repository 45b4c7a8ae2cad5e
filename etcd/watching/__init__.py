"""Watches: the changes of the state, as events, to the clients that want them.

- `hub.py`: which watches a change concerns
- `ranges.py`: the same for ranges of keys
- `recent.py`: the latest changes, for watches that are behind
- `watch.py`: one watch, and its events in protobuf
- `stream.py`: the watches of one client, and what waits to be sent to it

Read first: `stream.py`, whose docstring has the rules.
"""

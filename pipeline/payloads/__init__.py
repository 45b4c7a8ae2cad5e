"""Payloads: what the bytes of an entry ask the key-value store to do.

- ``decoding`` is the usual decoder, one payload at a time.
- ``plain`` decodes the common commands with numpy, many at once.
- ``bounded`` gathers rows into batches of bounded size.

Nothing here needs Spark. Whether a command succeeded is not in its payload: see ``jobs/replay.py``.
Read ``decoding.py`` first.
"""

"""A member's web port: figures, health, live events, and the page that shows them.

The server speaks HTTP/1.1 and only reads: nothing here changes a member. It is off unless the file
has a table ``[web]``.

Read first: ``server.py`` (connections), then ``routes.py`` (what each path answers). ``page/`` is
what browsers get; it has no build step and loads nothing from elsewhere.
"""

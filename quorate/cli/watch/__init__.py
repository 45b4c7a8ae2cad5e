"""`quorate top`: a cluster in a terminal, live or from a recording.

``model.py`` folds events into what is known of each member, and since when. ``drawing.py`` makes a
picture of that for people, ``lines.py`` an object of JSON for programs. ``feeds.py`` is where the
events come from: members that are asked, or a file. ``top.py`` is the command. Nothing here changes
a member. Read first: ``model.py``.
"""

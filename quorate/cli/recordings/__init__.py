"""Verbs about recordings: `quorate trace merge`, `convert` and `check`, and `quorate view`.

They read files and directories of members, and no member. Only `trace start` and `stop` ask
members: to record messages, or to record them no more. `paths` finds the files of a ring. Read
first: `trace.py`.
"""

"""The demos: `quorate demo` (``story``) and `make pipeline-demo` (``spark``).

Each starts three members as child processes, puts them under load, kills the leader, and checks
everything at the end. ``load`` has the clients of `quorate demo`, ``tell`` prints progress and log
lines. The clusters come from `quorate.local`; random faults are in `quorate.torture`.

Read ``story.py`` first.
"""

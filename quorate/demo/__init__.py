"""The demos: `quorate demo` (``story``), `make pipeline-demo` (``spark``), `make patroni-demo`.

Each starts three members as child processes, puts them under load, kills the leader, and checks
everything at the end. ``load`` has the clients of `quorate demo`, ``tell`` prints progress and log
lines. ``patroni/`` has PostgreSQL under Patroni, and ``ending`` stops a demo at SIGTERM. The
clusters come from `quorate.local`; random faults are in `quorate.torture`.

Read ``story.py`` first.
"""

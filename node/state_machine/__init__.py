"""The replicated state machine: what a user implements, and how it is fed from the log.

- :mod:`.service` is the interface that a state machine implements; :mod:`.timers` helps it with
  deadlines in log time.
- :mod:`.applier` applies what is committed, in order, each entry once.
- :mod:`.actions` are entries that make all members do something at one position.
- :mod:`.snapshots` takes, keeps, loads and installs snapshots of the service.
- :mod:`.witness` takes the place of the service on a member without tables.
- :mod:`.tables_watch` ends a member whose reader met damaged tables.

This room decides neither what is committed (:mod:`..leader`, :mod:`..follower`) nor what a command
means. Read `service`, `applier` and `snapshots`, in this order.
"""

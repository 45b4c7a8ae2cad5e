"""Benches: programs that measure quorate on this machine, each checking what it wrote.

- ``runs``: one module for each bench, for example ``python -m bench.runs.cluster``
- ``lib``: loads, instruments, checks, and clusters of other products
- ``report``: turns results into tables and plots
- ``figures``: the results, one JSON file for each bench

``python -m bench`` runs most of them. NOTEBOOK.md has all tables. Correctness is tested in
``tests``. Read ``runs/cluster.py`` first, then ``lib/measuring.py`` and ``lib/checking.py``.
"""

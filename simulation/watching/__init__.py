"""Observation: what happens in a simulated cluster, as facts for the invariants.

The observer looks at the members after every event and turns each change into a frozen fact.
``Knowledge`` adds the facts up; the invariants in ``simulation/invariants`` judge them. A wrapped
service (``watched.py``) shows which command is applied where. The trace keeps a digest of it all.

Read first: ``facts.py``, ``observer.py``, ``knowledge.py``.
"""

"""PySyncObj's names over replicated objects.

Read first: `test_programs.py`, which runs PySyncObj's example programs.
"""

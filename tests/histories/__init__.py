"""Tests of recorded histories and of the linearizability checker.

The checker is compared with a slow one that tries every order. Read first: test_linearizability.py.
"""

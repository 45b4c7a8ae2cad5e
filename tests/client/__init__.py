"""Tests of `quorate.connect`: against a fake cluster in virtual time, and against real members.

Read first: test_connect.py, with support/fake_cluster.py.
"""

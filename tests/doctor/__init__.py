"""Tests of `quorate doctor` and `quorate support-bundle`, inside this process.

Read first: test_judgements.py, then test_examination.py.
"""

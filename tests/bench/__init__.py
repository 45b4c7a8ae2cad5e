"""Tests of the benches: that they measure what they say, and that the tables show the figures.

They run no bench. Read first: test_bench.py.
"""

"""Tests of the pipeline: what the Spark source reads, and what the jobs find.

Tests marked `spark` share one Spark session and need Java; the others read logs without it. They
run in a lane of their own, see conftest.py in the root. Read first: source/test_logs.py,
jobs/test_jobs.py, test_document.py.
"""

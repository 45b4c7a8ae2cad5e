"""Spark itself: finds Java (``java``), makes workers start quickly (``home``), opens a session.

``worker`` runs once in each Python process that Spark starts. Nothing here knows of logs, and
nothing is needed on a cluster that has a Spark session already. Read ``session.py`` first.
"""

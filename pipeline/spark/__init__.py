"""Spark itself: finds Java (``java``) and makes workers start quickly (``home``).

``worker`` runs once in each Python process that Spark starts. Nothing here knows of logs, and
nothing is needed on a cluster that has a Spark session already. ``pipeline/session.py`` opens one.
"""

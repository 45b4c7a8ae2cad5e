"""`quorate lock`, `quorate elect`: run a command as long as this process holds a lease.

``child.py`` runs the command and ends it. ``verbs.py`` has the commands of the command line.
"""

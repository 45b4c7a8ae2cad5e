"""Hazards of the election protocol: for each one a schedule that provokes it.

``mutations`` removes the fixes of the protocol, one by one; ``schedules`` plays each hazard on a
simulated cluster; ``harm`` reports what a user would lose. With the fixes in place no schedule may
do harm. Read ``schedules.py`` first.
"""

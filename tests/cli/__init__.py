"""Tests of the command line and of configurations, inside this process.

What a command prints, its exit status, and the errors of a wrong call or file. Commands that run
members are tested in `programs`. Read first: test_command_line.py, test_config.py.
"""

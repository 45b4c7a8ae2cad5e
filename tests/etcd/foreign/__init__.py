"""Test suites that other projects wrote for etcd, run against quorate.

:mod:`.run` fetches and runs them; :mod:`.member` takes the place of the program ``etcd`` for suites
that start it themselves.
"""

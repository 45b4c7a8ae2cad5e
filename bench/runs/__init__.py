"""The benches, one module each; each module's docstring says what it measures and how.

From outside: ``cluster``, ``growth``, ``growth_log``, ``overload``, ``restart``, ``snapshot``,
``catchup``, ``failover``, ``steady``, ``members``. Step by step: ``anatomy``, ``lone_set``. Parts:
``storage``, ``transport``, ``embedded``, ``spark``. Compared with other products: ``peers``,
``etcd``.

Read ``cluster.py`` first.
"""

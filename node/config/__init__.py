"""The configuration of one member: its classes, their checks, and the TOML file.

:mod:`.config` holds the classes and :func:`~.config.load_config`; :mod:`.limits`, :mod:`.security`,
:mod:`.log_lines`, :mod:`.web` and :mod:`.etcd` hold tables of a file. :mod:`.settings` is the
machinery that they share: checks of single values, and the reading of a file with all its mistakes
at once. Read them in this order.

A configuration is frozen data. This room opens no store and no socket, and nothing in it changes
while a member runs. What each field means stands in the `Args:` section of its class.
"""

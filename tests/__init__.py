"""The tests of quorate. README.md in this folder says in which order to read them.

Each room of the product has a room of the same name here. Nearly all of it runs in virtual time:
one process, one thread, a seeded scheduler and no sleeping. Tests that start real processes are
in `programs`, and those that need Spark in `pipeline`. Helpers that several rooms use are in
`support`.
"""

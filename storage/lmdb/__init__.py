"""LMDB, made safe to rely on: locked, private, checked before it is mapped, errors translated.

`environment` opens one environment in one directory, for writing or reading. `readers` frees the
slots of dead readers; `file_check` looks at a file before LMDB maps it; `private` sets file modes;
`sealed_rows` and `checksum` add the checksums that LMDB does not have.

It knows nothing of logs and tables: the rooms above it define what they store.

Read `environment` first, then `file_check`.
"""

"""The log of one member, and every change of its store, in one directory.

`store` is the face: one open store, its state before and after the disk. `changes` has every change
that it can make, `recorder` makes groups of them durable: by the `journal`, or by LMDB. `reader`
reads batches back, `mending` repairs what it can when a store is opened, `readonly` opens one for
tools.

It does not decide when to vote, truncate or install; :mod:`quorate.node` does.

Read `batch` (the form of the log), `store` and `recorder`.
"""

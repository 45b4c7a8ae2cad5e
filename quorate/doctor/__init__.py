"""`quorate doctor`: what is wrong with a member's machine, files and network, and what to do.

Each module looks at one thing, and returns :class:`.finding.Finding` objects: what was measured,
what was expected, and what to type. `examination` calls them all. Nothing is changed; only the
measurement of the disk writes, into a file that has no name.

A check that can't be made is a finding, too: "could not look" is no "all is well".

There is no printing here; that is :mod:`quorate.cli.trouble.doctor`.

Read first: `finding`, then `examination`, then `directory` as an example of a check.
"""

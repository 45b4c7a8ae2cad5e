"""Members on this machine, and questions to members anywhere.

`cluster` lays out the configurations of a local cluster and runs its members as child processes.
`survey` asks members for their status, and waits for a state of the whole cluster (`until`).
`restoring`, `restored` and `force_quorum` are the hard parts of `quorate restore` and `recover`.
`certificates` is a small CA, `certificate_check` finds what is wrong with certificates, and
`secured` lays out a local cluster with them. `archive` makes one encrypted file of a backup, and
`sealed` is the encryption. These need the extra `certs`, so a verb imports them when it is called.
`log_lines` writes log lines without ever blocking a member. `show` prints tables, and `words`
writes numbers for people; `slots_words` shows the commands that move slots.

Nothing here parses a command line, and no member imports this folder: see :mod:`quorate.cli`.

Read first: `cluster`, then `survey`.
"""

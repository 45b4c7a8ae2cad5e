"""The commands: a table of what each one takes, and a handler for each one of the state machine.

- `rows.py`, `spec.py`, `table.py`: the table; names, arity, keys, flags, as COMMAND shows them
- `strings.py`, `numbers.py`, `keys.py`, `expiry.py`, `walk.py`, `sessions.py`: the handlers
- `slots.py`, `slot_rows.py`: the commands that move slots between partitions
- `slot_checks.py`: what a partition may execute, by the slots of the keys
- `arguments.py`: parsing of arguments, and Redis's errors
- `glob.py`, `random_key.py`, `introspection.py`: parts of single commands

A handler takes the store and the arguments, and returns the encoded reply. It gets no clock and no
randomness, because every member runs it. Commands of the connection (CLIENT, INFO) have a row here
and a handler in :mod:`..conversation.connection_commands`.

Read first: `rows.py`, then `strings.py`. To add a command, see :mod:`quorate.keyvalue`.
"""

"""Tools that look at a store from outside, or make one: the functions behind `quorate log`.

`describe` sums a store up. `verify` and the files named after it check every byte. `recovery_plan`
says what the next start will do, and `restore` makes a store from a backup. They return data and
print nothing, and work while the member is running in another process. No member uses them.

Read `describe` first, then `verify`.
"""

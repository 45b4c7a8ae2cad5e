"""Commands for an operator in trouble: `quorate doctor` and `quorate support-bundle`.

Read first: `doctor`.
"""

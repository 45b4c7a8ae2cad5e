"""LMDB environments: opening, damaged files, foreign readers, permissions."""

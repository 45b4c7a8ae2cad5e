"""Rows of the store: terms, votes, identity. Read first: test_term_table.py."""

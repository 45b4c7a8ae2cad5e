"""Payloads are decoded into columns, also with a decoder of the user's own."""

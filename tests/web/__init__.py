"""Tests of the web port and of the page that it serves.

The page's own files are checked here without a browser; `browser/` has what needs one.
"""

"""Tests of the web server and its page."""

"""Tests of TLS for clients: the port with real sockets, certificates of a CA made for the tests."""

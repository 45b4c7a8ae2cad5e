"""The port for Redis clients: connections, transactions, slow readers, redirection, limits."""

"""Real etcd next to quorate: both get the same requests, and their replies are compared."""

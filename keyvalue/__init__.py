"""The key-value service: Redis commands over the materialised tables, and the port for clients."""

"""The rules of the protocol as pure functions, and that histories of them are safe."""

"""Tools for tests of the store, and of programs that use it. Nothing here is imported by the engine."""

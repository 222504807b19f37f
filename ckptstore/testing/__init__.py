"""Tools for tests of the store, and of programs that use it. Nothing here is imported by the engine.

`check_reducer` checks a reducer of yours; it needs the extra `testing`. `ckptstore.testing.crashfs` is a filesystem for crash tests,
`ckptstore.testing.clock` a clock that jumps.
"""

from ckptstore.testing.reducers import ReducerCheckError, TestingExtraMissingError, check_reducer

__all__ = ["ReducerCheckError", "TestingExtraMissingError", "check_reducer"]

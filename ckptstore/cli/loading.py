"""What a command line names in the user's own code, as MODULE:ATTR."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from ckptstore.errors import CkptStoreError, InvalidArgumentError


class LoadError(CkptStoreError, RuntimeError):
    """The user's module could not be imported, or has no such attribute."""


def attribute(argument: str, name: str, example: str) -> Any:
    """Import what `name` names.

    Args:
        argument: the name as errors show it, such as `--graph=app:graph`.

    Raises:
        InvalidArgumentError: `name` is not of the form MODULE:ATTR.
        LoadError: see there.
    """
    module, colon, path = name.partition(":")
    if not (module and colon and path):
        raise InvalidArgumentError(f"{argument}: a module and a name in it are needed, such as {example}")
    # As `python -m` does: the application usually stands where the command is run.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise LoadError(f"{argument}: cannot be loaded: {type(error).__name__}: {error}") from error
    return found

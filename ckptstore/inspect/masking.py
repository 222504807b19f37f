"""Metadata whose names look like secrets is not shown unless asked for: api keys in configs end up there."""

from __future__ import annotations

import re
from typing import Any, Final

MASK: Final = "***"
_SECRET: Final = re.compile("key|token|secret|password", re.IGNORECASE)


def masked(value: Any) -> Any:
    """A copy of metadata in which the value of every entry is `MASK` whose name holds key, token, secret or password, at any depth.

    >>> masked({"step": 1, "configurable": [{"api_key": "sk-1"}]})
    {'step': 1, 'configurable': [{'api_key': '***'}]}
    """
    if isinstance(value, dict):
        return {name: MASK if _looks_secret(name) and item is not None else masked(item) for name, item in value.items()}
    if isinstance(value, list):
        return [masked(item) for item in value]
    return value


def _looks_secret(name: Any) -> bool:
    return isinstance(name, str) and _SECRET.search(name) is not None

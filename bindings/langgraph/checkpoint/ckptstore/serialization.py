"""Values on their way to the serde: wrappers unwrapped, message ids stamped."""

from __future__ import annotations

import os
import uuid
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.types import Overwrite

_OVERWRITE_KEY = "__overwrite__"


def unwrapped(value: Any) -> Any:
    """The value inside an `Overwrite`: a wrapper is an instruction to a reducer and must never become a channel's value."""
    if isinstance(value, Overwrite):
        return value.value
    if type(value) is dict and len(value) == 1 and _OVERWRITE_KEY in value:
        return value[_OVERWRITE_KEY]
    return value


def stamp_message_ids(value: Any) -> None:
    """Give id-less messages an id in place, before they are logged: replaying the log must not mint new ones.

    LangGraph since 1.2.15 does this itself before it calls the saver; in place means that the running graph sees the same id.
    """
    if isinstance(value, BaseMessage):
        if value.id is None:
            # os.urandom: test suites patch uuid.uuid4 with a finite sequence.
            value.id = str(uuid.UUID(bytes=os.urandom(16), version=4))
    elif isinstance(value, list | tuple):
        for item in value:
            stamp_message_ids(item)
    elif isinstance(value, Overwrite):
        stamp_message_ids(value.value)

"""The LangGraph saver on the `ckptstore` engine: `CkptSaver`, one class for sync and async."""

from langgraph.checkpoint.ckptstore.saver import CkptSaver

__all__ = ["CkptSaver"]

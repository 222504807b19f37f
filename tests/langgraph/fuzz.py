"""The long run of the state machine through LangGraph's interface, behind `make fuzz`, as tests/model/fuzz.py is for the engine.

python -m tests.langgraph.fuzz --seed 7 --steps 20000 --only saver-lmdb
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from langgraph.checkpoint.ckptstore import CkptSaver
from langgraph.checkpoint.ckptstore.testing import SaverMachine

from ckptstore.options import IndexKind
from tests.model.fuzz import main


@contextmanager
def folder(index: IndexKind) -> Iterator[CkptSaver]:
    """A saver on a new folder, which goes with it."""
    with tempfile.TemporaryDirectory() as path, CkptSaver(f"{path}/chat.ckpt", durability="process", index=index) as saver:
        yield saver


class Memory(SaverMachine):
    def make_saver(self) -> CkptSaver:
        return CkptSaver(":memory:")


class Lmdb(SaverMachine):
    def make_saver(self) -> AbstractContextManager[CkptSaver]:
        return folder("lmdb")


class Sqlite(SaverMachine):
    def make_saver(self) -> AbstractContextManager[CkptSaver]:
        return folder("sqlite")


if __name__ == "__main__":
    sys.exit(main({"saver-memory": Memory, "saver-lmdb": Lmdb, "saver-sqlite": Sqlite}))

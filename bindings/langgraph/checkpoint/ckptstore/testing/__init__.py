"""Property tests of any LangGraph checkpoint saver: `SaverMachine` for a test suite of yours, `fuzz_saver` to run it at once.

Needs the extra `testing` (hypothesis). docs/fuzzing.md says what is checked and what was found in released savers.
"""

from langgraph.checkpoint.ckptstore.testing.failures import Failure
from langgraph.checkpoint.ckptstore.testing.fuzzing import Report, SaverMachine, SaverViolation, fuzz_saver
from langgraph.checkpoint.ckptstore.testing.programs import Maker

__all__ = ["Failure", "Maker", "Report", "SaverMachine", "SaverViolation", "fuzz_saver"]

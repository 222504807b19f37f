"""All mutants, by the first words of the promise that they break."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tests.mutants.against import branches, hostile, processes, reading, removing, survival, upkeep
from tests.mutants.mutant import Mutant

MUTANTS: Final[Mapping[str, Sequence[Mutant]]] = {
    **survival.MUTANTS,
    **reading.MUTANTS,
    **branches.MUTANTS,
    **removing.MUTANTS,
    **upkeep.MUTANTS,
    **processes.MUTANTS,
    **hostile.MUTANTS,
}

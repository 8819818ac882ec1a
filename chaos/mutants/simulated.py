"""The wrong versions that the simulator must catch: those of the protocol, and those of operators that its jobs have.

Tests of whole jobs, or property tests, catch the latter as well, without a seed: see the tables of keyed_mutants.py,
operator_mutants.py and state_mutants.py. Those of them that need a branch are hunted in the seeds that have it.
"""

from __future__ import annotations

from holdfast.chaos.mutants.keyed_mutants import KEYED_MUTANTS
from holdfast.chaos.mutants.mutants import MUTANTS
from holdfast.chaos.mutants.operator_mutants import OPERATOR_MUTANTS
from holdfast.chaos.mutants.state_mutants import STATE_MUTANTS

OF_BRANCHES = tuple(each for each in (*STATE_MUTANTS, *KEYED_MUTANTS, *OPERATOR_MUTANTS) if each.needs)
SIMULATED = (*MUTANTS, *OF_BRANCHES)

"""Whether a run is worse than an earlier one: what is compared, how much worse is allowed, and what came of it."""

from __future__ import annotations

from quantool.regression.changes import changes_between, refuse_other_run, run_notes
from quantool.regression.quantities import QUANTITIES
from quantool.regression.tolerances import Tolerance, tolerances_of

__all__ = ["QUANTITIES", "Tolerance", "changes_between", "refuse_other_run", "run_notes", "tolerances_of"]

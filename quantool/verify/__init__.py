"""What a quantized model cost: outputs compared, execution checked, and a verdict in one sentence.

Plain data and callables only: arrays, facts, figures; sessions and graphs belong to the pipeline.
"""

from __future__ import annotations

from quantool.verify.comparison import Comparator, relative_differences, same
from quantool.verify.execution import INTEGER_OPERATORS, Execution, StandIns, accuracy_levels, execution, stand_ins
from quantool.verify.execution_check import check_execution
from quantool.verify.verdict import Evidence, other_ways, verdict

__all__ = [
    "INTEGER_OPERATORS",
    "Comparator",
    "Evidence",
    "Execution",
    "StandIns",
    "accuracy_levels",
    "check_execution",
    "execution",
    "other_ways",
    "relative_differences",
    "same",
    "stand_ins",
    "verdict",
]

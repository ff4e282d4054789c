"""Recipe: everything that decides how a model is quantized, checked before any work begins.

A recipe file is TOML whose top-level keys are the option names with underscores, plus ordered ``[[rules]]``; an
empty one is valid. Options given beside it win over it. Unknown keys and values are refused with the nearest
known one.
"""

from __future__ import annotations

from quantool.recipe.checks import OUTPUT_GATES, impossible_rules, option_flag
from quantool.recipe.choices import (
    OF_DATA,
    OF_SCALES,
    OF_STATIC,
    OF_WEIGHTS,
    Algorithm,
    Calibrator,
    Collect,
    Effort,
    Formula,
    GraphIO,
)
from quantool.recipe.reading import from_options, recipe_problems
from quantool.recipe.record import Recipe
from quantool.recipe.rules import FLOAT, Rule
from quantool.recipe.toml import to_toml

__all__ = [
    "FLOAT",
    "OF_DATA",
    "OF_SCALES",
    "OF_STATIC",
    "OF_WEIGHTS",
    "OUTPUT_GATES",
    "Algorithm",
    "Calibrator",
    "Collect",
    "Effort",
    "Formula",
    "GraphIO",
    "Recipe",
    "Rule",
    "from_options",
    "impossible_rules",
    "option_flag",
    "recipe_problems",
    "to_toml",
]

"""Which types the weights of a model take within a size: the least error for the bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from quantool.pipeline.choice.knapsack import LEVELS, spare

#: with more weights than this the knapsack's grid of bytes is too coarse, and steps by their gain a byte do as well
MOST_ON_GRID: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Weights that take one type together. sizes, errors: of each level, from the smallest up; errors may tie."""

    sizes: tuple[int, ...]
    errors: tuple[float, ...]


def least_error(items: Sequence[Item], budget: int) -> list[int]:
    """The level of each item, so that their errors add up to as little as is found while their sizes fit.

    budget: bytes, at least what all smallest levels take. Steps are taken by the error that they save a byte, as long
    as they fit; where there are two levels and few items, a knapsack on a grid of bytes is tried too.
    """
    found = _by_density(items, budget)
    if len(items) <= MOST_ON_GRID and all(len(item.sizes) == 2 for item in items):
        found = min((found, _on_grid(items, budget)), key=lambda levels: _error(items, levels))
    return found


def _error(items: Sequence[Item], levels: Sequence[int]) -> float:
    return sum(item.errors[level] for item, level in zip(items, levels, strict=True))


def _by_density(items: Sequence[Item], budget: int) -> list[int]:
    levels = [0] * len(items)
    left = budget - sum(item.sizes[0] for item in items)
    while True:
        steps = [
            (_density(item, levels[i], level), i, level)
            for i, item in enumerate(items)
            for level in range(levels[i] + 1, len(item.sizes))
            if item.sizes[level] - item.sizes[levels[i]] <= left and item.errors[level] < item.errors[levels[i]]
        ]
        if not steps:
            return levels
        _, i, level = max(steps, key=lambda step: (step[0], -step[1], -step[2]))
        left -= items[i].sizes[level] - items[i].sizes[levels[i]]
        levels[i] = level


def _density(item: Item, before: int, after: int) -> float:
    """The error that a step saves a byte."""
    return (item.errors[before] - item.errors[after]) / max(item.sizes[after] - item.sizes[before], 1)


def _on_grid(items: Sequence[Item], budget: int) -> list[int]:
    """The knapsack: which items take the larger of two levels."""
    extra = [float(item.sizes[1] - item.sizes[0]) for item in items]
    gains = [max(item.errors[0] - item.errors[1], 0.0) for item in items]
    left, largest = budget - sum(item.sizes[0] for item in items), max(gains, default=0.0)
    if left <= 0 or largest == 0.0:
        return [0] * len(items)
    # The knapsack counts savings in whole numbers.
    small = spare(extra, [round(gain / largest * LEVELS * LEVELS) for gain in gains], float(left))
    return [0 if i in small else 1 for i in range(len(items))]

"""Which groups carry the noise, found in a bounded number of measurements."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import pytest

from quantool.pipeline.choice.noise import Noise, largest_shares


class Known:
    """Noise that is known, and adds up."""

    def __init__(self, shares: dict[int, float], trials: int) -> None:
        self.shares, self.trials, self.asked = shares, trials, 0

    def share(self, groups: Collection[int]) -> float:
        self.asked += 1
        return sum(self.shares.get(number, 1e-4) for number in groups)


def search(known: Known, count: int, alone: list[int]) -> dict[tuple[int, ...], float]:
    return largest_shares(cast("Noise", cast("Any", known)), count, alone=alone, least=0.1)


@pytest.mark.parametrize("culprits", [{41: 1.0}, {0: 0.6, 63: 0.5}, {7: 0.4, 8: 0.3, 60: 0.3}])
def test_culprits_are_found_by_halving(culprits: dict[int, float]) -> None:
    known = Known(culprits, trials=40)
    found = search(known, 64, alone=[])
    single = {members[0]: share for members, share in found.items() if len(members) == 1}
    assert {number for number, share in single.items() if share > 0.1} == set(culprits)
    assert known.asked <= 40
    assert sorted(number for members in found for number in members) == list(range(64))


def test_suspects_are_measured_alone_at_once() -> None:
    known = Known({63: 1.0}, trials=20)
    assert search(known, 64, alone=[63, 62])[63,] == 1.0
    assert known.asked == 4  # all, the two, and the rest


@pytest.mark.parametrize("trials", range(12))
def test_no_more_is_measured_than_allowed(trials: int) -> None:
    known = Known({5: 1.0, 20: 1.0, 50: 1.0}, trials=trials)
    search(known, 64, alone=[63])
    assert known.asked <= max(trials, 1)

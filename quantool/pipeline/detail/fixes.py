"""What leaving operators in float would gain, measured in a few runs with their rounding switched off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from quantool.errors import QuantoolError
from quantool.pipeline.choice.decide import Decided
from quantool.pipeline.choice.keep import likely_culprits
from quantool.pipeline.choice.noise import Noise, is_measurable, largest_shares
from quantool.pipeline.choice.units import FusionGroup, fusion_groups
from quantool.pipeline.choice.work import work_of
from quantool.report.detail import FixRow
from quantool.schema import Feed

#: runs of the model with rounding switched on and off, at most
MOST_RUNS: Final = 64
#: a fix gains at least this much, and the report lists the best of them
LEAST_GAIN_DB: Final = 0.5
MOST_FIXES: Final = 8
#: a group with less of the noise is not looked for
_LEAST_SHARE: Final = 0.1


def cheapest_fixes(made: Decided, feeds: Sequence[Feed], *, runs: int, memory: int | None) -> tuple[FixRow, ...]:
    """Groups of operators that gain most for the multiply-adds that they would put back into float, the best first.

    runs: samples that calibrated; measuring takes no more runs than that. memory: a bound in bytes, or None.
    """
    source, plan = made.source, made.plan
    if not feeds or not is_measurable(source, plan, memory=memory):
        return ()
    groups = fusion_groups(source.facts, plan)
    try:
        gains = _gains(made, groups, feeds, runs=min(runs, MOST_RUNS))
        macs = work_of(source, groups, feeds[0]).macs
    except QuantoolError:  # a form that does not load has no fixes to offer
        return ()
    rows = [
        FixRow(
            nodes=groups[number].nodes,
            operators=tuple(source.facts.by_name[node].op_type for node in groups[number].nodes),
            gain_db=gain_db,
            macs_share=macs[number],
        )
        for number, gain_db in gains.items()
    ]
    return tuple(sorted((row for row in rows if row.gain_db >= LEAST_GAIN_DB), key=_dearness))


def _gains(made: Decided, groups: Sequence[FusionGroup], feeds: Sequence[Feed], *, runs: int) -> dict[int, float]:
    """Decibels gained without the rounding of one group, for those that make most noise alone."""
    facts = made.source.facts
    noise = Noise(made.source, made.plan, made.parameters, groups, feeds, runs=runs - 1)
    alone = list(likely_culprits(facts, groups))[: noise.trials // 2]
    shares = largest_shares(noise, len(groups), alone=alone, least=_LEAST_SHARE)
    single = {members[0]: share for members, share in shares.items() if len(members) == 1}
    worst = sorted(single, key=lambda number: (-single[number], number))[:MOST_FIXES]
    every = frozenset(range(len(groups)))
    whole = noise.share(every)
    return {number: 10.0 * math.log10(whole / noise.share(every - {number})) for number in worst}


def _dearness(row: FixRow) -> tuple[float, str]:
    """Multiply-adds for a decibel; a hundredth of them counts as nothing."""
    return (0.01 + row.macs_share) / row.gain_db, row.nodes[0]

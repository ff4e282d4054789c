"""What leaving operators in float would gain, as far as their errors add up, measured in a few runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from quantool.errors import QuantoolError
from quantool.pipeline.choice.decide import Decided
from quantool.pipeline.choice.keep import likely_culprits
from quantool.pipeline.choice.noise import Noise, is_measurable, largest_shares
from quantool.pipeline.choice.units import fusion_groups
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
#: what is left of the noise where one group seems to make more than all: errors do not add up exactly
_LEAST_LEFT: Final = 0.01


def cheapest_fixes(made: Decided, feeds: Sequence[Feed], *, runs: int, memory: int | None) -> tuple[FixRow, ...]:
    """Groups of operators that gain most for the multiply-adds that they would put back into float, the best first.

    runs: samples that calibrated; measuring takes no more runs than that. memory: a bound in bytes, or None.
    """
    source, plan = made.source, made.plan
    if not feeds or not is_measurable(source, plan, memory=memory):
        return ()
    groups = fusion_groups(source.facts, plan)
    try:
        noise = Noise(source, plan, made.parameters, groups, feeds, runs=min(runs, MOST_RUNS) - 1)
        whole = noise.share(range(len(groups)))
        alone = list(likely_culprits(source.facts, groups))[: noise.trials // 2]
        found = largest_shares(noise, len(groups), alone=alone, least=_LEAST_SHARE)
    except QuantoolError:  # a form that does not load has no fixes to offer
        return ()
    shares = {members[0]: share for members, share in found.items() if len(members) == 1}
    macs = work_of(source, groups, feeds[0]).macs
    rows = [
        FixRow(
            nodes=groups[number].nodes,
            operators=tuple(source.facts.by_name[node].op_type for node in groups[number].nodes),
            gain_db=_gain_db(share, whole),
            macs_share=macs[number],
        )
        for number, share in shares.items()
    ]
    worthwhile = sorted((row for row in rows if row.gain_db >= LEAST_GAIN_DB), key=_dearness)
    return tuple(worthwhile[:MOST_FIXES])


def _gain_db(share: float, whole: float) -> float:
    return 10.0 * math.log10(whole / max(whole - share, _LEAST_LEFT * whole))


def _dearness(row: FixRow) -> tuple[float, str]:
    """Multiply-adds for a decibel; a hundredth of them counts as nothing."""
    return (0.01 + row.macs_share) / row.gain_db, row.nodes[0]

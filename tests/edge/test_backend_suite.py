"""Every model of the onnx package's backend suite through every form: a valid result, or a refusal of ours.

A fixed tenth of the groups always runs, all others with ``pytest -m full``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest

import quantool
from tests.edge.backend_cases import Case, cases, forms, groups, in_share
from tests.edge.driver import FORMS, LEVELS, _db, run, same_signature

#: rounding changes what these choose; the numbers of the others are 1 apart and thousands large
UNSTABLE = ("hardmax", "large_number", "softmax_lastdim", "test_tan", "reduce_min_default_axes_keepdims")
LEAST_DB = 20

GROUPS = [pytest.param(g, marks=[] if in_share(g) else [pytest.mark.full], id=g) for g in groups()]


@pytest.mark.parametrize("group", GROUPS)
def test_every_model_comes_out_right_or_is_refused(group: str) -> None:
    problems = [
        f"{name} ({form}, {mode}): {problem}"
        for name, case in cases(group)
        for form, changed in forms(case)
        for mode in FORMS
        if (problem := _problem(name, changed, mode))
    ]
    assert not problems, "\n".join(problems)


def _problem(name: str, case: Case, mode: str) -> str:
    """What is wrong with the result; nothing where the run was refused with a reason."""
    proto, feeds = case
    try:
        result = quantool.quantize(proto, [*feeds] * 3, allow_nonfinite=True, **FORMS[mode]).model
    except quantool.QuantoolError as refusal:
        own = isinstance(refusal, quantool.VerificationError)
        return str(refusal) if own or not (refusal.what and refusal.where and refusal.fix) else ""
    try:
        given = run(proto, feeds)
    except Exception:  # what ONNX Runtime does not run as given needs no comparison
        return ""
    onnx.checker.check_model(result)
    same_signature(proto, result)
    found = [run(result, feeds, level) for level in (LEVELS.ORT_ENABLE_ALL, LEVELS.ORT_DISABLE_ALL)]
    return _difference(name, given, found)


def _difference(name: str, given: Sequence[dict], found: Sequence[Sequence[dict]]) -> str:
    if any(part in name for part in UNSTABLE):
        return ""
    for output in given[0]:
        reached = min(_db(given, other, output) for other in found)
        if isinstance(given[0][output], np.ndarray) and not reached >= LEAST_DB:
            return f"{output} reaches {reached:.1f} dB"
    return ""

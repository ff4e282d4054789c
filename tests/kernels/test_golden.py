"""Every recorded case of every oracle: values bit by bit, dtypes, shapes, and requests that must be refused."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from golden_cases import GOLDEN, call_arguments, load_family, mismatches

from quantool import kernels

CASES = [case for path in sorted(GOLDEN.glob("*.npz")) for case in load_family(path)]


def _call(case: dict[str, Any]) -> tuple[Any, ...]:
    function = getattr(kernels, case["op"])
    arguments = call_arguments(case)
    if "profile" in inspect.signature(function).parameters:
        arguments["profile"] = "ref" if case["oracle"] == "ref" else "ort"
    result = function(**arguments)
    return result if isinstance(result, tuple) else (result,)


def test_there_are_three_thousand_cases() -> None:
    assert len(CASES) == 3000


@pytest.mark.parametrize("case", [c for c in CASES if "error" not in c], ids=lambda c: c["id"])
def test_a_golden_case_is_reproduced(case: dict[str, Any]) -> None:
    results = _call(case)
    assert len(results) == len(case["outputs"])
    for (name, want), got in zip(case["outputs"].items(), results, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape), name
        bad = mismatches(got, want, case, name)
        assert not bad.any(), (name, case["params"], got.reshape(-1)[bad], want.reshape(-1)[bad])


@pytest.mark.parametrize("case", [c for c in CASES if "error" in c], ids=lambda c: c["id"])
def test_a_bad_request_is_refused_in_words(case: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError), match=r"^\w.*(must|allow|applies|given|need|takes|gives)"):
        _call(case)

"""Two runs of one command on one model, quantity by quantity."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

from quantool.errors import DataError
from quantool.regression.quantities import QUANTITIES, NodeQuantity, Quantity
from quantool.regression.tolerances import Tolerance
from quantool.report.model import Change, Outcome, Report, Status
from quantool.report.wording import plural
from quantool.schema import Note

#: models that share less than this part of their nodes are different models
SAME_MODEL: Final = 0.5


def changes_between(before: Report, now: Report, tolerances: Mapping[str, Tolerance | None]) -> tuple[Change, ...]:
    """Every quantity that either run measured, what got worse first. tolerances: None tells and does not judge."""
    found: list[Change] = []
    for quantity in QUANTITIES:
        tolerance = tolerances[quantity.name]
        if isinstance(quantity, NodeQuantity):
            found.extend(_of_nodes(quantity, before, now, tolerance))
        else:
            found.extend(_of_figures(quantity, before, now, tolerance))
    order = list(Outcome)
    return tuple(sorted(found, key=lambda change: (change.passed, order.index(change.outcome))))


def _of_nodes(quantity: NodeQuantity, before: Report, now: Report, tolerance: Tolerance | None) -> Iterator[Change]:
    """Losses and gains of nodes, which do not make up for each other; nodes that are no more do not count."""
    there = {(node.scope, node.name): node for node in now.nodes}
    common = [(node.scope, node.name) for node in before.nodes if (node.scope, node.name) in there]
    if not common:
        return
    had, has = quantity.read(before), quantity.read(now)
    lost = [key for key in common if key in had and key not in has]
    gained = [key for key in common if key in has and key not in had]
    counts = [float(sum(key in which for key in common)) for which in (had, has)]
    allowed = None if tolerance is None else tolerance.allowed(counts[0])
    yield Change(
        quantity=quantity.name,
        unit=quantity.unit,
        baseline=counts[0],
        current=counts[1],
        allowed=allowed,
        outcome=_outcome(worse=len(lost), better=len(gained), allowed=allowed),
        passed=allowed is None or len(lost) <= allowed,
        nodes=tuple(there[key] for key in (lost or gained)),
    )


def _of_figures(quantity: Quantity, before: Report, now: Report, tolerance: Tolerance | None) -> Iterator[Change]:
    had, has = quantity.read(before), quantity.read(now)
    for subject in dict.fromkeys((*had, *has)):
        was, now_is = had.get(subject), has.get(subject)
        allowed = None if tolerance is None or was is None else tolerance.allowed(was)
        if was is None or now_is is None:  # what was measured once and is not any more could hide anything
            passed, outcome = was is None or tolerance is None, Outcome.UNKNOWN
        else:
            worse = _difference(was, now_is) if quantity.rising else _difference(now_is, was)
            if _overlap(quantity.interval(before), quantity.interval(now)):
                worse = 0.0
            passed = allowed is None or worse <= allowed
            outcome = _outcome(worse=worse, better=-worse, allowed=allowed)
        yield Change(
            quantity=quantity.name,
            subject=subject,
            unit=quantity.unit,
            baseline=was,
            current=now_is,
            allowed=allowed,
            outcome=outcome,
            passed=passed,
        )


def _overlap(one: tuple[float, float] | None, other: tuple[float, float] | None) -> bool:
    """Whether two known intervals have a value in common."""
    return one is not None and other is not None and one[0] <= other[1] and other[0] <= one[1]


def _difference(one: float, other: float) -> float:
    """The difference of two values, also where both are infinite."""
    return 0.0 if one == other else one - other


def _outcome(*, worse: float, better: float, allowed: float | None) -> Outcome:
    """What a change is called; what is not judged may vary either way."""
    if allowed is None:
        return Outcome.NOT_JUDGED
    if worse > allowed:
        return Outcome.REGRESSED
    return Outcome.IMPROVED if better > allowed and worse <= 0 else Outcome.WITHIN


# --- whether two runs can be compared -------------------------------------------------------------------


def refuse_other_run(before: Report, now: Report, *, where: str) -> None:
    """Refuse a baseline that says nothing about a run.

    Raises:
        DataError: one of the runs ended without a result, or they are of different commands or models.
    """
    for report, which in ((before, "baseline"), (now, "report")):
        if report.status not in (Status.DONE, Status.GATE_FAILED):
            what = f"The {which} is of a run that ended as '{report.status}', without figures"
            raise DataError("report-of-failure", what, where=where, fix="Give the report of a run that came to an end.")
    if before.command != now.command:
        what = f"The baseline is a report of '{before.command}', the other one of '{now.command}'"
        raise DataError("other-command", what, where=where, fix="Give two reports of the same command.")
    if not _is_same_model(before, now) and _common_part(before, now) < SAME_MODEL:
        names = [repr(None if r.model is None else r.model.path) for r in (before, now)]
        what = f"The baseline is of another model: {names[0]}, and this run is of {names[1]}"
        fix = "Give the report of an earlier run on this model, or start with this one as a new baseline."
        raise DataError("other-model", what, where=where, fix=fix)


def run_notes(before: Report, now: Report, *, where: str) -> Iterator[Note]:
    """What makes the figures of two runs less comparable than they look."""
    if all(_digests(before, now)) and not _is_same_model(before, now):
        nodes = [{(node.scope, node.name) for node in report.nodes} for report in (before, now)]
        gone, new = len(nodes[0] - nodes[1]), len(nodes[1] - nodes[0])
        yield Note(
            code="model-changed",
            what=f"the float model is not the baseline's: {plural(gone, 'node')} gone, {plural(new, 'node')} new",
            where=where,
            fix="Differences may come from the model itself; make a new baseline once they are understood.",
        )
    targets = [None if report.recipe is None else report.recipe.get("target") for report in (before, now)]
    if targets[0] != targets[1]:
        what = f"the targets differ: '{targets[0]}' in the baseline, '{targets[1]}' now"
        yield Note(code="target-changed", what=what, where=where, fix="Compare runs for the same target.")
    samples = [None if report.verification is None else report.verification.samples for report in (before, now)]
    if None not in samples and samples[0] != samples[1]:
        what = f"accuracy was measured on {samples[0]} samples in the baseline and on {samples[1]} now"
        yield Note(code="samples-changed", what=what, where=where, fix="Verify on the same --verify-data.")


def _is_same_model(before: Report, now: Report) -> bool:
    """Whether both runs are of the same bytes."""
    digests = _digests(before, now)
    return digests[0] is not None and digests[0] == digests[1]


def _digests(*reports: Report) -> list[str | None]:
    return [None if report.model is None else report.model.sha256 for report in reports]


def _common_part(before: Report, now: Report) -> float:
    """The part of all nodes that both models have, by name and operator; of outputs where nodes are unknown."""
    parts = [{(node.scope, node.name, node.op_type) for node in report.nodes} for report in (before, now)]
    if not all(parts):
        parts = [
            {("", name, "") for name in (report.verification.outputs if report.verification else ())}
            for report in (before, now)
        ]
    everything = parts[0] | parts[1]
    return len(parts[0] & parts[1]) / len(everything) if everything else math.nan

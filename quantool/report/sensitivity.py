"""What rounding each operator costs, for people and as a document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from quantool.recipe import Recipe, to_toml
from quantool.report.model import DataInfo, ModelInfo, OutputInfo, plain
from quantool.report.summary import Fact
from quantool.report.wording import decibel, listing, percent, plural, visible
from quantool.schema import Note

SENSITIVITY_HEADER: Final = ("group", "operators", "alone", "noise", "multiply-adds", "float")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNoise:
    """An operator with what shares its scales. name: its first node; operators: their types, nodes: their names.

    sqnr_db: of the outputs where it alone is rounded; noise_share: its part of the sum over all groups; macs_share: its
    part of the model's multiply-adds; kept: it is better left in float.
    """

    name: str
    operators: tuple[str, ...]
    nodes: tuple[str, ...]
    sqnr_db: float
    noise_share: float
    macs_share: float
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """All groups, those of the most noise first.

    score_db: of the model quantized whole; kept_score_db: with the nodes in `exclude` in float, None without any;
    runs: of the model, to measure the groups; output: the recipe that was written.
    """

    model: ModelInfo
    data: DataInfo
    score_db: float
    kept_score_db: float | None
    exclude: tuple[str, ...]
    runs: int
    groups: tuple[GroupNoise, ...]
    output: OutputInfo | None = None
    warnings: tuple[Note, ...] = ()

    @property
    def recipe(self) -> str:
        """The TOML of a recipe that leaves those nodes in float which are better left there; empty without any."""
        return to_toml(Recipe(exclude=self.exclude))

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.kept_score_db is None:
            return f"{decibel(self.score_db)} with all of them rounded: none is better left in float."
        macs = percent(sum(group.macs_share for group in self.groups if group.kept))
        nodes = plural(len(self.exclude), "node")
        gain = f"{decibel(self.score_db)} become {decibel(self.kept_score_db)}"
        return f"{nodes} better left in float: {gain} for {macs} of the multiply-adds."

    def to_dict(self) -> dict[str, object]:
        """The fields, the verdict and the recipe, as strict JSON holds them."""
        return {**plain(self), "verdict": self.verdict, "recipe": self.recipe}


def sensitivity_facts(found: Sensitivity) -> tuple[Fact, ...]:
    """What was measured, and on what."""
    rows = [
        ("model", visible(found.model.path or "in memory")),
        ("data", f"{visible(found.data.source)}, {plural(found.data.samples, 'sample')}"),
        ("measured", f"{plural(len(found.groups), 'group')} one by one in {plural(found.runs, 'run')} of the model"),
    ]
    if found.output is not None:
        rows.append(("recipe", visible(found.output.path or "")))
    return tuple(Fact(label, value) for label, value in rows)


def sensitivity_rows(groups: Sequence[GroupNoise]) -> tuple[tuple[str, ...], ...]:
    """One row a group, under SENSITIVITY_HEADER."""
    return tuple(
        (
            visible(group.name),
            listing(dict.fromkeys(group.operators), most=3),
            decibel(group.sqnr_db),
            percent(group.noise_share),
            percent(group.macs_share),
            "yes" if group.kept else "",
        )
        for group in groups
    )

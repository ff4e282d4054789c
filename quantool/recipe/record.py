"""Recipe: everything that decides how a model is quantized, checked before any work begins."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path

from quantool.errors import OptionError
from quantool.recipe.checks import check_value, impossible_pairs, option_flag
from quantool.recipe.choices import Calibrator, Collect, Effort, Formula, GraphIO
from quantool.recipe.rules import Rule
from quantool.schema import Format, Mode
from quantool.values import BadValueError, block_size_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The decisions of one run. None leaves a decision to the target and the mode.

    Names, meaning and units are those of the command line's options. include and include_op restrict the run to
    what matches and ask for it explicitly (policy keeps none of it in float); exclude and exclude_op win.
    collect: full counts every element of large tensors, gram adds the Gram matrices of layers. memory and shard_size
    are bytes. target_size: what the result may take, with a unit of bytes or as bits per weight, `4.5bpw`.
    max_drop: in the unit of metric, the name of a metric or package.module:callable. verify is False under --no-verify.
    """

    mode: Mode = Mode.AUTO
    format: Format | None = None
    target: str = "cpu-x64"
    weights: str | None = None
    target_size: str | None = None
    activations: str | None = None
    granularity: str | None = None
    calibrator: Calibrator | None = None
    formula: Formula | None = None
    narrow_range: bool = False
    effort: Effort = Effort.BALANCED
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    include_op: tuple[str, ...] = ()
    exclude_op: tuple[str, ...] = ()
    io: GraphIO = GraphIO.FLOAT
    ranges: Path | None = None
    collect: tuple[Collect, ...] = ()
    samples: int | None = None
    batch_size: int | None = None
    memory: int | None = None
    shard_size: int | None = None
    threads: int | None = None
    seed: int = 0
    preprocess: str | None = None
    verify: bool = True
    keep: bool = False
    allow_nonfinite: bool = False
    min_sqnr: float | None = None
    min_agreement: float | None = None
    min_speedup: float | None = None
    max_size_ratio: float | None = None
    min_coverage: float | None = None
    max_drop: float | None = None
    metric: str | None = None
    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        values = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        for name, value in values.items():
            try:
                check_value(name, value)
            except BadValueError as bad:
                raise OptionError("bad-value", bad.what, where=option_flag(name), fix=bad.fix) from None
        for error in impossible_pairs(values):
            raise error

    @property
    def block_size(self) -> int:
        """N of the granularity ``block:N``, 0 for every other."""
        return 0 if self.granularity is None else block_size_of(self.granularity) or 0

    def to_dict(self) -> dict[str, object]:
        """Every field under its name, as plain values that `from_options` takes back."""
        return {spec.name: _plain(getattr(self, spec.name)) for spec in fields(self)}


def plain_rule(rule: Rule) -> dict[str, object]:
    """What a rule matches and sets, as plain values."""
    shown = {spec.name: _plain(getattr(rule, spec.name)) for spec in fields(rule)}
    return {key: part for key, part in shown.items() if part is not None}


def _plain(value: object) -> object:
    if isinstance(value, Rule):
        return plain_rule(value)
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, StrEnum | Path) else value

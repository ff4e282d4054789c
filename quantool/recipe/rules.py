"""One rule of a recipe: what it matches, and what it sets there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from quantool.elements import ELEMENTS
from quantool.errors import OptionError
from quantool.recipe.choices import OF_SCALES, Algorithm, Calibrator
from quantool.values import block_size_of, nearest

#: the type of activations that are not quantized
FLOAT: Final = "float"
MATCHES: Final = ("name", "op_type", "scope", "tensor")
SETS: Final = ("exclude", "weights", "activations", "granularity", "range", "calibrator", "algorithms")
#: what is decided for nodes, so that no tensor can be matched for it
_OF_NODES: Final = ("exclude", "algorithms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One ordered rule: what it matches, and what it sets there; a later rule wins over an earlier one.

    name, scope, tensor: globs; op_type: an operator type; scope "" is the main graph. Every key given must match.
    name, op_type and scope match nodes. A range or calibrator concerns the tensors that those nodes write,
    activations the tensors that they read ("float": none of them is quantized for them), weights and granularity
    their weights; tensor narrows each to tensors of that name. weights without granularity take the usual one of the
    type. algorithms: exactly these are applied to the nodes; none of the others.
    """

    name: str | None = None
    op_type: str | None = None
    scope: str | None = None
    tensor: str | None = None
    exclude: bool | None = None
    weights: str | None = None
    activations: str | None = None
    granularity: str | None = None
    range: tuple[float, float] | None = None
    calibrator: Calibrator | None = None
    algorithms: tuple[Algorithm, ...] | None = None

    def __post_init__(self) -> None:
        for what, fix in rule_problems({spec.name: getattr(self, spec.name) for spec in fields(self)}):
            raise OptionError("bad-rule", what, where="rules", fix=fix)

    @property
    def names_nodes(self) -> bool:
        """Whether it matches nodes, not tensors alone."""
        return self.name is not None or self.op_type is not None or self.scope is not None

    @property
    def sets_types(self) -> bool:
        """Whether it sets how something is quantized: a type or a granularity."""
        return self.weights is not None or self.activations is not None or self.granularity is not None


def rule_problems(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong with the fields of a rule, and how to put it right."""
    given = [key for key in SETS if values.get(key) is not None]
    if all(values.get(key) is None for key in MATCHES):
        yield "A rule matches nothing", f"Give it {_listed(MATCHES)}."
    if not given:
        yield "A rule sets nothing", f"Give it {_listed(SETS)}."
    searches = [str(found) for found in OF_SCALES if found in (values.get("algorithms") or ())]
    if len(searches) > 1:
        yield f"A rule sets the algorithms {' and '.join(searches)}", "Name one: each looks for the scales of a weight."
    yield from _of_kinds(values, given)


def _of_kinds(values: Mapping[str, Any], given: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What is wrong with each value by itself."""
    if values.get("tensor") is not None:
        for key in (key for key in given if key in _OF_NODES):
            does = "excludes" if key == "exclude" else f"sets {key} for"
            yield f"A rule {does} the tensor '{values['tensor']}'", "Match its node by name, op_type or scope."
    for key, known in (("weights", tuple(ELEMENTS)), ("activations", (FLOAT, *ELEMENTS))):
        if key in given and values[key] not in known:
            yield f"A rule sets the unknown type of {key} '{values[key]}'", nearest(values[key], known)
    if "granularity" in given and block_size_of(values["granularity"]) is None:
        yield f"A rule sets the unknown granularity '{values['granularity']}'", "Use tensor, channel or block:N."
    if "range" in given:
        lo, hi = values["range"]
        if not (math.isfinite(lo) and math.isfinite(hi) and lo < hi):
            yield f"A rule sets the range {[lo, hi]}", "Give [lo, hi], finite and lo below hi."


def _listed(keys: tuple[str, ...]) -> str:
    return f"{', '.join(keys[:-1])} or {keys[-1]}"

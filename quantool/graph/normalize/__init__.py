"""Rewrite a float graph into the forms that planning knows, each rewrite exact up to float rounding."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from quantool.graph.edit import remove_unused_initializers
from quantool.graph.normalize.einsum import write_products
from quantool.graph.normalize.fold_affine import fold_affine
from quantool.graph.normalize.fold_constants import fold_constants
from quantool.graph.normalize.fold_pad import fold_pads
from quantool.graph.normalize.gemm import simplify_gemms
from quantool.graph.normalize.global_pool import write_global_pools
from quantool.graph.normalize.hardswish import wants_hardswish, write_hardswish
from quantool.graph.normalize.identity import drop_identities
from quantool.graph.normalize.matmul_bias import settle_biases
from quantool.graph.normalize.widen import other_floats, widen
from quantool.graph.scopes import paused_collector

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from quantool.graph.model import Model

__all__ = ["PASSES", "normalize", "other_floats", "wants_hardswish"]

PASSES: Final[Mapping[str, Callable[[Model], int]]] = MappingProxyType(
    {
        "widen": widen,
        "drop-identity": drop_identities,
        "fold-constants": fold_constants,
        "einsum": write_products,
        "fold-batchnorm": fold_affine,
        "matmul-bias": settle_biases,
        "gemm": simplify_gemms,
        "fold-pad": fold_pads,
        "global-pool": write_global_pools,
        "hardswish": write_hardswish,
    }
)
"""Name -> rewrite, in the order they run; each returns how many places it changed."""


def normalize(model: Model, *, skip: Collection[str] = ()) -> tuple[str, ...]:
    """Run the passes in place, without those in `skip`; the names of those that changed something, in order.

    Linear in the size of the model. `model.absorbed` and the origins of nodes are kept up to date.
    """
    unknown = sorted(set(skip) - PASSES.keys())
    if unknown:
        raise ValueError(f"unknown passes {unknown}: known are {list(PASSES)}")
    with paused_collector():
        changed = tuple(name for name, rewrite in PASSES.items() if name not in skip and rewrite(model))
        if changed:
            remove_unused_initializers(model.ir.graph)
    return changed

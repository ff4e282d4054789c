"""Names of what a rewriter adds: derived from the tensor or node, made unique by the model's allocator."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import ml_dtypes  # noqa: F401  # registers int4 and its kin as NumPy type names
import numpy as np

from quantool.edits import AddInitializer
from quantool.schema import AnyArray, QuantParams, WeightParams

Fresh = Callable[[str], str]


#: longer names (tf2onnx joins several with semicolons) are cut, since every added node would repeat them
_STEM_LENGTH = 60


def stem(name: str) -> str:
    """The part of a name that new names are made from."""
    return name.split(";")[0][-_STEM_LENGTH:]


@dataclass(slots=True)
class Constants:
    """Collects the initializers of one rewrite, each stored once; `edits` is their list in order."""

    fresh: Fresh
    edits: list[AddInitializer] = field(default_factory=list)
    _known: dict[str, str] = field(default_factory=dict)

    def array(self, key: str, base: str, values: AnyArray) -> str:
        """Store an array under a name made from `base`; the same key gives the same name."""
        stored = np.asarray(values, order="C")
        return self.lazy(key, base, (str(stored.dtype), stored.shape), lambda: stored)

    def parameters(self, key: str, base: str, params: QuantParams, *, scale_type: str = "float32") -> tuple[str, str]:
        """Store scale and zero point of a tensor, equal zero points once; returns their names."""
        zero_point = params.zero_point
        content = f"{params.dtype}|{zero_point.shape}|{hashlib.sha256(zero_point.tobytes()).hexdigest()}"
        return (
            self.array(f"{key}|scale", f"{stem(base)}_scale", params.scale.astype(np.dtype(scale_type), copy=False)),
            self.lazy(
                f"zero point|{content}",
                f"{params.dtype}_zero_point",
                (params.dtype, zero_point.shape),
                lambda: zero_point.astype(np.dtype(params.dtype)),
            ),
        )

    def codes(self, weight: WeightParams, *, transposed: bool = False) -> str:
        """Store a weight's integers, made when the model is written; transposed swaps the last two axes."""
        spec, shape, load = weight.spec, weight.shape, weight.codes
        if transposed:
            shape = (*shape[:-2], shape[-1], shape[-2])
        return self.lazy(
            f"{weight.key}|codes|{transposed}",
            f"{stem(spec.tensor)}_quantized",
            (spec.dtype, shape),
            lambda: load().swapaxes(-1, -2) if transposed else load(),
        )

    def lazy(self, key: str, base: str, form: tuple[str, tuple[int, ...]], load: Callable[[], AnyArray]) -> str:
        """Store what load() gives, of that type and shape, unless the key is known; returns its name."""
        if key not in self._known:
            name = self.fresh(base)
            self._known[key] = name
            self.edits.append(AddInitializer(name=name, dtype=form[0], shape=form[1], load=load))
        return self._known[key]

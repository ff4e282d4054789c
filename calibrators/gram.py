"""The Gram matrix of a layer's inputs, sum of x x^T: what second-order rounding of its weights reads.

Frantar et al., "GPTQ", ICLR 2023, arXiv:2210.17323, equation 1: it is the Hessian of the layer's squared output error.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from calibrators.fixed_point import Float64, GridSums, grid_exponent, on_grid

Float32 = npt.NDArray[np.float32]

#: products of two such numbers, summed over 2^14 rows, are exact in float64 whatever order a matrix product adds in
BITS = 18
_MOST_ROWS = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Gram:
    """Sums of x x^T over the rows x that a layer multiplies, in groups where a convolution has groups.

    Attributes:
        rows: how many rows were counted; rows with NaN or infinity are not.
        sums: int64[groups, d, d] on squared grids of 18 bits, each symmetric.
    """

    rows: int = 0
    sums: GridSums = field(default_factory=GridSums)

    def mean(self) -> Float64:
        """The mean of x x^T, float64[groups, d, d]; [] where every row was zero, or none came."""
        return self.sums.total(bits=BITS, power=2) / max(self.rows, 1)

    def observe(self, rows: Float32) -> Gram:
        """The statistic of everything seen so far and one sample's rows, float32[n, groups, d].

        Rows are rounded to 2^-14 of the sample's largest magnitude or less, so that the sums are exact.
        """
        finite = np.isfinite(rows).all(axis=(1, 2))
        kept = rows if finite.all() else rows[finite]
        result = self.merge(Gram(rows=len(kept)))
        peak = max(float(kept.max(initial=0.0)), -float(kept.min(initial=0.0)))
        if peak == 0.0:
            return result
        exponent = grid_exponent(peak)
        for start in range(0, len(kept), _MOST_ROWS):
            x = on_grid(kept[start : start + _MOST_ROWS], exponent, bits=BITS).transpose(1, 2, 0)
            products = np.matmul(x, x.transpose(0, 2, 1)).astype(np.int64)
            result = result.merge(Gram(sums=GridSums({exponent: products})))
        return result

    def merge(self, other: Gram) -> Gram:
        """The statistic of both together."""
        return Gram(rows=self.rows + other.rows, sums=self.sums.merge(other.sums))

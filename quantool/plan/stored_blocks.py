"""How many weights share a scale in the file, for forms that know blocks of a power of two alone."""

from __future__ import annotations

from typing import Final

from quantool.targets import WeightForm

#: bytes of one scale, for weighing scales against padding
_SCALE_BYTES: Final = 4


def stored_block(length: int, block_size: int, *, bits: int, form: WeightForm) -> int | None:
    """The stored block of a row of `length` weights with a scale for each `block_size` of them (0: for all of them).

    A block that is no power of two, or larger than the form takes, is stored as several with the same scale: the
    numbers stay. A whole row takes the block of the fewest bytes, padding included; of equal ones the largest, which
    runs fastest. None where the form holds no such block.
    """
    if block_size:
        power = min(block_size & -block_size, form.largest_block)
        return power if power >= form.smallest_block else None
    candidates = []
    block = form.smallest_block
    while block <= form.largest_block:
        count = -(-length // block)
        candidates.append((count * (block * bits // 8 + _SCALE_BYTES), -block))
        block *= 2
    return -min(candidates)[1]

"""Arrays that wait in a file: the scales of a large model's blocks would take an eighth of its int4 codes as well."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Final, TypeVar

import numpy as np

from quantool.schema import AnyArray

#: smaller arrays stay in memory
LEAST_BYTES: Final = 64 * 1024

A = TypeVar("A", bound=AnyArray)


def mapped(values: A) -> A:
    """The same values, read-only, mapped from a temporary file without a name; small ones and zeros stay as they are.

    Where the system has no room for the file they stay in memory.
    """
    if values.nbytes < LEAST_BYTES or values.strides == (0,) * values.ndim:
        return values
    try:
        with tempfile.TemporaryFile() as file:
            file.write(np.ascontiguousarray(values).data)
            file.flush()
            os.fsync(file.fileno())  # pages that wait to be written would count as this process's own
            content = mmap.mmap(file.fileno(), values.nbytes, access=mmap.ACCESS_READ)
    except OSError:
        return values
    return np.frombuffer(content, values.dtype).reshape(values.shape)  # type: ignore[return-value]  # the same type

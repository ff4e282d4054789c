"""The ``.qcal`` file: what it holds, and its bytes (its members are described in :mod:`quantool.stats`)."""

from quantool.qcal.contents import Contents
from quantool.qcal.file import decode, write

__all__ = ["Contents", "decode", "write"]

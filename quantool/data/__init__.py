"""Calibration and verification data: readers, checks, and the choice of what verifies."""

from quantool.data.beside import find_beside
from quantool.data.findings import Findings
from quantool.data.held_out import Split, split_feeds
from quantool.data.labels import labels_of
from quantool.data.preprocess import PRESETS
from quantool.data.reads import files_read
from quantool.data.source import FeedSource, open_data
from quantool.data.spec import DataOptions, InputSpec

__all__ = [
    "PRESETS",
    "DataOptions",
    "FeedSource",
    "Findings",
    "InputSpec",
    "Split",
    "files_read",
    "find_beside",
    "labels_of",
    "open_data",
    "split_feeds",
]

"""Boxes out of a text map, as DB (arXiv 1911.08947, section 3.5) makes them, and their F1 against the truth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Box = tuple[float, float, float, float]

MAP_THRESHOLD, BOX_THRESHOLD, UNCLIP_RATIO, SMALLEST_SIDE = 0.3, 0.6, 1.6, 3
MATCH_IOU = 0.5


def components(mask: NDArray[np.bool_]) -> list[tuple[int, int, int, int]]:
    """Return the bounding box (left, top, right, bottom) of each 8-connected region of `mask`: bool[H,W]."""
    parents: list[int] = []
    boxes: list[list[int]] = []

    def root(index: int) -> int:
        while parents[index] != index:
            index = parents[index]
        return index

    above: list[tuple[int, int, int]] = []
    for y, row in enumerate(mask):
        edges = np.flatnonzero(np.diff(np.concatenate(([0], row.astype(np.int8), [0]))))
        current: list[tuple[int, int, int]] = []
        for left, right in edges.reshape(-1, 2).tolist():
            label = len(parents)
            parents.append(label)
            boxes.append([left, y, right, y + 1])
            for start, stop, other in above:
                if start <= right and left <= stop:
                    old, label = label, root(other)
                    if old != label:
                        parents[old] = label
                        box, grown = boxes[old], boxes[label]
                        grown[:2] = min(grown[0], box[0]), min(grown[1], box[1])
                        grown[2:] = max(grown[2], box[2]), max(grown[3], box[3])
            current.append((left, right, label))
        above = current
    return [(b[0], b[1], b[2], b[3]) for index, b in enumerate(boxes) if parents[index] == index]


def text_boxes(scores: NDArray[np.float32]) -> list[Box]:
    """Return the boxes of a text map float32[H,W]; the map shows lines shrunk, so boxes grow back."""
    found: list[Box] = []
    for left, top, right, bottom in components(scores > MAP_THRESHOLD):
        width, height = right - left, bottom - top
        if min(width, height) < SMALLEST_SIDE or scores[top:bottom, left:right].mean() < BOX_THRESHOLD:
            continue
        grow = width * height * UNCLIP_RATIO / (2 * (width + height))
        found.append((left - grow, top - grow, right + grow, bottom + grow))
    return found


def iou(a: Box, b: Box) -> float:
    """Return the shared area of two boxes over the area that they cover together."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0.0) * max(height, 0.0)
    area = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    return shared / area


def matches(found: Sequence[Box], truth: Sequence[Box]) -> int:
    """Return how many boxes of the truth have a found box of their own with an IoU of at least 0.5."""
    free = list(found)
    hits = 0
    for box in truth:
        best = max(free, key=lambda candidate: iou(candidate, box), default=None)
        if best is not None and iou(best, box) >= MATCH_IOU:
            free.remove(best)
            hits += 1
    return hits

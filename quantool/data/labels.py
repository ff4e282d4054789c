"""Labels of samples: arrays under keys that start with ``label``, which no input of the model needs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from quantool.schema import AnyArray, Feed

_LABEL = "label"


class Labelled(dict[str, AnyArray]):
    """A feed that knows its labels; they are no entries, so that models, hashes and statistics do not see them."""

    __slots__ = ("labels",)

    def __init__(self, feed: Feed, labels: Mapping[str, AnyArray]) -> None:
        super().__init__(feed)
        self.labels = labels


def is_label(name: str) -> bool:
    """Whether an array holds labels by its name."""
    return name.startswith(_LABEL)


def labels_of(feed: Feed) -> Mapping[str, AnyArray]:
    """The labels of a feed, none where it has none or they were not read."""
    return feed.labels if isinstance(feed, Labelled) else {}


def labels_in(raw: Mapping[str, object], inputs: Mapping[str, object]) -> dict[str, AnyArray]:
    """The labels among the arrays of a sample; an input of that name is none."""
    return {name: np.asarray(value) for name, value in raw.items() if is_label(str(name)) and name not in inputs}

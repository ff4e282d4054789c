"""The step after each feed of a language model with a KV cache: the next token, with the cache of the run before.

A prompt alone runs a model with an empty cache, and of a merged one the branch without. The float model's outputs hold
what the next step needs: the most likely next token, and the cache. Both models then get the same step, so that their
difference is that of the step. Its activations are those of the same token within a longer prompt, so that ranges
need no such steps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from quantool.data import InputSpec
from quantool.data.decoder_inputs import IDS, MASK, completed, fillable, is_cache
from quantool.data.next_tokens import LOGITS
from quantool.errors import DataError
from quantool.graph.reference import ReferenceSession
from quantool.measured import OutputComparison
from quantool.runtime import Session
from quantool.schema import AnyArray, Feed, Note
from quantool.verify import Comparator

#: how the report names the logits of these steps
DECODED: Final = f"{LOGITS} (decoding)"
#: what stands before the layer in the names of a cache's inputs and outputs
_BEFORE: Final = re.compile(r"^(past|present)(_key_values?)?")


class Decoding:
    """Runs the step after each feed on both models and compares its logits, up to one that the float model refuses."""

    def __init__(self, reference: Session, test: Session | ReferenceSession) -> None:
        self._reference, self._test = reference, test
        self._inputs = [InputSpec(name=p.name, dtype=p.dtype, shape=p.shape) for p in reference.inputs.values()]
        self._comparator = Comparator()
        self._failure: DataError | None = None

    def follow(self, feed: Feed, outputs: Mapping[str, AnyArray], *, sample: int) -> None:
        """Compare the step after a feed, given the float model's outputs for it."""
        step = next_step(feed, outputs, self._inputs)
        if step is None or self._failure is not None:
            return
        try:
            exact = self._reference.run(step, sample=f"{sample}, next token")
        except DataError as error:
            self._failure = error
            return
        found = self._test.run(step, sample=f"{sample}, next token")
        self._comparator.add({LOGITS: exact[LOGITS]}, {LOGITS: found[LOGITS]}, step)

    def outputs(self) -> dict[str, OutputComparison]:
        """The logits of all steps; empty where the model has no cache."""
        found = self._comparator.result()
        return {DECODED: found[LOGITS]} if found else {}

    def notes(self) -> tuple[Note, ...]:
        """A warning where the float model does not run a step."""
        if self._failure is None:
            return ()
        return (
            Note(
                code="decoding-not-compared",
                what=f"the step after a prompt was not compared: {self._failure.what}",
                where=self._failure.where,
                fix="Give shorter samples, or samples of such steps with their cache.",
            ),
        )


def next_step(feed: Feed, outputs: Mapping[str, AnyArray], inputs: Sequence[InputSpec]) -> Feed | None:
    """What a model takes for the most likely next token, after it gave `outputs` for `feed`.

    None where it has no cache, its outputs do not hold the next one, or it takes what does not follow from both.
    """
    names = {spec.name for spec in inputs if is_cache(spec)}
    logits, ids, cache = outputs.get(LOGITS), feed.get(IDS), _next_cache(names, outputs)
    if ids is None or logits is None or logits.ndim != 3 or not logits.shape[1] or cache is None:
        return None
    if {spec.name for spec in inputs if spec.required} - fillable(inputs) != {IDS}:
        return None
    raw: dict[str, AnyArray] = {IDS: np.argmax(logits[:, -1], axis=-1)[:, None].astype(ids.dtype), **cache}
    if MASK in feed:
        mask = feed[MASK]
        raw[MASK] = np.concatenate([mask, np.ones((len(mask), 1), mask.dtype)], axis=1)
    step = completed(raw, inputs, sample="the next token")
    assert isinstance(step, dict)
    return step


def _next_cache(names: set[str], outputs: Mapping[str, AnyArray]) -> dict[str, AnyArray] | None:
    """The cache for the next step: the output of a layer and part for its input; None where one is missing."""
    made = {_BEFORE.sub("", name): array for name, array in outputs.items() if name.startswith("present")}
    found = {name: made.get(_BEFORE.sub("", name)) for name in names}
    known = {name: array for name, array in found.items() if array is not None}
    return known if known and len(known) == len(found) else None

"""Every real model by name."""

from __future__ import annotations

from collections.abc import Callable

from tests.real.model import RealModel
from tests.real.models import (
    basic_pitch,
    chargpt,
    dnsmos,
    layout,
    magika,
    minilm,
    orientation,
    ppocr_cls,
    ppocr_det,
    ppocr_rec,
    silero,
)

ZOO: dict[str, Callable[[], RealModel]] = {
    "ppocr_cls": ppocr_cls.build,
    "ppocr_det": ppocr_det.build,
    "ppocr_rec": ppocr_rec.build,
    "layout": layout.build,
    "magika": magika.build,
    "basic_pitch": basic_pitch.build,
    "silero_seq": silero.build_sequence,
    "silero_if": silero.build_if,
    "silero_nested": silero.build_nested,
    "orientation": orientation.build,
    "chargpt": chargpt.build,
    "minilm": minilm.build,
    "dnsmos": dnsmos.build,
}

#: a minute and more each, with the incumbent: left to long runs
SLOW = frozenset({"ppocr_rec", "layout", "dnsmos"})

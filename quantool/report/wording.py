"""Values in the words that every rendering shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

UNKNOWN = "unknown"


def visible(text: str) -> str:
    """Text on one line whatever a name holds: control, bidirectional and other unprintable signs as escapes."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


#: longer names lose their middle in tables
_LONGEST = 160


def shortened(name: str) -> str:
    """A name on one line whose length a table can bear: both ends of a longer one."""
    text = visible(name)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}...{text[-(_LONGEST // 2) :]}"


def size(size_bytes: int | None) -> str:
    """A file size in decimal units, three digits: ``412 kB``."""
    if size_bytes is None:
        return UNKNOWN
    amount = float(size_bytes)
    for unit in ("B", "kB", "MB"):
        if amount < 999.5:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} GB" if amount < 999.5 else f"{amount:.0f} GB"


def percent(fraction: float | None) -> str:
    """A fraction as per cent; only all is ``100 %`` and only nothing is ``0 %``."""
    if fraction is None:
        return UNKNOWN
    rounded = round(fraction * 100, 1)
    if rounded >= 100 > fraction * 100:
        return "over 99.9 %"
    if rounded <= 0 < fraction:
        return "under 0.1 %"
    return f"{rounded:g} %"


def number(value: float | None) -> str:
    """A number with four digits, ``-`` where there is none."""
    return "-" if value is None else f"{value:.4g}"


def decibel(value: float | None, *, exact: bool = False) -> str:
    """A ratio in dB; an output without any error says so."""
    if exact:
        return "exact"
    return "-" if value is None else f"{value:.1f} dB"


def counts(found: Mapping[str, int]) -> str:
    """Counts by name, the largest first: ``Conv 12, Gemm 1``."""
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{visible(name)} {count}" for name, count in ordered) or "none"


def listing(names: Iterable[str], *, most: int) -> str:
    """Names in their order, the first few and how many more there are."""
    shown = [visible(name) for name in names]
    more = f" and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more


def plural(count: int, noun: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def duration(seconds: float) -> str:
    """A time in its two largest units: ``0.34 s``, ``41 s``, ``2 min 5 s``, ``1 h 30 min``."""
    if seconds < 9.95:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"

"""The errors a user can meet: each says what happened, where, and how to fix it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from quantool.report.model import Report


class QuantoolError(Exception):
    """An error with a stable code, what went wrong, where, and how to fix it.

    Attributes:
        code: stable lower-case identifier such as ``unknown-option``; scripts may match on it.
        what: the problem, with the offending value.
        where: the file, node, tensor, input or option concerned.
        fix: what the user can do about it.
        exit_code: the exit status of the command line (DESIGN: 1 gate, 2 usage or input, 3 no result).
        report: the report of the run up to the failure, or None.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, code: str, what: str, *, where: str, fix: str, report: Report | None = None) -> None:
        self.code = code
        self.what = what
        self.where = where
        self.fix = fix
        self.report = report
        super().__init__(code, what, where, fix)

    def __str__(self) -> str:
        return f"{self.code}: {self.what} [{self.where}] {self.fix}"

    def to_dict(self) -> dict[str, str]:
        """The four texts, as they stand in ``errors`` of the JSON report."""
        return {"code": self.code, "what": self.what, "where": self.where, "fix": self.fix}

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the four texts, so that an error can leave the process that met it; the report stays there."""
        return _restored, (type(self), self.to_dict())


def _restored(kind: type[QuantoolError], texts: dict[str, str]) -> QuantoolError:
    return kind(texts["code"], texts["what"], where=texts["where"], fix=texts["fix"])


class ModelError(QuantoolError):
    """The model file cannot be used."""


class DataError(QuantoolError):
    """Calibration or verification data cannot be used."""


class RecipeError(QuantoolError):
    """A recipe file has unknown keys, wrong values or contradicts itself."""


class OptionError(QuantoolError):
    """An option has an unknown or impossible value."""


class GateError(QuantoolError):
    """A gate that the user set does not hold."""

    exit_code = 1


class NothingQuantizedError(QuantoolError):
    """No node could be quantized; the report lists every node with its reason."""

    exit_code = 3


class VerificationError(QuantoolError):
    """The result failed the run's own check, so nothing was published.

    Attributes:
        nodes: names of the nodes that run in float although the plan quantizes them.
    """

    exit_code = 3
    nodes: tuple[str, ...] = ()

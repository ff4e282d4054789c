"""What a command is: what it takes, what it was given, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from quantool.cli.options import OPTIONS, RECIPE_OPTIONS, Option
from quantool.errors import OptionError

if TYPE_CHECKING:
    from quantool.recipe import Recipe
    from quantool.report.console import Screen
    from quantool.report.model import Report
    from quantool.requests import DataSource

Number = TypeVar("Number", int, float)

#: the arguments and options that name one file to read
_READ: Final = ("model", "float_model", "quantized_model", "report_file", "recipe", "ranges", "baseline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The arguments and options of one call; what was not given is None. line: the whole command line."""

    command: str
    values: Mapping[str, object]
    terminal: bool
    line: str = ""

    def text(self, name: str) -> str:
        """A required text."""
        return str(self.values[name])

    def flag(self, name: str) -> bool:
        """Whether a flag was given."""
        return bool(self.values.get(name))

    def texts(self, name: str) -> tuple[str, ...]:
        """The values of a repeatable option."""
        found = self.values.get(name)
        return tuple(str(value) for value in found) if isinstance(found, list) else ()

    def path(self, name: str) -> Path | None:
        """A file, or None."""
        found = self.values.get(name)
        return None if found is None else Path(str(found))

    def paths(self, name: str) -> tuple[Path, ...]:
        """The files of a repeatable option."""
        return tuple(Path(text) for text in self.texts(name))

    def data(self, name: str = "data") -> DataSource | None:
        """Data as the pipeline takes it: None, one source, or several."""
        found = self.texts(name)
        return found if len(found) > 1 else next(iter(found), None)

    def recipe(self) -> Recipe:
        """The recipe file, if any, under the options given."""
        from quantool.recipe import from_options

        options = {name: self._value(name) for name in RECIPE_OPTIONS}
        return from_options(options, self.path("recipe"))

    def _value(self, name: str) -> object:
        """An option with its numbers converted."""
        found, kind = self.values.get(name), OPTIONS[name].kind
        return found if not isinstance(found, str) or kind is str else self.number(name, kind)

    def number(self, name: str, kind: type[Number]) -> Number | None:
        """An option's number, or None."""
        found = self.values.get(name)
        if found is None:
            return None
        try:
            return kind(str(found))
        except ValueError:
            flag, wanted = "--" + name.replace("_", "-"), "a whole number" if kind is int else "a number"
            raise OptionError("bad-value", f"{flag} is '{found}'", where=flag, fix=f"Give {wanted}.") from None

    def reads(self) -> tuple[Path, ...]:
        """The files that the run reads, as far as the command line names them."""
        from quantool.data import files_read

        named = (self.values.get(name) for name in _READ)
        return files_read(*named, *(self.texts(name) for name in ("data", "verify_data", "eval", "files")))

    @property
    def detailed(self) -> bool:
        """Whether what takes extra runs of the model to find out is wanted: where a document or page is."""
        return self.flag("json") or bool(self.texts("report"))

    @property
    def model(self) -> str | None:
        """The model that the command is about, as far as it names one."""
        found = self.values.get("model", self.values.get("quantized_model"))
        return None if found is None else str(found)

    @property
    def progress(self) -> bool:
        """Whether progress bars are wanted."""
        return self.terminal and not self.flag("quiet") and not self.flag("json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a command gives back. document: the --json document; show: fills the page that people read."""

    exit_code: int
    document: Callable[[], Mapping[str, object]]
    show: Callable[[Screen], None]
    report: Report | None = None

    def asked_by(self, line: str) -> Outcome:
        """The outcome with the command line that led to it in its report."""
        if self.report is None:
            return self
        report = replace(self.report, command_line=line)
        return replace(self, report=report, document=report.to_dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command of the command line. own: options that it alone has, or that mean something else to it."""

    name: str
    help: str
    example: str
    arguments: tuple[str, ...]
    options: tuple[str, ...]
    run: Callable[[Given], Outcome]
    own: Mapping[str, Option] = field(default_factory=dict)

    @property
    def table(self) -> Mapping[str, Option]:
        """Its options in order."""
        return {name: self.own.get(name) or OPTIONS[name] for name in self.options}


def outcome_of(report: Report, show: Callable[[Screen], None]) -> Outcome:
    """The outcome that a report tells."""
    return Outcome(exit_code=report.exit_code, document=report.to_dict, show=show, report=report)


def envelope(command: str, content: Mapping[str, object]) -> dict[str, object]:
    """The document of a command that makes no Report."""
    from quantool.report.model import SCHEMA, Status

    return {
        "schema": SCHEMA,
        "command": command,
        "status": str(Status.DONE),
        "exit_code": 0,
        **content,
        "errors": [],
    }

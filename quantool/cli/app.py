"""The application: builds the commands, runs one, and turns whatever happens into output and an exit code."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final, cast

import typer
from typer.core import TyperCommand

from quantool.cli import (
    calibrate,
    check,
    compare,
    explain,
    inspect,
    merge,
    quantize,
    recipe,
    report,
    sensitivity,
    targets,
    tensor,
    tune,
)
from quantool.cli.command import Command, Given
from quantool.cli.options import PANELS, RUN, signature
from quantool.cli.outcome import failure, finish, interrupted
from quantool.errors import OptionError

COMMANDS: Final[dict[str, Command]] = {
    command.name: command
    for command in (
        *(module.COMMAND for module in (quantize, explain, inspect, compare, check, report)),
        *(module.COMMAND for module in (sensitivity, calibrate, merge)),
        *recipe.COMMANDS,
        *(module.COMMAND for module in (tune, targets, tensor)),
    )
}

#: the first words of commands that have two, and what their help says
GROUPS: Final = {"recipe": "Show, export or check a recipe."}

EXIT_CODES: Final = """\b
Exit codes:
  0  done, and every gate holds
  1  a gate failed: nothing is written, unless --keep
  2  usage, or a file, recipe or data that cannot be used
  3  nothing could be quantized, or the result failed its own check"""

HELP: Final = "Quantize float ONNX models, and prove on real samples what that cost."

UsageError: Final = cast("type[Exception]", typer.BadParameter.__bases__[0])
"""The parser's own error. Typer brings the parser along, at a place that differs between its versions."""


class GroupedCommand(TyperCommand):
    """A command whose help lists its options under headings."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line; newer versions of Typer put what is required in braces, which mean a choice."""
        return [re.sub(r"^\{(\w+)\}", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:  # the parser's types move between versions
        """Write a section a heading."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and parameter.param_type_name == "option":
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or RUN, []).append(record)
        for panel in sorted(sections, key=PANELS.index):
            records = sections[panel]
            with formatter.section(panel):
                formatter.write_dl(records)


def run(arguments: Sequence[str]) -> int:
    """Run one command line; gives the exit code, and never raises for what a user can meet."""
    as_json = "--json" in arguments  # even where a mistake makes it the value of another option
    line = shlex.join(("quantool", *arguments))
    parser = typer.main.get_command(application(as_json=as_json, line=line))
    try:
        code = parser.main(list(arguments), prog_name="quantool", standalone_mode=False)
    except UsageError as error:
        given = Given(command=_named(arguments), values={"json": as_json}, terminal=False, line=line)
        context = getattr(error, "ctx", None)
        where = "quantool" if context is None else str(context.command_path)
        what = str(getattr(error, "format_message", error.__str__)())
        return finish(given, failure(given, OptionError("usage", what, where=where, fix=f"See '{where} --help'.")), ())
    except typer.Abort:
        return 130
    return code if isinstance(code, int) else 0


def application(*, as_json: bool = False, line: str = "") -> typer.Typer:
    """The Typer application with every command; plain help, because rich would double its time. line: as it is run."""
    app = typer.Typer(help=HELP, epilog=EXIT_CODES, rich_markup_mode=None)
    app.callback()(_options_of_the_program)
    apps = {"": app}
    for command in COMMANDS.values():
        group, _, name = command.name.rpartition(" ")
        if group not in apps:
            apps[group] = typer.Typer(help=GROUPS[group], epilog=EXIT_CODES, rich_markup_mode=None)
            app.add_typer(apps[group], name=group)
        apps[group].command(
            name,
            cls=GroupedCommand,
            help=command.help,
            epilog=f"\b\nExample:\n  {command.example}\n\n{EXIT_CODES}",
        )(_entry(command, as_json=as_json, line=line))
    return app


def _named(arguments: Sequence[str]) -> str:
    """The command that a line names, as far as it names one."""
    words = [word for word in arguments if not word.startswith("-")]
    pairs = (f"{first} {second}" for first, second in pairwise(words))
    return next((name for name in (*pairs, *words) if name in COMMANDS or name in GROUPS), "")


def _options_of_the_program(
    version: bool = typer.Option(False, "--version", help="Print the version."),
) -> None:
    """Take what stands before the command; ``--version`` never gets here, it is answered without a parser."""


def execute(command: Command, given: Given) -> int:
    """Run a command to its end: result to stdout, errors to stderr, reports to their files; gives the exit code."""
    from quantool.report.write import check_paths

    reports = given.paths("report")
    try:
        check_paths(reports, output=given.path("output"), reads=given.reads(), force=given.flag("force"))
    except OptionError as error:
        return finish(given, failure(given, error), ())
    try:
        outcome = command.run(given)
    except Exception as error:  # whatever it is: one clear error, in the reports too, and never a traceback
        outcome = failure(given, error)
    except KeyboardInterrupt as stop:
        return interrupted(stop)
    try:
        return finish(given, outcome, reports)
    except Exception as error:  # a rendering that fails is a defect to be told in the same way
        return finish(given, failure(given, error), ())


def _entry(command: Command, *, as_json: bool, line: str) -> Callable[..., int]:
    def entry(**values: object) -> int:
        given = Given(command=command.name, values={**values, "json": as_json}, terminal=sys.stderr.isatty(), line=line)
        return execute(command, given)

    entry.__signature__ = signature(command.arguments, command.table)  # type: ignore[attr-defined]  # read by Typer
    return entry

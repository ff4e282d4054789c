"""What it takes to repeat a run: the recipe as TOML, hashes, versions and the machine."""

from __future__ import annotations

from quantool.errors import QuantoolError
from quantool.recipe import from_options, to_toml
from quantool.report.model import Report
from quantool.report.summary import Fact
from quantool.report.wording import plural, visible


def recipe_text(report: Report) -> str:
    """The recipe as the TOML that repeats the run; "" where all is default or nothing is known."""
    if report.recipe is None or report.command == "compare":
        return ""
    try:
        text = to_toml(from_options(dict(report.recipe)))
    except QuantoolError:  # of another version of the tool: shown as it stands
        text = "\n".join(f"{key} = {value!r}" for key, value in report.recipe.items() if value not in (None, [], False))
    return "\n".join(visible(line) for line in text.splitlines())


def origin(report: Report) -> tuple[Fact, ...]:
    """Hashes, versions and the environment of the run."""
    facts = []
    if report.model is not None and report.model.sha256 is not None:
        facts.append(Fact("model sha256", report.model.sha256))
    if report.output is not None and report.output.sha256:
        facts.append(Fact("output sha256", report.output.sha256))
    found = report.environment
    if found is None:
        return tuple(facts)
    versions = (f"{visible(name)} {visible(version)}" for name, version in found.versions.items())
    facts.append(Fact("versions", ", ".join((*versions, f"Python {visible(found.python)}"))))
    facts.append(Fact("system", f"{visible(found.system)}, {visible(found.machine)}"))
    cores = None if found.cpus is None else plural(found.cpus, "CPU")
    processor = ", ".join(part for part in (visible(found.cpu or ""), cores) if part)
    threads = "" if not found.threads else f", {plural(found.threads, 'thread')}"
    facts.append(Fact("processor", f"{processor or 'unknown'}{threads or ', threads chosen by the runtime'}"))
    return tuple(facts)

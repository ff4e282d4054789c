"""The report as JUnit XML: each gate is a test case, and so is the run itself."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from quantool.recipe import option_flag
from quantool.report.changes import changes_of, sentence, title
from quantool.report.model import Gate, Report, Status
from quantool.report.repeat import origin
from quantool.report.summary import data_line, facts, headline
from quantool.report.wording import UNKNOWN, number, visible


def render(report: Report) -> str:
    """JUnit XML that CI systems read. A failed gate is a failure, any other error an error of the run."""
    changes = changes_of(report)
    errors = () if report.status == Status.GATE_FAILED and (report.gates or changes) else report.errors
    failed = sum(not gate.passed for gate in report.gates) + sum(not change.passed for change in changes)
    totals = {"tests": str(1 + len(report.gates) + len(changes)), "failures": str(failed), "errors": str(len(errors))}
    root = ET.Element("testsuites", {"name": "quantool", **totals})
    suite = ET.SubElement(root, "testsuite", {"name": f"quantool {report.command}", **totals})
    properties = ET.SubElement(suite, "properties")
    for fact in (*facts(report), *origin(report)):
        ET.SubElement(properties, "property", {"name": fact.label, "value": fact.value})
    run = ET.SubElement(suite, "testcase", {"classname": "quantool", "name": report.command})
    for error in errors:
        shown = ET.SubElement(run, "error", {"type": visible(error.code), "message": visible(error.what)})
        shown.text = f"where: {visible(error.where)}\nfix: {visible(error.fix)}"
    told = (data_line(report), headline(report), *(f"warning: {visible(note.what)}" for note in report.warnings))
    ET.SubElement(run, "system-out").text = "\n".join(filter(None, told))
    for gate in report.gates:
        _gate(suite, gate)
    for change in changes:
        case = ET.SubElement(suite, "testcase", {"classname": "quantool.check", "name": title(change)})
        if not change.passed:
            message = sentence(change)
            ET.SubElement(case, "failure", {"type": "regression", "message": message}).text = message
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _gate(suite: ET.Element, gate: Gate) -> None:
    case = ET.SubElement(suite, "testcase", {"classname": "quantool.gates", "name": gate.name})
    if gate.passed:
        return
    value = UNKNOWN if gate.value is None else number(gate.value)
    message = f"{option_flag(gate.name)} is {value}, the limit is {number(gate.limit)}"
    ET.SubElement(case, "failure", {"type": "gate", "message": message}).text = message

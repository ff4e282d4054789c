"""The JSON Schema of the document that a report makes.

It is published as the file ``schema.json`` beside this module, which ``python -m quantool.report.json_schema`` writes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from importlib import resources
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from quantool.report.model import SCHEMA, Report

#: what every command prints with --json; a Report holds all of its own keys besides
ENVELOPE: Final = ("schema", "command", "status", "exit_code", "errors")
_PLAIN: Final = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}


def published_schema() -> dict[str, Any]:
    """The JSON Schema as it was released."""
    text = resources.files("quantool.report").joinpath("schema.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def document_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of ``quantool/1``, made from the fields of Report.

    Later versions add keys at the end and keep those that there are, so unknown keys are allowed.
    """
    definitions: dict[str, Any] = {}
    report = _object(Report, definitions)
    report["properties"] = {"schema": {"const": SCHEMA}, **report["properties"]}
    report["required"] = ["schema", *report["required"]]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{SCHEMA.replace('/', ':')}",
        "title": "Report of quantool",
        "description": "What --json prints and --report FILE.json writes, on failure too. NaN and infinity are null.",
        **report,
        "$defs": dict(sorted(definitions.items())),
    }


def _object(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    names = [spec.name for spec in fields(kind)]
    return {
        "type": "object",
        "properties": {name: _schema(hints[name], definitions) for name in names},
        "required": names,
    }


def _schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of one type: what a frozen dataclass may hold."""
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if get_origin(hint) in (Union, UnionType):
        if all(part in _PLAIN for part in get_args(hint)):
            return {"type": [_PLAIN[part] for part in get_args(hint)]}
        return {"anyOf": [_schema(part, definitions) for part in get_args(hint)]}
    if get_origin(hint) is tuple:
        return _array(get_args(hint), definitions)
    if get_origin(hint) is not None and issubclass(get_origin(hint), Mapping):
        return {"type": "object", "additionalProperties": _schema(get_args(hint)[1], definitions)}
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return {"enum": [str(member) for member in hint]}
    if isinstance(hint, type) and is_dataclass(hint):
        if hint.__name__ not in definitions:
            definitions[hint.__name__] = {}  # stands for itself while it is made
            definitions[hint.__name__] = _object(hint, definitions)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    assert hint is object, f"the schema has no word for {hint}"
    return {}


def _array(parts: tuple[Any, ...], definitions: dict[str, Any]) -> dict[str, Any]:
    if parts[1:] == (...,):
        return {"type": "array", "items": _schema(parts[0], definitions)}
    items = [_schema(part, definitions) for part in parts]
    return {"type": "array", "prefixItems": items, "minItems": len(parts), "maxItems": len(parts)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(document_schema(), indent=1) + "\n")

"""The layers of the packages: imports go downward only, without cycles, heavy packages from one place each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = (
    {"elements", "edits", "errors", "schema", "measured", "kernels", "version", "values"},
    {"calibrators", "formulas", "ops", "targets", "recipe", "data", "metrics"},
    {"graph", "runtime"},
    {"plan", "collect", "stats", "qcal", "solve", "algorithms", "rewrite", "verify"},
    {"pipeline", "regression", "report", "requests"},
    {"cli", "api"},
    {"__main__", "__init__"},
)
LAYER = {part: depth for depth, parts in enumerate(LAYERS) for part in parts}
HOME = {
    "onnx": "quantool.graph",
    "onnx_ir": "quantool.graph",
    "onnxruntime": "quantool.runtime",
    "rich": "quantool.report.console",
}
NUMERIC = ("numpy", "ml_dtypes", "quantool.elements", "quantool.kernels", "quantool.schema")
PURE = {"quantool.kernels": NUMERIC, "calibrators": (*NUMERIC, "quantool.errors", "calibrators")}
HEAVY = {"onnx", "onnx_ir", "onnxruntime", "numpy", "ml_dtypes", "rich", "jinja2", "msgspec", "tqdm"}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("quantool", "calibrators")
    for path in sorted((ROOT / package).rglob("*.py"))
}


def within(module: str, package: str) -> bool:
    """Whether a module is a package or lies in it."""
    return module == package or module.startswith(package + ".")


def statements(node: ast.AST, *, deep: bool) -> Iterator[ast.AST]:
    """The statements that run: not those for type checkers, and inside functions only if `deep`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            yield from (part for statement in child.orelse for part in statements(statement, deep=deep))
        elif deep or not isinstance(child, ast.FunctionDef | ast.Lambda):
            yield child
            yield from statements(child, deep=deep)


@cache
def imports(module: str, *, deep: bool = True) -> frozenset[str]:
    """The modules that a module imports: submodules where names are taken from a package."""
    found: set[str] = set()
    for node in statements(ast.parse(MODULES[module].read_text(encoding="utf-8")), deep=deep):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            taken = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else str(node.module) for name in taken}
    return frozenset(found)


def part_of(module: str) -> str:
    """The part of the layout that a module belongs to."""
    names = module.split(".")
    return names[0] if names[0] == "calibrators" else names[1] if len(names) > 1 else "__init__"


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_downward_only(module: str) -> None:
    ours = [name for name in imports(module) if name in MODULES]
    upward = [name for name in ours if LAYER[part_of(name)] > LAYER[part_of(module)]]
    assert upward == []


def test_there_are_no_cycles() -> None:
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join((*trail, module))
        if module not in done:
            for name in sorted(imports(module) & MODULES.keys() - {module}):
                visit(name, (*trail, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())


@pytest.mark.parametrize("module", MODULES)
def test_heavy_packages_are_imported_in_their_one_home(module: str) -> None:
    roots = {name.split(".")[0] for name in imports(module)}
    assert [root for root in roots & HOME.keys() if not within(module, HOME[root])] == []


@pytest.mark.parametrize("module", [name for name in MODULES if any(within(name, pure) for pure in PURE)])
def test_kernels_and_calibrators_are_pure_numpy(module: str) -> None:
    allowed = next(allowed for pure, allowed in PURE.items() if within(module, pure))
    ours = [name for name in imports(module) if name.split(".")[0] in HEAVY | {"quantool", "calibrators"}]
    assert [name for name in ours if not any(within(name, package) for package in allowed)] == []


@pytest.mark.parametrize("start", ["quantool", "quantool.__main__", "quantool.cli.app"])
def test_starting_imports_nothing_heavy(start: str) -> None:
    reached, todo = set[str](), [start]
    while todo:
        module = todo.pop()
        reached.add(module)
        todo += [name for name in imports(module, deep=False) if name in MODULES and name not in reached]
    heavy = {name for module in reached for name in imports(module, deep=False) if name.split(".")[0] in HEAVY}
    assert heavy == set()


def test_every_part_of_the_layout_is_known() -> None:
    assert {part_of(module) for module in MODULES} - LAYER.keys() == set()

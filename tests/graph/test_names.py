"""Unique names, the order of nodes, and what importing the package costs."""

from __future__ import annotations

import subprocess
import sys

import onnx
from hypothesis import given
from hypothesis import strategies as st

from quantool.graph.names import UniqueNames, inner_scope, name_nodes
from quantool.graph.wellformed import check, sort
from tests.graph.float_runs import parse

short = st.text(alphabet="ab_1", max_size=4)


@given(st.lists(short), st.lists(short))
def test_claimed_names_are_unique_and_keep_what_is_free(reserved: list[str], wanted: list[str]) -> None:
    names = UniqueNames(reserved)
    claimed = [names.claim(name) for name in wanted]
    assert len({*claimed, *reserved}) == len(claimed) + len(set(reserved))
    for name, unique in zip(wanted, claimed, strict=True):
        assert unique == name or unique.startswith(f"{name}_")
    first_wishes = dict.fromkeys(wanted)
    taken = set(reserved)
    for name, unique in zip(wanted, claimed, strict=True):
        if name in first_wishes and name not in taken:
            assert unique == name
        taken.add(unique)


@given(st.lists(st.sampled_from(["", "n", "n_1", "Abs:t0", "Abs:t1"]), min_size=1, max_size=8))
def test_every_node_gets_a_name_and_the_first_bearer_keeps_it(given_names: list[str]) -> None:
    nodes = [onnx.helper.make_node("Abs", [f"t{i}"], [f"t{i + 1}"], name=n) for i, n in enumerate(given_names)]
    graph = onnx.helper.make_graph(nodes, "g", [], [])
    rows = name_nodes(graph)
    names = [node.name for node in graph.node]
    assert [row.name for row in rows] == names
    assert all(names)
    assert len(set(names)) == len(names)
    for name in set(given_names) - {""}:
        assert names[given_names.index(name)] == name


def test_scopes_are_paths() -> None:
    assert inner_scope("", "if_1", "then_branch") == "if_1/then_branch"
    assert inner_scope("loop/body", "if_1", "then_branch") == "loop/body/if_1/then_branch"


@given(st.permutations(range(6)))
def test_nodes_are_sorted_by_what_they_read(order: list[int]) -> None:
    model = parse("""<ir_version: 8, opset_import: ["": 17]>
        g (float[N] x, bool c) => (float[N] y) {
            a = Abs (x)
            b = Neg (a)
            d = If (c) < then_branch = t () => (float[N] o) { o = Add (e, b) },
                         else_branch = f () => (float[N] o) { o = Neg (b) } >
            e = Exp (a)
            g = Sub (d, e)
            y = Add (g, b)
        }""")
    nodes = [onnx.NodeProto.FromString(model.graph.node[i].SerializeToString()) for i in order]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    check(model)
    sort(model.graph)
    place = {name: i for i, node in enumerate(model.graph.node) for name in node.output}
    reads = {"b": "a", "e": "a", "g": "de", "d": "be", "y": "gb"}
    for name, earlier in reads.items():
        assert all(place[read] < place[name] for read in earlier)


def test_a_good_order_is_kept() -> None:
    model = parse("""<ir_version: 8, opset_import: ["": 17]>
        g (float[N] x) => (float[N] y) { b = Neg (x)  a = Abs (x)  y = Add (a, b) }""")
    before = model.SerializeToString(deterministic=True)
    sort(model.graph)
    assert model.SerializeToString(deterministic=True) == before


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, quantool.graph; print([m for m in ('onnx', 'onnx_ir', 'onnxruntime') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"

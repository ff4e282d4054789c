"""--target-size: the bytes of the whole result, the types that are mixed for it, and what cannot be reached."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quantool
from pipeline.bed import Shell, model, normal, save
from pipeline.test_weight_only import block, correlated
from quantool.errors import OptionError, QuantoolError, RecipeError
from quantool.pipeline.choice.levels import Item, least_error
from quantool.recipe import Recipe, from_options
from quantool.requests import QuantizeResult
from quantool.schema import Mode

SIZE = 256


def tower(layers: int = 6) -> onnx.ModelProto:
    """Products of unequal sensitivity: every other weight is spiky, so that its blocks lose more."""
    lines, constants, last = [], {}, "x"
    for i in range(layers):
        weight = normal(SIZE, SIZE, seed=i, scale=0.06)
        if i % 2:
            weight[::16] *= 12
        constants[f"w{i}"] = weight
        lines.append(f"[p{i}] h{i} = MatMul({last}, w{i})")
        last = f"h{i}"
    body = " ".join(lines).replace(f"h{layers - 1} =", "y =")
    return model(f"(float[N,{SIZE}] x) => (float[N,{SIZE}] y) {{ {body} }}", constants)


def size_of(result: QuantizeResult) -> int:
    return len(result.model.SerializeToString())


def types_of(result: QuantizeResult) -> Counter[str]:
    return Counter(row.dtype for row in result.report.tensors)


@pytest.mark.parametrize("bits", [5.7, 6.5, 7.5])
def test_the_result_takes_what_was_asked_for_and_most_of_it(bits: float) -> None:
    proto = tower()
    result = quantool.quantize(proto, target_size=f"{bits}bpw", effort="fast")
    found = 8 * size_of(result) / (6 * SIZE * SIZE)
    assert bits - 0.75 <= found <= bits
    assert set(types_of(result)) == {"int4", "int8"}
    assert f"It takes {found:.2f} bits per weight" in (result.report.verdict or "")
    assert (result.report.recipe or {})["mode"] == "weight-only"


def test_wider_types_go_where_errors_are_dearest() -> None:
    result = quantool.quantize(tower(), target_size="6.8bpw", effort="fast")
    wide = {row.name for row in result.report.tensors if row.dtype == "int8"}
    assert wide == {"w1", "w3", "w5"}


@pytest.mark.parametrize("effort", ["fast", "balanced"])
def test_samples_say_which_errors_matter(effort: str) -> None:
    data = correlated(40)
    narrow = quantool.quantize(block(), data=data, mode="weight-only", weights="int4", effort=effort)
    mixed = quantool.quantize(block(), data=data, target_size="7bpw", effort=effort)
    wide = quantool.quantize(block(), data=data, mode="weight-only", weights="int8", effort=effort)
    assert size_of(narrow) < size_of(mixed) < size_of(wide)
    noise = [
        result.report.verification.outputs["y"].sqnr_db or 0.0
        for result in (narrow, mixed, wide)
        if result.report.verification is not None
    ]
    assert noise[0] + 1 < noise[1] < noise[2] + 1


def test_room_for_everything_gives_the_widest_type_everywhere() -> None:
    result = quantool.quantize(tower(2), target_size="10M", effort="fast")
    assert types_of(result) == {"int8": 2}


def test_three_types_are_mixed_from_two_bits_up() -> None:
    result = quantool.quantize(tower(), target_size="5bpw", weights="uint2", effort="fast", verify=False)
    assert set(types_of(result)) >= {"uint2", "uint8"} or set(types_of(result)) >= {"uint2", "uint4"}
    assert 8 * size_of(result) / (6 * SIZE * SIZE) <= 5


def test_a_target_that_cannot_be_reached_names_the_least_that_can() -> None:
    proto = tower()
    with pytest.raises(OptionError, match="cannot be reached: with every weight in int4") as caught:
        quantool.quantize(proto, target_size="2bpw", effort="fast")
    assert caught.value.code == "target-size-unreachable"
    least = caught.value.fix.split("Give ")[1].split(" or ")
    for target in (least[0], least[1].split(" ")[0]):
        assert size_of(quantool.quantize(proto, target_size=target, effort="fast")) <= size_of(
            quantool.quantize(proto, mode="weight-only", weights="int4", effort="fast")
        )


def test_rules_of_the_user_win() -> None:
    rule = {"name": "p1", "weights": "int4"}
    result = quantool.quantize(tower(), target_size="9bpw", effort="fast", rules=[rule])
    assert {row.name for row in result.report.tensors if row.dtype == "int4"} == {"w1"}


def test_the_recipe_of_the_report_repeats_the_run() -> None:
    first = quantool.quantize(tower(), target_size="6bpw", effort="fast")
    again = quantool.quantize(tower(), recipe=first.report.recipe)
    assert again.model.SerializeToString() == first.model.SerializeToString()


def test_external_data_counts_too(shell: Shell) -> None:
    save(tower(), Path("m.onnx"))
    ran = shell("quantize m.onnx --target-size 400K --effort fast -o out.onnx --json")
    assert ran.code == 0, ran.err
    assert ran.document["output"]["size_bytes"] <= 400 * 1024


@pytest.mark.parametrize("text", ["4.5", "0bpw", "4.5bits", "-1G", "0K", "many", "4.5 GB/s"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(QuantoolError, match=r"Give a size with its unit, such as 500M or 4\.5G"):
        from_options({"target_size": text})


@pytest.mark.parametrize("text", ["500M", "4.5G", "4.5GB", "4.5bpw", "3BPW", "700K"])
def test_sizes_and_bits_per_weight_are_taken(text: str) -> None:
    recipe = from_options({"target_size": text})
    assert (recipe.target_size, recipe.mode, recipe.weights) == (text, Mode.WEIGHT_ONLY, "int4")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "static"}, "types are mixed where weights alone are quantized"),
        ({"mode": "dynamic"}, "types are mixed where weights alone are quantized"),
        ({"weights": "float8_e4m3fn"}, "mixes integers"),
        ({"format": "qoperator"}, "QOperator"),
    ],
)
def test_what_it_does_not_go_with_is_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        from_options({"target_size": "5bpw", **options})
    with pytest.raises(RecipeError, match=words):
        from_options({}, {"target_size": "5bpw", **options})
    assert Recipe().target_size is None


# --- which level for which weight -----------------------------------------------------------------------


def draw_items(levels: int) -> st.SearchStrategy[list[Item]]:
    steps = st.lists(st.tuples(st.integers(1, 50), st.floats(0.0, 1.0)), min_size=levels, max_size=levels)

    def item(found: list[tuple[int, float]]) -> Item:
        sizes, errors = [found[0][0]], [found[0][1] + 1]
        for size, share in found[1:]:
            sizes.append(sizes[-1] + size)
            errors.append(errors[-1] * share)
        return Item(sizes=tuple(sizes), errors=tuple(errors))

    return st.lists(steps.map(item), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(items=st.one_of(draw_items(2), draw_items(3)), share=st.floats(0.0, 1.0))
def test_levels_fit_and_come_near_the_best_of_all(items: list[Item], share: float) -> None:
    least, most = (sum(item.sizes[level] for item in items) for level in (0, -1))
    budget = least + int(share * (most - least))
    found = least_error(items, budget)
    options = [
        levels
        for levels in product(*(range(len(item.sizes)) for item in items))
        if sum(item.sizes[level] for item, level in zip(items, levels, strict=True)) <= budget
    ]
    assert tuple(found) in options
    errors = [sum(item.errors[level] for item, level in zip(items, levels, strict=True)) for levels in options]
    reached = sum(item.errors[level] for item, level in zip(items, found, strict=True))
    # Steps by density lose at most the gain of the one item that did not fit any more.
    assert reached - min(errors) <= max(item.errors[0] - item.errors[-1] for item in items) + 1e-9


def test_equal_weights_are_widened_in_their_order() -> None:
    items = [Item(sizes=(10, 20), errors=(1.0, 0.0))] * 4
    assert least_error(items, 60) == [1, 1, 0, 0]


def test_explain_says_what_it_leaves_to_the_run(shell: Shell) -> None:
    save(tower(), Path("m.onnx"))
    common = "explain m.onnx --mode weight-only --weights int4 --json"
    mixed = shell(f"{common} --target-size 5bpw").document["verdict"]
    assert "which weights become wider, to use the size, is decided when they are quantized" in mixed
    assert "may keep" not in shell(common).document["verdict"]
    assert "may keep some of them in float" in shell("explain m.onnx --json").document["verdict"]

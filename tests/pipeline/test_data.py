"""Where samples come from, which of them verify, and that each source is read once and as it comes."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

import quantool
from pipeline.bed import Ran, Shell, feeds, images
from quantool.errors import DataError
from quantool.schema import AnyArray

BESIDE = {
    "m.calib.npz": lambda: np.savez("m.calib.npz", image=images(24)),
    "m.calib": lambda: _folder(Path("m.calib")),
    ".": lambda: _data_sets(Path()),
}


def _folder(path: Path) -> None:
    path.mkdir()
    for number, feed in enumerate(feeds()):
        np.savez(path / f"{number}.npz", **feed)


def _data_sets(path: Path) -> None:
    for number, feed in enumerate(feeds()):
        (path / f"test_data_set_{number}").mkdir()
        tensor = onnx.numpy_helper.from_array(feed["image"], "image")
        (path / f"test_data_set_{number}/input_0.pb").write_bytes(tensor.SerializeToString())


# --- data beside the model, and random data -------------------------------------------------------------


@pytest.mark.parametrize("where", BESIDE)
def test_data_beside_the_model_is_used_and_the_first_line_says_so(ready: Shell, where: str) -> None:
    BESIDE[where]()
    ran = ready("quantize m.onnx")
    first = " ".join(ran.out.splitlines()[:2])
    assert first.startswith(f"Data: {where} (24 ")
    assert "(beside the model), 18 samples, verified on held-out samples" in first
    found = ready("quantize m.onnx --force --json").document
    assert found["recipe"]["mode"] == "static"
    assert "(beside the model)" in found["data"]["source"]


def test_every_source_of_the_same_feeds_gives_the_same_model(ready: Shell) -> None:
    written = []
    Path("feed.py").write_text(
        "import numpy\ndef feeds():\n    return ({'image': image[None]} for image in numpy.load('d.npz')['image'])\n"
    )
    for make in BESIDE.values():
        make()
    np.save("d.npy", images(24))
    sources = ("d.npz", "d.npy", "m.calib", ".", "feed:feeds")
    for source in sources:
        assert ready(f"quantize m.onnx --data {source} -o o.onnx --force").code == 0
        written.append(Path("o.onnx").read_bytes())
    for data in (feeds(), iter(feeds()), "d.npz", Path("d.npz"), ("d.npz",)):
        quantool.quantize("m.onnx", data=data, output="o.onnx", force=True)
        written.append(Path("o.onnx").read_bytes())
    assert len(set(written)) == 1


def test_data_named_wins_over_data_beside_the_model(ready: Shell) -> None:
    np.savez("m.calib.npz", image=images(3))
    assert ready("quantize m.onnx --data d.npz --json").document["data"]["source"] == "d.npz (24 feeds)"


def test_data_beside_the_model_calibrates_where_only_verification_data_is_named(ready: Shell) -> None:
    np.savez("m.calib.npz", image=images(20))
    found = ready("quantize m.onnx --verify-data d.npz --json").document
    assert (found["recipe"]["mode"], found["data"]["samples"], found["data"]["held_out"]) == ("static", 20, True)
    assert found["verification"]["samples"] == 24


def test_random_data_is_used_only_where_asked_and_the_first_line_says_so(ready: Shell) -> None:
    ran = ready("quantize m.onnx")
    assert "random" not in ran.out
    assert "outputs were not compared (no data)" in ran.out
    ran = ready("quantize m.onnx --data random --force")
    assert ran.out.splitlines()[0].startswith("Data: random data (seed 0), 8 samples")
    found = ready("quantize m.onnx --data random --force --json --seed 3").document
    assert found["data"]["source"] == "random data (seed 3)"
    assert "random-data" in [warning["code"] for warning in found["warnings"]]
    found = ready("quantize m.onnx --data d.npz --verify-data random --force --json").document
    assert "random-data" in [warning["code"] for warning in found["warnings"]]


def test_the_seed_changes_random_data_and_nothing_else_does(ready: Shell) -> None:
    written = []
    for seed in (0, 0, 1):
        assert ready(f"quantize m.onnx --data random --seed {seed} -o o.onnx --force").code == 0
        written.append(Path("o.onnx").read_bytes())
    assert written[0] == written[1] != written[2]


# --- what verifies --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "calibrating", "verifying", "held_out"),
    [(1, 1, 1, False), (15, 15, 15, False), (16, 12, 4, True), (24, 18, 6, True), (80, 64, 16, True)],
)
def test_from_16_feeds_on_some_are_held_out(
    ready: Shell, count: int, calibrating: int, verifying: int, held_out: bool
) -> None:
    np.savez("n.npz", image=images(count))
    ran = ready("quantize m.onnx --data n.npz --json")
    found = ran.document
    assert (found["data"]["samples"], found["data"]["held_out"]) == (calibrating, held_out)
    assert found["verification"]["samples"] == verifying
    words = "held-out sample" if held_out else "that also calibrated"
    assert words in found["verdict"]
    first = " ".join(ready("quantize m.onnx --data n.npz --force").out.splitlines()[:2])
    assert ("verified on held-out samples" in first) == held_out
    assert ("verified on the same samples" in first) == (not held_out)


@pytest.mark.parametrize("mode", ["dynamic", "weight-only --effort fast"])
def test_where_nothing_calibrates_the_data_that_verifies_is_named(ready: Shell, mode: str) -> None:
    BESIDE["m.calib.npz"]()
    np.savez("v.npz", image=images(5, seed=1))
    ran = ready(f"quantize m.onnx --mode {mode} --verify-data v.npz")
    assert ran.out.splitlines()[0] == "Data: v.npz (5 feeds), verified on held-out samples"
    assert "on 5 samples" in " ".join(ran.out.split())


def test_what_is_held_out_does_not_calibrate(ready: Shell) -> None:
    # Each feed is constant, so that the statistics tell which of them were seen.
    values = np.arange(1, 33, dtype=np.float32)
    np.savez("n.npz", image=np.ones((32, 3, 8, 8), np.float32) * values[:, None, None, None])
    found = ready("quantize m.onnx --data n.npz --calibrator minmax --json").document
    (row,) = (row for row in found["tensors"] if row["name"] == "image")
    seen = sorted(_calibrating(values))
    assert len(seen) == 24
    assert (row["observed_min"], row["observed_max"]) == (seen[0], seen[-1])


def _calibrating(values: AnyArray) -> list[float]:
    """Those that are not among the quarter with the smallest hashes."""
    from quantool.data.held_out import content_hash

    hashes = {float(v): content_hash({"image": np.full((1, 3, 8, 8), v, np.float32)}) for v in values}
    return sorted(hashes, key=hashes.__getitem__)[len(values) // 4 :]


def test_all_verification_data_verifies_and_all_data_calibrates(ready: Shell) -> None:
    np.savez("v.npz", image=images(40, seed=9))
    found = ready("quantize m.onnx --data d.npz --verify-data v.npz --json").document
    assert (found["data"]["samples"], found["data"]["held_out"]) == (24, True)
    assert found["verification"]["samples"] == 40


def test_without_calibrating_data_still_verifies(ready: Shell) -> None:
    for mode in ("dynamic", "weight-only"):
        for option, samples in (("--data", 6), ("--verify-data", 24)):
            ran = ready(f"quantize m.onnx --mode {mode} {option} d.npz -o {mode}{option}.onnx --json")
            assert (ran.code, ran.document["verification"]["samples"]) == (0, samples)
            assert ran.document["latency"] is not None


def test_without_any_data_the_weights_alone_are_judged(ready: Shell) -> None:
    found = ready("quantize m.onnx --mode weight-only --json").document
    errors = {row["name"]: row["sqnr_db"] for row in found["tensors"]}
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load("m.int8.onnx").graph.initializer}
    (exact,) = (onnx.numpy_helper.to_array(t) for t in onnx.load("m.onnx").graph.initializer if t.name == "w2")
    coarse = constants["w2_quantized"] * constants["w2_scale"].reshape(-1, 1, 1, 1).astype(np.float64)
    assert errors["w2"] == pytest.approx(10 * np.log10(np.square(exact).sum() / np.square(exact - coarse).sum()), 1e-5)
    assert set(errors) == {"w1", "w2", "w3"}
    assert (
        f"outputs were not compared (no data), the worst weight has {min(errors.values()):.1f} dB" in found["verdict"]
    )
    found = ready("quantize m.onnx --mode weight-only --data d.npz --force --json").document
    assert "not compared" not in found["verdict"]
    fitted = {row["name"]: row["sqnr_db"] for row in found["tensors"]}
    assert fitted == pytest.approx(errors, abs=3)  # samples may choose codes that are farther from the weights


def test_no_verify_compares_nothing_and_says_so(ready: Shell) -> None:
    found = ready("quantize m.onnx --data d.npz --no-verify --json").document
    assert [found[key] for key in ("verification", "latency", "runtime")] == [None, None, None]
    assert "outputs were not compared (--no-verify)" in found["verdict"]
    verified = Path("m.int8.onnx").read_bytes()
    assert ready("quantize m.onnx --data d.npz --force").code == 0
    assert Path("m.int8.onnx").read_bytes() == verified


# --- warnings about samples -----------------------------------------------------------------------------


def told(ran: Ran) -> dict[str, str]:
    """The warnings about samples: what is said under each code."""
    codes = ("unscaled-values", "constant-samples", "duplicate-samples", "few-samples", "overlapping-data")
    return {note["code"]: note["what"] for note in ran.document["warnings"] if note["code"] in codes}


def test_samples_in_order_make_no_warning(ready: Shell) -> None:
    assert told(ready("quantize m.onnx --data d.npz --json")) == {}


def test_what_stands_out_in_the_samples_is_told_with_numbers(ready: Shell) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 3, 8, 8)).astype(np.float32)
    pixels[3] = 7
    pixels[8] = pixels[2]
    np.savez("p.npz", image=pixels)
    found = told(ready("quantize m.onnx --data p.npz --json"))
    assert found["unscaled-values"].startswith("the values of input 'image' lie in 0 to 255")
    del found["unscaled-values"]
    assert found == {
        "constant-samples": "1 of 12 samples hold one value throughout",
        "duplicate-samples": "1 of 12 samples that calibrate repeat another one",
        "few-samples": "12 samples calibrate, and mse ranges want 16 or more",
    }
    found = told(ready("quantize m.onnx --data p.npz --json --force --calibrator minmax"))
    assert "few-samples" not in found


def test_a_model_that_scales_its_input_takes_pixels(ready: Shell) -> None:
    proto = onnx.load("m.onnx")
    proto.graph.node[0].input[0] = "scaled"
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(255), "top"))
    proto.graph.node.insert(0, onnx.helper.make_node("Div", ["image", "top"], ["scaled"]))
    onnx.save(proto, "s.onnx")
    pixels = np.random.default_rng(0).integers(0, 256, (24, 3, 8, 8)).astype(np.float32)
    np.savez("p.npz", image=pixels)
    assert told(ready("quantize s.onnx --data p.npz --json")) == {}
    assert set(told(ready("quantize m.onnx --data p.npz --json"))) == {"unscaled-values"}


@pytest.mark.parametrize(("shared", "held_out"), [(0, True), (3, True), (24, False)])
def test_samples_that_verify_and_calibrated_too_are_counted(ready: Shell, shared: int, held_out: bool) -> None:
    np.savez("v.npz", image=np.concatenate([images(24)[:shared], images(24, seed=9)[shared:]]))
    ran = ready("quantize m.onnx --data d.npz --verify-data v.npz --json")
    what = (
        f"{shared} of 24 samples that verify calibrated too: the figures are better than they would be on new samples"
    )
    assert told(ran) == ({"overlapping-data": what} if shared else {})
    assert ran.document["data"]["held_out"] == held_out


def test_a_held_out_sample_that_calibrated_under_another_number_is_told(ready: Shell) -> None:
    # Of sixty equal samples some are held out, and the others calibrate.
    np.savez("e.npz", image=np.repeat(images(1), 60, axis=0))
    found = told(ready("quantize m.onnx --data e.npz --json"))
    assert found["duplicate-samples"] == "44 of 45 samples that calibrate repeat another one"
    assert found["overlapping-data"].startswith("1 of 1 samples that verify calibrated too")


def test_each_feed_is_hashed_once(ready: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = []

    def sha256() -> object:
        hashed.append(1)
        return hashlib.sha256()

    monkeypatch.setattr("quantool.data.held_out.hashlib", SimpleNamespace(sha256=sha256))
    quantool.quantize("m.onnx", data=feeds(40))
    assert len(hashed) == 40


# --- how data is read -----------------------------------------------------------------------------------


def test_feeds_are_taken_lazily_and_once(ready: Shell) -> None:
    taken: list[int] = []

    def source(count: int) -> Iterator[dict[str, AnyArray]]:
        for number, feed in enumerate(feeds(count)):
            taken.append(number)
            yield feed

    result = quantool.quantize("m.onnx", data=source(20), verify_data=source(18))
    assert taken == [*range(20), *range(18)]
    assert result.report.verification is not None
    assert result.report.verification.samples == 18
    taken.clear()
    quantool.quantize("m.onnx", data=source(20), samples=5)
    assert taken == [*range(5)]


def test_a_source_may_reuse_its_arrays(ready: Shell) -> None:
    def reusing() -> Iterator[dict[str, AnyArray]]:
        array = np.empty((1, 3, 8, 8), np.float32)
        for feed in feeds():
            array[:] = feed["image"]
            yield {"image": array}

    kept = quantool.quantize("m.onnx", data=feeds(), verify_data=feeds(seed=9))
    reused = quantool.quantize("m.onnx", data=reusing(), verify_data=feeds(seed=9))
    assert reused.model == kept.model
    assert quantool.compare("m.onnx", kept.model, data=reusing()).verification == (
        quantool.compare("m.onnx", kept.model, data=feeds()).verification
    )


def test_labels_are_ignored(ready: Shell) -> None:
    np.savez("l.npz", image=images(24), labels=np.arange(24), label_names=np.arange(3))
    assert ready("quantize m.onnx --data l.npz -o l.onnx").code == 0
    assert ready("quantize m.onnx --data d.npz -o d.onnx").code == 0
    assert Path("l.onnx").read_bytes() == Path("d.onnx").read_bytes()


def test_samples_and_batch_size_cut_the_data(ready: Shell) -> None:
    found = ready("quantize m.onnx --data d.npz --samples 10 --json").document
    assert (found["data"]["samples"], found["verification"]["samples"]) == (10, 10)
    found = ready("quantize m.onnx --data d.npz --batch-size 4 --force --json").document
    assert found["data"]["source"] == "d.npz (6 feeds of 4 rows)"
    assert found["data"]["samples"] == 6


def test_several_sources_are_read_one_after_the_other(ready: Shell) -> None:
    shutil.copy("d.npz", "e.npz")
    found = ready("quantize m.onnx --data d.npz --data e.npz --json").document
    assert found["data"]["source"] == "d.npz (24 feeds) + e.npz (24 feeds)"
    assert found["data"]["samples"] == 36


def test_the_order_of_the_feeds_does_not_matter(ready: Shell) -> None:
    models = [quantool.quantize("m.onnx", data=data).model for data in (feeds(), feeds()[::-1])]
    assert models[0] == models[1]


def test_data_of_float64_is_cast_and_integers_are_refused(ready: Shell) -> None:
    np.savez("t.npz", image=images(24).astype(np.float64))
    assert ready("quantize m.onnx --data t.npz").code == 0
    np.savez("t.npz", image=np.zeros((24, 3, 8, 8), np.uint8))
    ran = ready("quantize m.onnx --data t.npz --force --json")
    assert (ran.code, ran.document["status"]) == (2, "refused")
    assert "image" in ran.document["errors"][0]["where"]


def test_what_is_wrong_with_the_data_names_input_and_sample(ready: Shell) -> None:
    bad = images(24)
    bad[7, 1, 2, 3] = np.inf
    with pytest.raises(DataError, match="input 'image', sample 7") as caught:
        quantool.quantize("m.onnx", data=[{"image": image[None]} for image in bad])
    assert caught.value.report is not None
    assert caught.value.report.model is not None
    for data, words in (
        ([], "no sample"),
        ([{"picture": images(1)}], "no array for input 'image'"),
        ([{"image": images(1)[0]}], "the model takes float32"),
        ([3], "sample 0 is a int"),
        ("nothere.npz", "no such file"),
        (3, "data is a int"),
    ):
        with pytest.raises(DataError, match=words):
            quantool.quantize("m.onnx", data=data)  # type: ignore[arg-type]

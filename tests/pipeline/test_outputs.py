"""What a run writes, what it never touches, and that it leaves nothing where it fails or is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.external_data_helper import convert_model_to_external_data

import pipeline.bed as bed
import quantool
from pipeline.bed import Shell
from quantool.errors import OptionError

DATA = "quantize m.onnx --data d.npz"

# --- what appears ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ("", "m.int8.onnx"),
        ("--weights uint8", "m.uint8.onnx"),
        ("--mode dynamic", "m.int8.onnx"),
        ("--mode weight-only --weights int4 --granularity channel", "m.int4.onnx"),
        ("--report r.json --report r.html --report r.md --report r.xml -o o.onnx", "o.onnx"),
    ],
)
def test_the_result_stands_beside_the_model_and_nothing_else_appears(ready: Shell, options: str, name: str) -> None:
    ran = ready(f"{DATA} {options}")
    assert (ran.code, ran.err) == (0, "")
    reports = [word for word in options.split() if word.startswith("r.")]
    assert ready.files() == sorted(["d.npz", "m.onnx", name, *reports])
    onnx.checker.check_model(onnx.load(name), full_check=True)


def test_the_default_name_is_beside_the_model_not_in_the_working_folder(ready: Shell) -> None:
    Path("models").mkdir()
    Path("m.onnx").rename("models/a.b.onnx")
    assert ready("quantize models/a.b.onnx --data d.npz").code == 0
    assert ready.files() == ["d.npz", "models"]
    assert sorted(path.name for path in Path("models").iterdir()) == ["a.b.int8.onnx", "a.b.onnx"]


def test_a_model_hub_of_links_gets_its_result_beside_the_link(ready: Shell) -> None:
    for folder in ("blobs", "snapshot"):
        Path(folder).mkdir()
    Path("m.onnx").rename("blobs/1a2b")
    Path("d.npz").rename("blobs/3c4d")
    Path("snapshot/m.onnx").symlink_to("../blobs/1a2b")
    Path("snapshot/m.calib.npz").symlink_to("../blobs/3c4d")
    ran = ready("quantize snapshot/m.onnx")
    assert (ran.code, ran.out.startswith("Data: snapshot/m.calib.npz (24 feeds)")) == (0, True)
    assert sorted(path.name for path in Path().rglob("*.*onnx")) == ["m.int8.onnx", "m.onnx"]
    assert ready("quantize snapshot/m.onnx -o blobs/3c4d --force").code == 2


def test_no_file_that_was_there_changes(ready: Shell) -> None:
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in Path().iterdir()}
    assert ready(DATA).code == 0
    assert {name: (Path(name).read_bytes(), Path(name).stat().st_mtime_ns) for name in before} == before


def test_the_result_can_be_read_by_whom_the_umask_lets(ready: Shell) -> None:
    before = os.umask(0o027)
    try:
        assert ready(DATA).code == 0
    finally:
        os.umask(before)
    assert Path("m.int8.onnx").stat().st_mode & 0o777 == 0o640


def test_provenance_is_in_the_model_and_nothing_that_depends_on_time_or_place(ready: Shell) -> None:
    assert ready(DATA).code == 0
    found = {entry.key: entry.value for entry in onnx.load("m.int8.onnx").metadata_props}
    assert {key for key in found if key.startswith("quantool.")} == {
        "quantool.version", "quantool.target", "quantool.source_sha256"
    }  # fmt: skip
    content = Path("m.int8.onnx").read_bytes()
    assert str(ready.folder).encode() not in content
    assert b"m.onnx" not in content


# --- existing files -------------------------------------------------------------------------------------


def test_an_existing_output_needs_force(ready: Shell) -> None:
    Path("o.onnx").write_bytes(b"mine")
    ran = ready(f"{DATA} -o o.onnx")
    assert (ran.code, ran.out, Path("o.onnx").read_bytes()) == (2, "", b"mine")
    assert "the output 'o.onnx' exists already" in ran.err
    assert "--force" in ran.err
    assert ready(f"{DATA} -o o.onnx --force").code == 0
    onnx.checker.check_model(onnx.load("o.onnx"))
    assert ready(f"{DATA} -o o.onnx").code == 2


def test_the_default_output_needs_force_too(ready: Shell) -> None:
    assert [ready(DATA).code, ready(DATA).code, ready(f"{DATA} --force").code] == [0, 2, 0]


def test_an_output_that_appears_during_the_run_is_not_replaced(ready: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    from quantool.runtime import latency

    honest = latency.interleaved

    def slow(*args: object, **kwargs: object) -> object:
        Path("o.onnx").write_bytes(b"mine")
        return honest(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(sys.modules["quantool.pipeline.judge"], "interleaved", slow)
    ran = ready(f"{DATA} -o o.onnx --json")
    assert (ran.code, ran.document["errors"][0]["code"]) == (2, "output-exists")
    assert ran.document["output"] is None
    assert Path("o.onnx").read_bytes() == b"mine"


INPUTS: dict[str, str] = {
    "the model": "m.onnx",
    "its external data": "w.bin",
    "data": "d.npz",
    "verification data": "v.npz",
    "the recipe": "r.toml",
    "ranges": "s.qcal",
    "data beside the model": "m.calib.npz",
    "a file in a folder of data": "folder/0.npz",
}
LINKS: dict[str, Callable[[Path, Path], None]] = {
    "itself": lambda _path, _link: None,
    "symlink": lambda path, link: link.symlink_to(path),
    "hard link": lambda path, link: link.hardlink_to(path),
}


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("what", INPUTS)
def test_no_output_may_be_a_file_that_the_run_reads(ready: Shell, what: str, link: str) -> None:
    read = Path(INPUTS[what])
    proto = bed.cnn()
    convert_model_to_external_data(proto, location="w.bin", size_threshold=64)
    Path("m.onnx").unlink()
    onnx.save(proto, "m.onnx")
    Path("folder").mkdir()
    for number, image in enumerate(bed.images(3)):
        np.savez(f"folder/{number}.npz", image=image[None])
    shutil.copy("d.npz", "v.npz")
    shutil.copy("d.npz", "m.calib.npz")
    Path("r.toml").write_text("mode = 'static'")
    assert ready("calibrate m.onnx --data d.npz -o s.qcal").code == 0
    data = {"data beside the model": "", "a file in a folder of data": "--data folder"}.get(what, "--data d.npz")
    output = read
    if link != "itself":
        output = Path("out.onnx")
        LINKS[link](read.absolute(), output)
    before = read.read_bytes()
    ran = ready(f"quantize m.onnx {data} --verify-data v.npz --recipe r.toml --ranges s.qcal --force -o {output}")
    assert (ran.code, ran.out) == (2, "")
    assert f"the output '{output}' is read by this run" in ran.err
    assert read.read_bytes() == before


def test_an_output_in_a_folder_of_data_is_no_input(ready: Shell) -> None:
    (Path("data") / "test_data_set_0").mkdir(parents=True)
    tensor = onnx.numpy_helper.from_array(bed.images(1), "image")
    Path("data/test_data_set_0/input_0.pb").write_bytes(tensor.SerializeToString())
    Path("m.onnx").rename("data/m.onnx")
    for _ in range(2):
        ran = ready("quantize data/m.onnx --report data/r.md --force")
        assert (ran.code, ran.err) == (0, "")


def test_calibrate_follows_the_same_rules(ready: Shell) -> None:
    assert ready("calibrate m.onnx --data d.npz -o d.npz --force").code == 2
    assert ready("calibrate m.onnx --data d.npz -o s.qcal").code == 0
    before = Path("s.qcal").read_bytes()
    ran = ready("calibrate m.onnx --data d.npz -o s.qcal --samples 3 --json")
    assert (ran.code, ran.document["errors"][0]["code"]) == (2, "output-exists")
    assert Path("s.qcal").read_bytes() == before
    assert ready("calibrate m.onnx --data d.npz -o s.qcal --samples 3 --force").code == 0
    assert ready.files() == ["d.npz", "m.onnx", "s.qcal"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("-o no/o.onnx", "'no' does not exist"),
        ("-o .", "is a folder"),
        ("--report r.pdf", r"unknown suffix '.pdf'"),
        ("--report no/r.md", "'no' does not exist"),
        ("--report m.onnx.md --report m.onnx.md", "asked for twice"),
        ("-o r.json --report r.json", "asked for twice"),
    ],
)
def test_what_cannot_be_written_is_refused_before_any_work(
    ready: Shell, options: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quantool.data.archive.RowReader.rows", None)  # reading a sample would fail otherwise
    ran = ready(f"{DATA} {options}")
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err
    assert ready.files() == ["d.npz", "m.onnx"]


# --- failures and kills ---------------------------------------------------------------------------------


def test_a_failed_gate_writes_nothing_but_the_reports_asked_for(ready: Shell) -> None:
    ran = ready(f"{DATA} --min-sqnr 90 --report r.json --report r.xml")
    assert ran.code == 1
    assert ready.files() == ["d.npz", "m.onnx", "r.json", "r.xml"]
    assert '"status": "gate-failed"' in Path("r.json").read_text()
    assert 'failures="1"' in Path("r.xml").read_text()


def test_a_failed_gate_leaves_the_old_output_untouched(ready: Shell) -> None:
    Path("o.onnx").write_bytes(b"the model of yesterday")
    before = Path("o.onnx").stat()
    assert ready(f"{DATA} -o o.onnx --force --max-size-ratio 0.01").code == 1
    after = Path("o.onnx").stat()
    assert Path("o.onnx").read_bytes() == b"the model of yesterday"
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)


def test_keep_writes_the_model_that_a_gate_refused(ready: Shell) -> None:
    ran = ready(f"{DATA} -o o.onnx --min-sqnr 90 --keep --json")
    assert (ran.code, ran.document["exit_code"], ran.document["status"]) == (1, 1, "gate-failed")
    assert ran.document["output"]["path"] == "o.onnx"
    onnx.checker.check_model(onnx.load("o.onnx"))


@pytest.mark.parametrize(
    ("line", "code"),
    [("quantize m.onnx --data bad.npz", 2), (f"{DATA} --exclude *", 3), (f"{DATA} --exclude nosuch", 2)],
)
def test_reports_are_written_whatever_the_failure(ready: Shell, line: str, code: int) -> None:
    images = bed.images(24)
    images[5, 0, 0, 0] = np.nan
    np.savez("bad.npz", image=images)
    ran = ready(f"{line} --report r.json --report r.md --report r.html --report r.xml")
    assert ran.code == code
    assert ready.files() == ["bad.npz", "d.npz", "m.onnx", "r.html", "r.json", "r.md", "r.xml"]


#: runs the program, and stops it at a point of the run until it is killed
STOPPED = """
import sys, time
from importlib import import_module
from pathlib import Path
def stop(*_, **__):
    Path("stopped").touch()
    time.sleep(60)
module, name = sys.argv.pop(1).rsplit(":", 1)
import quantool.pipeline
owner = import_module(module)
if "." in name:
    owner, name = getattr(owner, name.split(".")[0]), name.split(".")[1]
setattr(owner, name, stop)
from quantool.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
POINTS = {
    "calibrating": "quantool.pipeline.choice.decide:gather",
    "rewriting": "quantool.pipeline.quantize:quantized_graph",
    "verifying": "quantool.pipeline.quantize:evaluate",
    "publishing": "quantool.graph.save:Pending.commit",
}


KILLS = [
    *((point, signal.SIGKILL) for point in POINTS),
    *(("verifying", number) for number in (signal.SIGTERM, signal.SIGINT)),
]


@pytest.mark.parametrize(("point", "number"), KILLS, ids=lambda value: getattr(value, "name", value))
def test_a_killed_run_leaves_nothing_and_the_old_output_untouched(
    ready: Shell, point: str, number: signal.Signals
) -> None:
    Path("o.onnx").write_bytes(b"old")
    words = [*f"{DATA} -o o.onnx --force --report r.json --quiet".split()]
    started = subprocess.Popen(
        [sys.executable, "-c", STOPPED, POINTS[point], *words], stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )
    end = time.monotonic() + 60
    while not Path("stopped").exists():
        assert started.poll() is None, started.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
    started.send_signal(number)
    _, err = started.communicate(timeout=30)
    assert started.returncode != 0
    assert b"Traceback" not in err
    Path("stopped").unlink()
    assert Path("o.onnx").read_bytes() == b"old"
    assert ready.files() == ["d.npz", "m.onnx", "o.onnx"]


def test_a_report_that_cannot_be_written_does_not_hide_the_model_that_was(
    ready: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = os.fsync
    calls = iter((honest, None))

    def full_at_last(descriptor: int) -> None:
        if next(calls) is None:
            raise OSError(28, "No space left on device")
        honest(descriptor)

    monkeypatch.setattr("os.fsync", full_at_last)
    ran = ready(f"{DATA} --report r.md --json")
    found = ran.document
    assert (ran.code, found["status"], found["errors"][0]["where"]) == (2, "refused", "r.md")
    assert found["output"]["path"] == "m.int8.onnx"
    assert ready.files() == ["d.npz", "m.int8.onnx", "m.onnx"]
    calls = iter((honest, None))
    with pytest.raises(OptionError) as caught:
        quantool.quantize("m.onnx", data="d.npz", output="m.int8.onnx", force=True, report="r.md")
    assert caught.value.report is not None
    assert (caught.value.report.exit_code, caught.value.report.output is not None) == (2, True)


def test_a_full_disk_is_an_error_that_leaves_nothing(ready: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    ran = ready(f"{DATA} --json")
    assert (ran.code, ran.document["errors"][0]["code"]) == (2, "output-unwritable")
    assert "No space left on device" in ran.err
    assert ready.files() == ["d.npz", "m.onnx"]

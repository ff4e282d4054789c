from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest

from quantool import graph
from quantool.edits import AddInitializer, SetInput
from quantool.errors import DataError, ModelError, OptionError, VerificationError
from quantool.graph import edit, save, temporary
from quantool.graph.destination import refuse_overwrite
from quantool.graph.model import Model
from quantool.schema import AnyArray

from .text_model import model_of, normal

NET = """
<
  ir_version: 8, opset_import: ["": 13, "com.microsoft": 1], producer_name: "trainer", producer_version: "2",
  domain: "org.example", model_version: 7, doc_string: "what it is", metadata_props: ["author": "someone"]
>
the_graph (float[2, 300] x) => (float[2, 40] y) { h = MatMul(x, w)  y = Add(h, b) }
"""


def net() -> Model:
    model = model_of(NET, {"w": normal(300, 40), "b": normal(40)})
    model.ir.graph[0].doc_string = "the first"
    model.ir.graph[0].metadata_props["layer"] = "1"
    return model


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def outputs(path: Path) -> AnyArray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    result: AnyArray = session.run(None, {"x": normal(2, 300)})[0]
    return result


@pytest.fixture(params=["unnamed", "hidden", "hidden, no links"])
def _kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on systems without unnamed files, and on file systems without hard links."""

    def no_links(*_: object, **__: object) -> None:
        raise OSError(95, "Operation not supported")

    if request.param != "unnamed":
        monkeypatch.setattr(temporary, "DESCRIPTORS", Path("/nowhere"))
    if "no links" in request.param:
        monkeypatch.setattr(os, "link", no_links)


every_kind = pytest.mark.usefixtures("_kind")


@every_kind
@pytest.mark.parametrize("external", [False, True], ids=["inside", "external"])
def test_a_model_appears_on_commit(tmp_path: Path, external: bool) -> None:
    with save.write_temporary(net(), tmp_path / "m.onnx", external=external) as pending:
        assert all(name.startswith(".m.onnx.quantool-") for name in names(tmp_path))
        assert pending.commit() == tmp_path / "m.onnx"
    assert len(names(tmp_path)) == 1 + external
    np.testing.assert_allclose(outputs(tmp_path / "m.onnx"), normal(2, 300) @ normal(300, 40) + normal(40), rtol=1e-3)
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
    assert pending.size_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())


@every_kind
@pytest.mark.parametrize("external", [False, True], ids=["inside", "external"])
def test_a_failed_run_leaves_nothing(tmp_path: Path, external: bool) -> None:
    (tmp_path / "m.onnx").write_bytes(b"before")
    with (
        pytest.raises(RuntimeError, match="verification"),
        save.write_temporary(net(), tmp_path / "m.onnx", force=True, external=external),
    ):
        raise RuntimeError("verification")
    assert names(tmp_path) == ["m.onnx"]
    assert (tmp_path / "m.onnx").read_bytes() == b"before"


@every_kind
def test_an_existing_output_is_replaced_only_by_force(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"before")
    with pytest.raises(OptionError, match=r"output-exists.*m\.onnx.*--force"):
        save.write_temporary(net(), path)
    with save.write_temporary(net(), path, force=True) as pending:
        assert path.read_bytes() == b"before"
        pending.commit()
    assert names(tmp_path) == ["m.onnx"]
    outputs(path)


@every_kind
@pytest.mark.parametrize("external", [False, True], ids=["inside", "external"])
def test_an_output_that_appears_meanwhile_is_kept(tmp_path: Path, external: bool) -> None:
    path = tmp_path / "m.onnx"
    with save.write_temporary(net(), path, external=external) as pending:
        path.write_bytes(b"another run")
        with pytest.raises(OptionError, match="output-exists"):
            pending.commit()
    assert path.read_bytes() == b"another run"
    assert names(tmp_path) == ["m.onnx"]


WAITING = """
import pathlib, sys, time
sys.path.insert(0, sys.argv[2])
from graph.test_save import net
from quantool.graph import save, temporary
if sys.argv[3] == "hidden":
    temporary.DESCRIPTORS = pathlib.Path("/nowhere")
pending = save.write_temporary(net(), pathlib.Path(sys.argv[1]), external=True)
print("written", flush=True)
time.sleep(60)
"""


def killed(path: Path, kind: str) -> Callable[[], None]:
    """Start a run that writes to a path and then waits; returns how to kill it."""
    command = [sys.executable, "-c", WAITING, str(path), str(Path(__file__).parents[1]), kind]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"

    def kill() -> None:
        process.send_signal(signal.SIGKILL)
        process.communicate()

    return kill


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="the system has no unnamed files")
def test_a_killed_run_leaves_nothing(tmp_path: Path) -> None:
    killed(tmp_path / "m.onnx", "unnamed")()
    assert names(tmp_path) == []


def test_what_a_killed_run_hid_is_removed_by_the_next_but_not_before_it_dies(tmp_path: Path) -> None:
    kill = killed(tmp_path / "m.onnx", "hidden")
    assert len(names(tmp_path)) == 2
    save.write_temporary(net(), tmp_path / "m.onnx").discard()
    assert len(names(tmp_path)) == 2
    kill()
    assert len(names(tmp_path)) == 2
    save.write_temporary(net(), tmp_path / "other.onnx").discard()
    assert len(names(tmp_path)) == 2
    save.write_temporary(net(), tmp_path / "m.onnx").discard()
    assert names(tmp_path) == []


def test_external_data_is_named_by_its_content(tmp_path: Path) -> None:
    def write(name: str, model: Model) -> list[str]:
        with save.write_temporary(model, tmp_path / name, external=True, force=True) as pending:
            pending.commit()
        return [found for found in names(tmp_path) if found.endswith(".data")]

    first = write("m.onnx", net())
    assert first == [f"m.{first[0].split('.')[1]}.data"]
    assert len(first[0].split(".")[1]) == 16
    assert write("m.onnx", net()) == first
    model = net()
    edits = [
        AddInitializer(name="v", dtype="float32", shape=(300, 40), load=lambda: normal(300, 40, seed=1)),
        SetInput("MatMul:h", 1, "v"),
    ]
    edit.apply(model, edits)
    assert len(write("m.onnx", model)) == 2


def test_another_file_under_the_name_of_the_external_data_is_not_touched(tmp_path: Path) -> None:
    with save.write_temporary(net(), tmp_path / "m.onnx", external=True) as pending:
        [name] = pending.external
        (tmp_path / name).write_bytes(b"something else")
        with pytest.raises(OptionError, match=rf"output-exists.*{name}"):
            pending.commit()
    assert names(tmp_path) == [name]
    assert (tmp_path / name).read_bytes() == b"something else"


def test_a_pending_model_can_be_run_before_it_has_a_name(tmp_path: Path) -> None:
    with save.write_temporary(net(), tmp_path / "m.onnx", external=True) as pending:
        options = onnxruntime.SessionOptions()
        files = pending.external
        options.add_external_initializers_from_files_in_memory(
            list(files), list(files.values()), [len(content) for content in files.values()]
        )
        session = onnxruntime.InferenceSession(pending.read(), options, providers=["CPUExecutionProvider"])
        before = session.run(None, {"x": normal(2, 300)})[0]
        save.check(pending.read(), None, has_external=True)
        pending.commit()
    np.testing.assert_array_equal(outputs(tmp_path / "m.onnx"), before)


def test_constants_are_computed_one_at_a_time_for_external_data(tmp_path: Path) -> None:
    alive: list[int] = []
    peak = []

    class Counted(np.ndarray[tuple[int, ...], np.dtype[np.float32]]):
        def __del__(self) -> None:
            alive.pop()

    def load() -> AnyArray:
        alive.append(1)
        peak.append(len(alive))
        return np.ones(1000, np.float32).view(Counted)

    model = net()
    edit.apply(
        model,
        [AddInitializer(name=f"k{i}", dtype="float32", shape=(1000,), load=load) for i in range(5)]
        + [SetInput("Add:y", 1, "k0"), SetInput("MatMul:h", 1, "k1")]
        + [SetInput("MatMul:h", 2 + i, f"k{2 + i}") for i in range(3)],
    )
    save.write_temporary(model, tmp_path / "m.onnx", external=True).discard()
    assert len(peak) == 5
    assert max(peak) == 1


def test_everything_that_describes_the_model_survives() -> None:
    proto = save.model_proto(net(), provenance={"quantool.version": "1", "quantool.recipe": "mode = 'static'"})
    assert (proto.producer_name, proto.producer_version, proto.domain) == ("trainer", "2", "org.example")
    assert (proto.model_version, proto.doc_string, proto.graph.name) == (7, "what it is", "the_graph")
    assert [(item.key, item.value) for item in proto.metadata_props] == [
        ("author", "someone"),
        ("quantool.recipe", "mode = 'static'"),
        ("quantool.version", "1"),
    ]
    assert proto.graph.node[0].doc_string == "the first"
    assert [(item.key, item.value) for item in proto.graph.node[0].metadata_props] == [("layer", "1")]
    assert {(item.domain, item.version) for item in proto.opset_import} == {("", 13), ("com.microsoft", 1)}
    assert [info.name for info in proto.graph.value_info] == ["h"]


@pytest.mark.parametrize("declared", ["[N,M]", "[N,3]", "[]", "[?,3]"])
def test_outputs_keep_the_type_that_they_declare(declared: str) -> None:
    given = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N,3] x) => (float{declared} y) <float[3,3] w = {{1,2,3,4,5,6,7,8,9}}> {{ y = MatMul (x, w) }}""")
    if declared == "[]":
        given.graph.output[0].type.tensor_type.ClearField("shape")
    written = save.model_proto(graph.prepare(graph.read(given), opset=21), provenance={})
    assert written.graph.output[0] == given.graph.output[0]


def test_provenance_replaces_that_of_an_earlier_run() -> None:
    model = net()
    model.ir.metadata_props["quantool.version"] = "0"
    proto = save.model_proto(model, provenance={"quantool.version": "1"})
    assert [(item.key, item.value) for item in proto.metadata_props] == [
        ("author", "someone"),
        ("quantool.version", "1"),
    ]
    assert model.ir.metadata_props["quantool.version"] == "0"


def test_the_result_does_not_depend_on_the_external_data_of_the_source(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with save.write_temporary(net(), source / "m.onnx", external=True) as pending:
        pending.commit()
    for external in (False, True):
        given = net()
        model = Model(ir=onnx_ir.load(source / "m.onnx"), source=given.source, given=(), described=given.described)
        target = tmp_path / f"target{external}"
        target.mkdir()
        with save.write_temporary(model, target / "m.onnx", external=external) as pending:
            pending.commit()
        np.testing.assert_array_equal(outputs(target / "m.onnx"), outputs(source / "m.onnx"))
        assert isinstance(model.ir.graph.initializers["w"].const_value, onnx_ir.ExternalTensor)
    assert len(names(tmp_path / "targetFalse")) == 1
    assert (tmp_path / "targetTrue" / "m.onnx").read_bytes() == (source / "m.onnx").read_bytes()


def test_large_models_go_to_external_data_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save, "INLINE_LIMIT_BYTES", 40_000)
    with save.write_temporary(net(), tmp_path / "m.onnx") as pending:
        assert list(pending.external)
    with pytest.raises(ModelError, match=r"model-too-large.*GB.*external data"):
        save.model_proto(net())


def test_bytes_are_the_same_in_every_process(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from graph.test_save import net\n"
        "from quantool.graph import save\n"
        "proto = save.model_proto(net(), provenance={'quantool.b': '1', 'quantool.a': '2'})\n"
        "sys.stdout.write(proto.SerializeToString(deterministic=True).hex())"
    )
    results = {
        subprocess.run(
            [sys.executable, "-c", code, str(Path(__file__).parents[1])],
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(results) == 1


def test_an_error_of_ours_in_a_constant_comes_out_as_it_is(tmp_path: Path) -> None:
    def load() -> AnyArray:
        raise DataError("not-finite", "the weight has NaN", where="tensor 'v'", fix="Mend it.")

    model = net()
    edit.apply(model, [AddInitializer(name="v", dtype="float32", shape=(40,), load=load), SetInput("Add:y", 1, "v")])
    with pytest.raises(DataError, match="not-finite"):
        save.write_temporary(model, tmp_path / "m.onnx")
    with pytest.raises(DataError, match="not-finite"):
        save.model_proto(model)
    assert names(tmp_path) == []


@pytest.mark.parametrize("link", ["same", "dots", "symbolic", "hard", "in-folder", "hard-in-folder"])
def test_no_output_is_a_file_that_the_run_reads(tmp_path: Path, link: str) -> None:
    source = tmp_path / "data" / "m.onnx"
    source.parent.mkdir()
    source.write_bytes(b"source")
    output, read = tmp_path / "out.onnx", source
    match link:
        case "same":
            output = source
        case "dots":
            output = tmp_path / "data" / ".." / "data" / "m.onnx"
        case "symbolic":
            output.symlink_to(source)
        case "hard":
            output.hardlink_to(source)
        case "in-folder":
            output, read = source, source.parent
        case "hard-in-folder":
            output.hardlink_to(source)
            read = source.parent
    with pytest.raises(OptionError, match="output-is-input"):
        refuse_overwrite(output, reads=[tmp_path / "missing", read], force=True)


def test_outputs_beside_what_is_read_are_fine(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"source")
    (tmp_path / "old.onnx").write_bytes(b"old")
    refuse_overwrite(tmp_path / "m.int8.onnx", reads=[tmp_path / "m.onnx"])
    refuse_overwrite(tmp_path / "old.onnx", reads=[tmp_path / "m.onnx"], force=True)


def test_places_that_cannot_be_written_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match=r"no-folder.*missing"):
        refuse_overwrite(tmp_path / "missing" / "m.onnx", force=True)
    with pytest.raises(OptionError, match="output-is-folder"):
        refuse_overwrite(tmp_path, force=True)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OptionError, match="output-exists"):
        refuse_overwrite(tmp_path / "dangling")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(OptionError, match="output-unwritable"):
        refuse_overwrite(tmp_path / "m.onnx", force=True)


def test_a_full_disk_is_an_error_that_names_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with save.write_temporary(net(), tmp_path / "m.onnx") as pending:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OptionError, match=r"output-unwritable.*m\.onnx.*No space"):
            pending.commit()
    monkeypatch.setattr(temporary, "_open_unnamed", full)
    with pytest.raises(OptionError, match=r"output-unwritable.*m\.onnx.*No space"):
        save.write_temporary(net(), tmp_path / "m.onnx")
    assert names(tmp_path) == []


def test_the_checker_decides_only_where_the_model_as_given_passed() -> None:
    good = save.model_proto(net())
    bad = save.model_proto(net())
    bad.graph.node[0].op_type = "Nonsense"
    save.check(good.SerializeToString(), None)
    save.check(bad.SerializeToString(), "No Op registered for Nonsense")
    with pytest.raises(VerificationError, match=r"checker-failed.*Nonsense"):
        save.check(bad.SerializeToString(), None)

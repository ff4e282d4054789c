from __future__ import annotations

import io
import sys
import tracemalloc
import zipfile

import numpy as np
import pytest

from quantool.data import DataOptions, InputSpec, find_beside, open_data
from quantool.errors import DataError, OptionError

FREE = InputSpec(name="x", dtype="float32", shape=("N", 3))
FIXED = InputSpec(name="x", dtype="float32", shape=(4, 3))
RATE = InputSpec(name="rate", dtype="int64", shape=())
ROWS = np.arange(30, dtype=np.float32).reshape(10, 3)


def feeds(source, *specs, **options):
    return list(open_data(source, specs or (FREE,), DataOptions(**options)))


def shapes(found):
    return [feed["x"].shape for feed in found]


def npz(path, **arrays):
    np.savez(path, **arrays)
    return path


# --- single files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_rows_of_an_npz_are_cut_into_feeds_of_one(tmp_path, save):
    save(tmp_path / "d.npz", x=ROWS, labels=np.arange(10))
    source = open_data(tmp_path / "d.npz", [FREE])
    found = list(source)
    assert shapes(found) == [(1, 3)] * 10
    assert np.array_equal(np.concatenate([f["x"] for f in found]), ROWS)
    assert source.description == f"{tmp_path / 'd.npz'} (10 feeds)"
    assert not source.random
    assert len(list(source)) == 10  # a second pass starts anew


def test_batches_follow_the_option_where_the_batch_is_symbolic(tmp_path):
    source = open_data(npz(tmp_path / "d.npz", x=ROWS), [FREE], DataOptions(batch_size=4))
    assert shapes(source) == [(4, 3), (4, 3)]
    assert "2 feeds of 4 rows; the last 2 rows fill no feed and are left out" in source.description


def test_a_fixed_batch_decides(tmp_path):
    path = npz(tmp_path / "d.npz", x=ROWS)
    assert shapes(feeds(path, FIXED)) == [(4, 3), (4, 3)]
    assert shapes(feeds(path, FIXED, batch_size=4)) == [(4, 3), (4, 3)]
    with pytest.raises(OptionError, match=r"--batch-size is 2, and the batch of input 'x' is fixed at 4"):
        feeds(path, FIXED, batch_size=2)


def test_one_axis_more_holds_a_feed_an_entry(tmp_path):
    path = npz(tmp_path / "d.npz", x=np.stack([ROWS[:4], ROWS[4:8]]))
    found = feeds(path, FIXED)
    assert shapes(found) == [(4, 3), (4, 3)]
    assert np.array_equal(found[1]["x"], ROWS[4:8])


def test_what_has_no_axis_is_shared_by_all_feeds(tmp_path):
    found = feeds(npz(tmp_path / "d.npz", x=ROWS, rate=np.int64(16000)), FREE, RATE)
    assert len(found) == 10
    assert all(feed["rate"] == 16000 for feed in found)


def test_an_entry_of_a_vector_is_a_scalar_feed(tmp_path):
    found = feeds(npz(tmp_path / "d.npz", x=ROWS, rate=np.arange(10)), FREE, RATE)
    assert [int(feed["rate"]) for feed in found] == list(range(10))


def test_scalars_alone_make_one_feed(tmp_path):
    assert len(feeds(npz(tmp_path / "d.npz", rate=np.int64(1)), RATE)) == 1


def test_column_major_arrays_keep_their_rows(tmp_path):
    path = npz(tmp_path / "d.npz", x=np.asfortranarray(ROWS))
    assert np.array_equal(np.concatenate([f["x"] for f in feeds(path, batch_size=3)]), ROWS[:9])


def test_samples_takes_the_first(tmp_path):
    found = feeds(npz(tmp_path / "d.npz", x=ROWS), samples=3)
    assert np.array_equal(np.concatenate([f["x"] for f in found]), ROWS[:3])


def test_an_npy_serves_a_model_of_one_input(tmp_path):
    np.save(tmp_path / "d.npy", ROWS)
    assert len(feeds(tmp_path / "d.npy", FREE, InputSpec(name="m", dtype="bool", shape=(1,), required=False))) == 10
    with pytest.raises(DataError, match=r"a .npy file holds data for one input, and the model takes 2: 'x', 'rate'"):
        feeds(tmp_path / "d.npy", FREE, RATE)


def test_an_archive_is_read_row_by_row(tmp_path):
    big = np.zeros((200, 50_000), np.float32)
    path = npz(tmp_path / "d.npz", x=big)
    spec = InputSpec(name="x", dtype="float32", shape=("N", 50_000))
    tracemalloc.start()
    for _ in open_data(path, [spec]):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * 50_000 * 4 < big.nbytes / 10


def test_numbers_of_feeds_must_agree(tmp_path):
    path = npz(tmp_path / "d.npz", x=ROWS, rate=np.arange(7))
    with pytest.raises(DataError, match=r"uneven-rows: the array 'x' makes 10 feeds and 'rate' makes 7"):
        feeds(path, FREE, RATE)


def test_too_few_rows_for_a_fixed_batch_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"'x' has 2 rows, and the model takes 4 at a time .*at least 4 rows"):
        feeds(npz(tmp_path / "d.npz", x=ROWS[:2]), FIXED)


def test_errors_of_rows_name_input_and_sample(tmp_path):
    bad = ROWS.copy()
    bad[6, 1] = np.nan
    with pytest.raises(DataError, match=r"nonfinite: 1 of 3 .*\[input 'x', sample 6\]"):
        feeds(npz(tmp_path / "d.npz", x=bad))
    assert len(feeds(tmp_path / "d.npz", allow_nonfinite=True)) == 10
    with pytest.raises(DataError, match=r"no array for input 'x' \[input 'x', sample 0\] Rename 'X' to 'x'"):
        feeds(npz(tmp_path / "d.npz", X=ROWS))
    with pytest.raises(DataError, match=r"wrong-size: .*axis 1 is 2, not 3"):
        feeds(npz(tmp_path / "d.npz", x=ROWS[:, :2]))


@pytest.mark.parametrize("empty", [{"x": ROWS[:0]}, {"x": np.zeros((0, 1, 3), np.float32)}], ids=["rows", "feeds"])
def test_no_sample_names_the_input(tmp_path, empty):
    with pytest.raises(DataError, match=r"no-samples: there is no sample in .*d\.npz .*\[inputs 'x'\]"):
        feeds(npz(tmp_path / "d.npz", **empty))


def pickled(path):
    np.save(path, np.array([{"a": 1}], object), allow_pickle=True)


def in_zip(path, name, content):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, content)


def npy_bytes(array):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


DAMAGED = {
    "pickled.npy": (pickled, "pickled Python objects"),
    "pickled.npz": (lambda p: in_zip(p, "x.npy", npy_bytes(np.array([{}], object))), "pickled Python objects"),
    "text.npy": (lambda p: p.write_text("hello"), "magic string"),
    "text.npz": (lambda p: p.write_text("hello"), "not a zip file"),
    "cut.npy": (lambda p: p.write_bytes(npy_bytes(ROWS)[:-5]), "ends after 7 of 12 bytes"),
    "cut.npz": (lambda p: in_zip(p, "x.npy", npy_bytes(ROWS)[:-5]), "ends after 7 of 12 bytes"),
    "header.npz": (lambda p: in_zip(p, "x.npy", b"\x93NUMPY\x01\x00\x02\x00{}"), "Header"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_named_with_the_reason(tmp_path, name):
    write, message = DAMAGED[name]
    write(tmp_path / name)
    with pytest.raises(
        DataError, match=rf"data-unreadable: the file is no readable \.np[yz] file: .*{message}.*{name}"
    ):
        feeds(tmp_path / name)


def test_other_members_of_an_archive_do_not_matter(tmp_path):
    path = npz(tmp_path / "d.npz", x=ROWS)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("README.txt", "notes")
    assert len(feeds(path)) == 10


# --- folders and lines ---------------------------------------------------------------------------------


def test_each_file_of_a_folder_is_a_feed_in_the_order_of_numbers(tmp_path):
    for number in (10, 9, 1):
        npz(tmp_path / f"s{number}.npz", x=np.full((2, 3), number, np.float32))
    np.save(tmp_path / "s2.npy", np.full((5, 3), 2, np.float32))
    (tmp_path / ".hidden.npy").write_text("not read")
    source = open_data(tmp_path, [FREE])
    found = list(source)
    assert [float(feed["x"][0, 0]) for feed in found] == [1, 2, 9, 10]
    assert shapes(found) == [(2, 3), (5, 3), (2, 3), (2, 3)]
    assert source.description == f"{tmp_path} (4 files)"


def test_errors_in_folders_name_the_file(tmp_path):
    npz(tmp_path / "a.npz", x=ROWS)
    npz(tmp_path / "b.npz", x=ROWS.astype(int))
    with pytest.raises(DataError, match=r"wrong-type: .*\[input 'x', sample 1 \(b\.npz\)\]"):
        feeds(tmp_path)


def decode(content: bytes):
    if not content.startswith(b"T"):
        raise ValueError("no tensor")
    return np.frombuffer(content[1:], np.float32).reshape(-1, 3)


@pytest.fixture
def data_sets(tmp_path):
    for number in (0, 1, 10, 2):
        folder = tmp_path / f"test_data_set_{number}"
        folder.mkdir()
        (folder / "input_0.pb").write_bytes(b"T" + (ROWS + number).tobytes())
        (folder / "output_0.pb").write_bytes(b"?")
    return tmp_path


def test_onnx_test_data_sets_are_feeds_in_the_order_of_numbers(data_sets):
    source = open_data(data_sets, [FREE], DataOptions(decode_tensor=decode))
    assert [float(feed["x"][0, 0]) for feed in source] == [0, 1, 2, 10]
    assert source.description == f"{data_sets} (4 ONNX test data sets)"
    (one,) = feeds(data_sets / "test_data_set_10", decode_tensor=decode)
    assert one["x"][0, 0] == 10


def test_test_data_of_another_model_is_refused(data_sets):
    (data_sets / "test_data_set_1" / "input_1.pb").write_bytes(b"T")
    with pytest.raises(DataError, match=r"input_1\.pb belongs to no input: the model takes 1 .*test_data_set_1"):
        feeds(data_sets, decode_tensor=decode)


def test_a_damaged_tensor_is_named(data_sets):
    (data_sets / "test_data_set_2" / "input_0.pb").write_bytes(b"?")
    with pytest.raises(DataError, match=r"no readable tensor: no tensor \[.*test_data_set_2/input_0\.pb"):
        feeds(data_sets, decode_tensor=decode)


def test_json_lines_hold_a_feed_a_line(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text('{"x": [[1, 2, 3]], "rate": 8}\n\n{"x": [[0.5, 1, 2], [3, 4, 5]], "rate": 9, "label": "cat"}\n')
    found = feeds(path, FREE, RATE)
    assert shapes(found) == [(1, 3), (2, 3)]
    assert found[0]["x"].dtype == np.float32
    assert [int(feed["rate"]) for feed in found] == [8, 9]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"no JSON object of arrays: .*line 2"),
        ("[1]", r"no JSON object of arrays: Expected `object`"),
        ('{"x": [[1], [1, 2]]}', r"no JSON object of arrays: .*inhomogeneous"),
        ('{"x": ["a"]}', r"no JSON object of arrays: could not convert"),
        ('{"x": [[1, 2, 3, 4]]}', r"wrong-size: .*sample 1 \(line 2\)"),
        ('{"x": ' + "[" * 100_000, r"no JSON object of arrays: .*recursion"),
        ('{"x": []}', r"wrong-rank: .*sample 1 \(line 2\)"),
    ],
    ids=["cut", "list", "ragged", "text", "size", "deep", "empty"],
)
def test_errors_of_json_lines_name_the_line(tmp_path, line, message):
    path = tmp_path / "d.jsonl"
    path.write_text('{"x": [[1, 2, 3]]}\n' + line)
    with pytest.raises(DataError, match=message):
        feeds(path)


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text('{"x": [[1, 2, 3]]}\n' * 2, encoding="utf-8-sig")
    assert len(feeds(path)) == 2


# --- code, memory, chance ------------------------------------------------------------------------------


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "my_feeds.py").write_text(
        "import numpy as np\n"
        "def good():\n    yield {'x': np.ones((1, 3), np.float32)}\n"
        "def bad():\n    yield {'x': np.ones((1, 3), np.float32)}\n    raise KeyError('lost')\n"
        "class Group:\n    good = staticmethod(good)\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("my_feeds", None)


@pytest.mark.usefixtures("module")
def test_a_callable_yields_feeds():
    path = list(sys.path)
    source = open_data("my_feeds:good", [FREE])
    assert (len(list(source)), len(list(source)), source.description) == (1, 1, "my_feeds:good")
    assert len(feeds("my_feeds:Group.good")) == 1
    assert sys.path == path


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_feeds:bad", r"it failed: KeyError: 'lost' \[my_feeds:bad\] Name a function without arguments"),
        ("my_feeds:gone", r"cannot be imported: AttributeError: .*gone"),
        ("no_such_module:f", r"cannot be imported: ModuleNotFoundError: .*no_such_module"),
        ("my_feeds:number", r"it is a int, not a callable"),
    ],
)
def test_trouble_with_a_callable_is_data_trouble(name, message):
    with pytest.raises(DataError, match=message):
        feeds(name)


def test_an_iterator_is_read_lazily_and_once():
    taken = []

    def generate():
        for row in ROWS:
            taken.append(row)
            yield {"x": row[None]}

    source = open_data(generate(), [FREE])
    iterator = iter(source)
    assert taken == []
    next(iterator)
    assert len(taken) == 1
    assert len(list(iterator)) == 9
    with pytest.raises(DataError, match=r"data-consumed: the iterator was read already"):
        list(source)


def test_lists_and_single_feeds_in_memory():
    assert len(feeds([{"x": ROWS}, {"x": ROWS}])) == 2
    assert shapes(feeds({"x": ROWS})) == [(10, 3)]
    with pytest.raises(DataError, match=r"no-samples: there is no sample in feeds in memory"):
        feeds([])
    with pytest.raises(DataError, match=r"feed-type: sample 0 is a ndarray"):
        feeds(ROWS)
    with pytest.raises(DataError, match=r"data-type: data is a int"):
        feeds(3)


def test_errors_of_a_users_generator_are_the_users():
    def fails():
        yield {"x": ROWS}
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        feeds(fails())


def test_several_sources_follow_one_another(tmp_path):
    paths = [npz(tmp_path / "a.npz", x=ROWS), str(npz(tmp_path / "b.npz", x=ROWS[:2]))]
    source = open_data(paths, [FREE])
    assert len(list(source)) == 12
    assert source.description.count("feeds") == 2


def test_random_data_is_seeded_and_marked():
    specs = (
        InputSpec(name="x", dtype="float16", shape=("N", 3, "W")),
        InputSpec(name="i", dtype="int64", shape=(2,)),
        InputSpec(name="b", dtype="bool", shape=(None,)),
    )
    source = open_data("random", specs, DataOptions(seed=3, batch_size=2, samples=5))
    found = list(source)
    assert (source.random, source.description, len(found)) == (True, "random data (seed 3)", 5)
    assert (found[0]["x"].shape, found[0]["x"].dtype, found[0]["b"].dtype) == ((2, 3, 1), np.float16, np.bool_)
    assert set(np.concatenate([f["i"] for f in found])) <= {0, 1}
    again = list(source)
    assert all(np.array_equal(a[k], b[k]) for a, b in zip(found, again, strict=True) for k in a)
    other = feeds("random", *specs, seed=4, batch_size=2)
    assert not np.array_equal(other[0]["x"], found[0]["x"])


@pytest.mark.parametrize(("dtype", "shape"), [("float32", None), ("string", (1,)), ("", None)])
def test_random_data_cannot_stand_for_everything(dtype, shape):
    with pytest.raises(DataError, match=r"not-random: random data cannot stand for input 'x'"):
        feeds("random", InputSpec(name="x", dtype=dtype, shape=shape))


# --- what is no data -----------------------------------------------------------------------------------


def test_a_missing_path_suggests_the_nearest(tmp_path):
    npz(tmp_path / "samples.npz", x=ROWS)
    with pytest.raises(DataError, match=r"data-missing: .*Did you mean '.*samples\.npz'"):
        feeds(tmp_path / "sample.npz")
    with pytest.raises(DataError, match=r"data-missing: .*Check the path"):
        feeds(str(tmp_path / "nowhere" / "x.npz"))


def test_unknown_kinds_list_the_known(tmp_path):
    (tmp_path / "d.csv").write_text("1,2")
    with pytest.raises(DataError, match=r"files of type '\.csv' are not read as data .*\.npz, \.npy, \.jsonl files"):
        feeds(tmp_path / "d.csv")
    with pytest.raises(DataError, match=r"the folder holds none of: test_data_set_\*/input_\*\.pb, .*images"):
        feeds(tmp_path)


@pytest.mark.parametrize("options", [{"samples": 0}, {"batch_size": -1}])
def test_counts_below_one_are_refused(options):
    with pytest.raises(OptionError, match=r"(--samples is 0|--batch-size is -1) .*from 1 up"):
        DataOptions(**options)


# --- beside the model ----------------------------------------------------------------------------------


def test_data_beside_a_model_is_found_in_order(tmp_path):
    model = tmp_path / "net.onnx"
    (tmp_path / "other.calib.npz").touch()
    (tmp_path / "input_0.pb").touch()
    (tmp_path / "test_data_set_9").mkdir()
    assert find_beside(model) is None
    (tmp_path / "test_data_set_0").mkdir()
    (tmp_path / "test_data_set_0" / "input_0.pb").touch()
    assert find_beside(model) == tmp_path
    (tmp_path / "net.calib").mkdir()
    assert find_beside(model) == tmp_path / "net.calib"
    (tmp_path / "net.calib.npz").touch()
    assert find_beside(model) == tmp_path / "net.calib.npz"

"""Tests compiled models: the cache, and `treadle compile`."""

import json
import pathlib
import subprocess

import numpy as np
import pytest

import treadle
from onnx import helper, numpy_helper

from conftest import SHARED_DATA

DIGITS = pathlib.Path(__file__).resolve().parents[2] / "examples/digits/digits.onnx"


def models():
    found = json.loads((SHARED_DATA / "manifest.json").read_text())["models"] if SHARED_DATA else []
    skip = pytest.mark.skip(reason="no shared/data/manifest.json here; TREADLE_TEST_DATA names its folder")
    return [model["name"] for model in found] or [pytest.param(None, marks=skip)]


def same_bits(a, b):
    if isinstance(a, np.ndarray) and a.dtype != object:
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return np.array_equal(a, b) if isinstance(a, np.ndarray) else repr(a) == repr(b)


@pytest.mark.parametrize("name", models())
def test_sessions_from_the_cache_give_the_same_bits(tmp_path, name):
    path = str(SHARED_DATA / "models" / f"{name}.onnx")
    with np.load(SHARED_DATA / "refs" / f"{name}.case0.npz", allow_pickle=False) as file:
        feeds = {key[3:]: file[key] for key in file.files if key.startswith("in:")}
    feeds = {key: value.astype(object) if value.dtype.kind == "U" else value for key, value in feeds.items()}
    truth = treadle.InferenceSession(path).run(None, feeds)
    options = treadle.SessionOptions()
    options.cache_dir = str(tmp_path)
    for _ in range(2):
        results = treadle.InferenceSession(path, options).run(None, feeds)
        assert all(same_bits(a, b) for a, b in zip(results, truth, strict=True))
    assert len(list(tmp_path.iterdir())) == 1


def test_the_command_compiles_checks_and_runs(program, tmp_path):
    compiled = tmp_path / "digits.treadle"

    def call(*arguments):
        return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)

    assert "MB" in call("compile", DIGITS, "-o", compiled).stdout
    assert call("compile", "--verify", compiled).returncode == 0
    assert call("run", compiled).stdout.splitlines()[1:] == call("run", DIGITS).stdout.splitlines()[1:]
    session = treadle.InferenceSession(str(compiled))
    image = np.random.default_rng(0).random([*session.get_inputs()[0].shape[1:]], np.float32)[None]
    name = session.get_inputs()[0].name
    assert same_bits(session.run(None, {name: image})[0], treadle.InferenceSession(str(DIGITS)).run(None, {name: image})[0])
    contents = bytearray(compiled.read_bytes())
    contents[-1] ^= 1
    compiled.write_bytes(contents)
    failed = call("compile", "--verify", compiled)
    assert failed.returncode > 0 and "damaged" in failed.stderr


def test_extents_that_come_out_in_the_run_are_those_of_the_graph_that_was_written(tmp_path):
    """Without constant folding, a run computes the scales of Resize. Therefore reading the file must not need the extents that passes
    knew."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name) for name, shape in (("w", (2, 2, 1, 1)), ("v", (1, 2, 2, 2)))]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], kernel_shape=[1, 1]),
        helper.make_node("Resize", ["a", "", "scales"], ["b"], mode="linear", coordinate_transformation_mode="asymmetric"),
        helper.make_node("Conv", ["b", "v"], ["y"], kernel_shape=[2, 2], pads=[1, 1, 1, 1]),
    ]
    graph = helper.make_graph(nodes, "graph", [helper.make_tensor_value_info("x", 1, [1, 2, 1, 1])], [helper.make_tensor_value_info("y", 1, None)],
                              [*weights, numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    options = treadle.SessionOptions()
    options.disabled_passes = ["fold-constants"]
    options.compiled_model_filepath = str(tmp_path / "model.treadle")
    x = rng.normal(size=(1, 2, 1, 1)).astype(np.float32)
    expected = treadle.InferenceSession(model, options).run(None, {"x": x})[0]
    reading = treadle.SessionOptions()
    reading.disabled_passes = ["fold-constants"]
    np.testing.assert_array_equal(treadle.InferenceSession(str(tmp_path / "model.treadle"), reading).run(None, {"x": x})[0], expected)

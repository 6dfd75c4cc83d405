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


@pytest.fixture
def fixed(program, tmp_path):
    """Returns a compiled model whose batch is fixed to 8, and a function that calls the program."""
    compiled = tmp_path / "fixed.treadle"

    def call(*arguments):
        return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, cwd=tmp_path)

    made = call("compile", DIGITS, "-o", compiled, "--option", "free_dimension_overrides=batch=8")
    assert made.returncode == 0, made.stderr
    return compiled, call


def test_a_compiled_model_declares_the_extents_that_its_options_fixed(fixed):
    compiled, _ = fixed
    session = treadle.InferenceSession(str(compiled))
    assert session.get_inputs()[0].shape == [8, 1, 8, 8] and session.get_outputs()[0].shape == [8, 10]
    image = np.random.default_rng(0).random((8, 1, 8, 8), np.float32)
    assert same_bits(session.run(None, {"image": image})[0], treadle.InferenceSession(str(DIGITS)).run(None, {"image": image})[0])


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "M"],
        ["bench", "M", "--runs", "3"],
        ["inspect", "M"],
        ["inspect", "M", "--json"],
        ["inspect", "M", "--stage", "planned"],
        ["check", "M"],
        ["check", "M", "--plans"],
        ["profile", "M", "--runs", "3", "--no-remedies"],
        ["explain", "M"],
        ["explain", "M", "--node", "head"],
        ["compile", "--verify", "M"],
    ],
    ids=" ".join,
)
def test_commands_work_on_a_model_compiled_for_a_batch(fixed, arguments):
    compiled, call = fixed
    done = call(*[compiled if argument == "M" else argument for argument in arguments])
    assert done.returncode == 0, done.stderr
    assert "assumed" not in done.stdout or "--json" in arguments


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "M", "--stage", "onnx"],
        ["compare", "M"],
        ["optimize", "M", "-o", "x.onnx"],
        ["quantize", "M", "-o", "x.onnx"],
        ["precision", "M"],
        ["train", "M", "--data", "data.npz", "-o", "x.onnx"],
        ["artifacts", "M", "-o", "x"],
        ["compile", "M"],
        ["run", "M", "--fetch", "features"],
        ["bench", "M", "--runs", "3", "--compare", "onnxruntime"],
    ],
    ids=lambda arguments: " ".join(map(str, arguments[:4])),
)
def test_commands_that_need_the_onnx_model_say_that_it_is_compiled(fixed, arguments):
    compiled, call = fixed
    np.savez(compiled.parent / "data.npz", image=np.zeros((8, 1, 8, 8), np.float32), labels=np.zeros(8, np.int64))
    done = call(*[compiled if argument == "M" else argument for argument in arguments])
    assert done.returncode != 0
    assert f'"{compiled}"' in done.stderr and "compiled" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and "Dimensions that were not given" not in done.stderr


def test_inspect_shows_the_graph_that_a_compiled_model_holds(fixed):
    compiled, call = fixed
    shown = json.loads(call("inspect", compiled, "--json").stdout)
    assert shown["compiled"] and shown["inputs"][0]["shape"] == [8, 1, 8, 8]
    assert shown["operators"]["Gemm"] == 1 and shown["optimized"]["cost_is_complete"] and shown["arena_bytes"] > 0
    # Batch normalisations are folded into the convolutions.
    assert 0 < shown["weight_bytes"] < json.loads(call("inspect", DIGITS, "--json").stdout)["weight_bytes"]

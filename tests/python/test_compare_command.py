"""Tests `treadle compare`: tolerances by dtype, verdicts on outputs, two models, recorded runs, strings, and what is wrong by itself."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

DIGITS = pathlib.Path(__file__).resolve().parents[2] / "examples/digits/digits.onnx"


@pytest.fixture
def compare(program, tmp_path):
    def call(*arguments, status=None):
        done = subprocess.run([program, "compare", *map(str, arguments)], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == status if status is not None else done.returncode in (0, 1), done.stdout + done.stderr
        return json.loads(done.stdout) if "--json" in arguments else done.stdout + done.stderr

    return call


def save(path, nodes, inputs, outputs, **initializers):
    infos = [[helper.make_tensor_value_info(name, dtype, shape) for name, dtype, shape in side] for side in (inputs, outputs)]
    constants = [numpy_helper.from_array(value, name) for name, value in initializers.items()]
    graph = helper.make_graph(nodes, "g", *infos, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def record(path, **arrays):
    np.savez(path, **arrays)
    return path


STRICT = ("--rtol", "0", "--atol", "0")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_one_unit_in_the_last_place_is_no_difference(compare, tmp_path, dtype):
    values = np.array([1, 1.5, -3, 1000, 1e-4], dtype)
    up = np.nextafter(values, dtype(np.inf))
    one, two = record(tmp_path / "one.npz", y=values), record(tmp_path / "two.npz", y=up)
    three = record(tmp_path / "three.npz", y=np.nextafter(up, dtype(np.inf)))
    assert not compare(one, "--with", two, *STRICT, "--json", status=0)["values"][0]["differs"]
    found = compare(one, "--with", three, *STRICT, "--json", status=1)["values"][0]
    assert found["differs"] and found["different_elements"] == len(values)
    assert found["largest_difference"] == pytest.approx(float(np.abs(np.nextafter(up, dtype(np.inf)).astype(np.float64) - values).max()))


def test_integers_are_exact_even_beyond_the_doubles(compare, tmp_path):
    one, two = record(tmp_path / "one.npz", y=np.array([2**62])), record(tmp_path / "two.npz", y=np.array([2**62 + 1]))
    assert compare(one, "--with", two, "--json", status=1)["values"][0]["different_elements"] == 1
    compare(one, "--with", one, status=0)


@pytest.fixture
def quantized(tmp_path):
    """Saves a model whose outputs are codes, reshaped codes, and dequantised numbers with steps of 0.5."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["codes"]),
        helper.make_node("Reshape", ["codes", "shape"], ["moved"]),
        helper.make_node("DequantizeLinear", ["codes", "scale", "zero"], ["numbers"]),
        helper.make_node("Cast", ["x"], ["whole"], to=TensorProto.UINT8),
    ]
    outputs = [("codes", TensorProto.UINT8, [4]), ("moved", TensorProto.UINT8, [2, 2]), ("numbers", TensorProto.FLOAT, [4]), ("whole", TensorProto.UINT8, [4])]
    return save(tmp_path / "quantized.onnx", nodes, [("x", TensorProto.FLOAT, [4])], outputs, scale=np.float32(0.5), zero=np.uint8(3), shape=np.array([2, 2]))


def test_one_quantisation_step_is_no_difference(compare, tmp_path, quantized):
    x = np.array([1, 2, 3, 4], np.float32)
    np.save(tmp_path / "x.npy", x)
    codes = np.array([5, 7, 9, 11], np.uint8)
    right = {"codes": codes, "moved": codes.reshape(2, 2), "numbers": x, "whole": x.astype(np.uint8)}
    for name, step in (("codes", 1), ("moved", 1), ("numbers", 0.5)):
        for steps, differs in ((1, False), (2, True)):
            values = {**right, name: right[name] + np.array(step * steps, right[name].dtype)}
            recorded = record(tmp_path / "recorded.npz", **values)
            found = compare(quantized, "x.npy", "--with", recorded, "--json", status=int(differs))
            assert [value["name"] for value in found["values"] if value["differs"]] == ([name] if differs else [])
    recorded = record(tmp_path / "recorded.npz", **{**right, "whole": right["whole"] + np.uint8(1)})
    assert compare(quantized, "x.npy", "--with", recorded, "--json", status=1)["first_value_that_differs"] == "whole", "no codes: exact"


def test_strings_are_compared_and_shown(compare, tmp_path):
    one, two = record(tmp_path / "one.npz", y=np.array(["cat", "dog"])), record(tmp_path / "two.npz", y=np.array(["cat", "cow"]))
    compare(one, "--with", one, status=0)
    assert 'element 1: "dog", "cow"' in compare(one, "--with", two, status=1)


def test_strings_go_to_onnxruntime_and_back(compare, tmp_path, ort):
    node = helper.make_node("Reshape", ["text", "shape"], ["y"])
    model = save(tmp_path / "text.onnx", [node], [("text", TensorProto.STRING, [2])], [("y", TensorProto.STRING, [2, 1])], shape=np.array([2, 1]))
    np.save(tmp_path / "text.npy", np.array(["grün", "b"]))
    assert compare(model, "text.npy", "--python", sys.executable, "--json", status=0)["compared"] == 1


def test_runs_with_strings_are_recorded(program, compare, tmp_path):
    model = save(tmp_path / "same.onnx", [helper.make_node("Identity", ["text"], ["y"])], [("text", TensorProto.STRING, [2])], [("y", TensorProto.STRING, [2])])
    subprocess.run([program, "run", model, "text=grün", "-o", tmp_path / "run"], check=True, capture_output=True)
    np.testing.assert_array_equal(np.load(tmp_path / "run/y.npy"), ["grün", "grün"])
    compare("run", "--with", "run", status=0)


@pytest.fixture
def chain(tmp_path):
    """Saves a = -x, b = -a, c = -b, of which c is the output."""
    nodes = [helper.make_node("Neg", [source], [made], f"make_{made}") for source, made in ("xa", "ab", "bc")]
    return save(tmp_path / "chain.onnx", nodes, [("x", TensorProto.FLOAT, [3])], [("c", TensorProto.FLOAT, [3])])


def other_runtime(tmp_path, a, b, c):
    """Returns a command that stands for Python with an onnxruntime that computes these expressions."""
    wrapper = tmp_path / "wrapper.py"
    wrapper.write_text(
        f"""
import runpy, sys, types
import numpy as np
fake = types.ModuleType("onnxruntime")
class Session:
    def __init__(self, *_, **__): pass
    def run(self, names, feeds):
        x = feeds["x"]
        a = {a}
        b = {b}
        c = {c}
        values = dict(a=a, b=b, c=c)
        return [values[name].astype(np.float32) for name in names or ["c"]]
class Options: pass
class Level: ORT_DISABLE_ALL = 0
fake.InferenceSession, fake.SessionOptions, fake.GraphOptimizationLevel, fake.__version__ = Session, Options, Level, "0"
sys.modules["onnxruntime"] = fake
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    )
    return f"{sys.executable} {wrapper}"


def test_the_node_that_is_wrong_by_itself_is_found(compare, tmp_path, chain):
    found = compare(chain, "--python", other_runtime(tmp_path, "-x", "-a + 1", "-b"), "--json", status=1)
    assert [value["name"] for value in found["values"] if value["differs"]] == ["b", "c"]
    assert found["first_value_that_differs"] == "b" and "make_b" in found["first_node_that_differs"]
    assert "wrong by itself" in found["wrong_by_itself"] and "make_b" in found["wrong_by_itself"]
    assert not found["outputs_agree"]


def test_differences_that_add_up_blame_no_node(compare, tmp_path, chain):
    command = other_runtime(tmp_path, "-x + 0.6", "-a - 0.6", "-b + 0.6")
    found = compare(chain, "--python", command, "--atol", "1", "--json", status=1)
    assert found["first_value_that_differs"] == "b"
    assert found["wrong_by_itself"].startswith("no node is wrong by itself")


def test_a_verdict_on_outputs_alone(compare, tmp_path, chain):
    command = other_runtime(tmp_path, "-x + 1", "-a", "-x")
    text = compare(chain, "--python", command, status=1)
    assert "outputs: 1 of 1 agree" in text and "make_a" in text
    text = compare(chain, "--python", command, "--outputs", status=0)
    assert "1 of 1 values compared" in text and "make_a" not in text


def test_two_models_are_compared(compare, tmp_path, chain):
    model = onnx.load(chain)
    model.graph.node[1].op_type = "Abs"
    onnx.save(model, tmp_path / "other.onnx")
    compare(chain, "--with", chain, "--json", status=0)
    found = compare(chain, "x=1,2,3", "--with", "other.onnx", "--json", status=0)
    assert found["compared"] == 3
    found = compare(chain, "x=-1,2,3", "--with", "other.onnx", "--json", status=1)
    assert found["first_value_that_differs"] == "b" and "make_b" in found["first_node_that_differs"]


def test_inputs_and_outputs_with_other_names_are_paired_by_place(compare, tmp_path, chain):
    model = onnx.load(chain)
    for node in model.graph.node:
        node.input[0] = {"x": "picture"}.get(node.input[0], node.input[0])
        node.output[0] = {"c": "scores"}.get(node.output[0], node.output[0])
    model.graph.input[0].name, model.graph.output[0].name = "picture", "scores"
    onnx.save(model, tmp_path / "renamed.onnx")
    found = compare(chain, "--with", "renamed.onnx", "--json", status=0)
    assert found["compared"] == 3 and found["outputs_agree"]


def test_a_compiled_model_is_compared_with_its_source(program, compare, tmp_path):
    subprocess.run([program, "compile", DIGITS, "-o", "fixed.treadle", "--option", "free_dimension_overrides=batch=8"], check=True, cwd=tmp_path, capture_output=True)
    for arguments in ([DIGITS, "--with", "fixed.treadle"], ["fixed.treadle", "--with", DIGITS]):
        found = compare(*arguments, "--json", status=0)
        assert [(value["name"], value["treadle"]) for value in found["values"]] == [("scores", "f32[8,10]")]


def test_two_recorded_runs_are_compared(program, compare, tmp_path):
    for folder, seed in (("one", "1"), ("two", "2")):
        subprocess.run([program, "run", DIGITS, "-o", folder, "--seed", seed], check=True, cwd=tmp_path, capture_output=True)
    assert "none differs" in compare("one", "--with", "one", status=0)
    assert 'first value that differs: "scores"' in compare("one", "--with", "two", status=1)
    compare(DIGITS, "--seed", "1", "--with", "one", status=0)
    compare(DIGITS, "--seed", "1", "--with", "two", status=1)


def test_dumped_values_of_two_runs_are_compared(compare, tmp_path, chain):
    import treadle

    for folder, factor in (("one", 1), ("two", 2)):
        options = treadle.RunOptions()
        options.dump_folder = str(tmp_path / folder)
        treadle.InferenceSession(str(chain)).run(None, {"x": np.full(3, factor, np.float32)}, options)
    assert compare("one", "--with", "one", "--json", status=0)["compared"] > 1
    compare("one", "--with", "two", status=1)


def test_what_cannot_be_compared_is_said(compare, tmp_path, chain):
    record(tmp_path / "one.npz", y=np.zeros(3))
    record(tmp_path / "two.npz", z=np.zeros(3))
    assert "nothing was compared" in compare("one.npz", "--with", "two.npz", status=1)
    assert "--with names a .npz" in compare("one.npz", status=1)
    assert "inputs needs a model" in compare("one.npz", "x=1", "--with", "two.npz", status=1)
    two = save(tmp_path / "two.onnx", [helper.make_node("Split", ["x"], ["p", "q"])], [("x", TensorProto.FLOAT, [4])], [("p", TensorProto.FLOAT, None), ("q", TensorProto.FLOAT, None)])
    assert "differ in their outputs: c against p, q" in compare(chain, "x=1,2,3", "--with", two, status=1)


def test_the_change_of_the_optimiser_that_makes_a_difference_is_found(compare):
    found = compare(DIGITS, "--with", "optimized", "--option", "precision=bfloat16", *STRICT, "--json", status=1)
    assert found["wrong_by_itself"] == "" or "of the pass" in found["wrong_by_itself"]
    text = compare(DIGITS, "--with", "optimized", *STRICT)
    assert "none differs" in text or "of the pass" in text or "first node" in text

"""Operators written in Python, and the subgraph backend over oneDNN."""

import os
import re

import numpy as np
import pytest
from onnx import TensorProto, helper
from test_shared_models import manifest, tolerances

import treadle

from conftest import SHARED_DATA

ONEDNN = os.environ.get("TREADLE_ONEDNN_PLUGIN", "")


def model_with(node, shape=("n",), dtype=TensorProto.FLOAT, output_dtype=TensorProto.FLOAT):
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", dtype, list(shape))],
        [helper.make_tensor_value_info("y", output_dtype, None)],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("test.python", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def test_a_python_function_is_an_operator():
    def clamp(x, low, high):
        return np.clip(x, low, high)

    treadle.register_operator("test.python", "Clamp", clamp, infer=lambda x, **_: [x])
    session = treadle.InferenceSession(model_with(helper.make_node("Clamp", ["x"], ["y"], domain="test.python", low=-1.0, high=2.0)))
    x = np.array([-3, 0.5, 7], np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.clip(x, -1, 2))


def test_a_python_operator_may_have_several_outputs_and_strings():
    treadle.register_operator(
        "test.python", "Words", lambda x: (np.array([s.split()[0] for s in x], dtype=object), np.array([len(s) for s in x])), num_outputs=2
    )
    node = helper.make_node("Words", ["x"], ["y", "n"], domain="test.python")
    session = treadle.InferenceSession(model_with(node, dtype=TensorProto.STRING, output_dtype=TensorProto.STRING))
    (y,) = session.run(["y"], {"x": np.array(["red fox", "blue whale"], dtype=object)})
    assert list(y) == ["red", "blue"]


def test_an_exception_of_a_python_operator_reaches_the_caller_with_its_text():
    def broken(x):
        raise ValueError("no luck today")

    treadle.register_operator("test.python", "Broken", broken)
    session = treadle.InferenceSession(model_with(helper.make_node("Broken", ["x"], ["y"], domain="test.python")))
    with pytest.raises(treadle.Error, match="no luck today"):
        session.run(None, {"x": np.zeros(2, np.float32)})


def test_a_python_operator_finds_its_inputs_under_the_least_limit():
    rows = 1 << 15
    treadle.register_operator("test.python", "Present", lambda x: np.zeros(rows, np.float32) if x is None else x + 1, infer=lambda x: [x])
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Exp", ["a"], ["b"])]
    nodes += [helper.make_node("Present", ["b"], ["c"], domain="test.python"), helper.make_node("Mul", ["b", "c"], ["y"])]
    values = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows])] for name in "xy"]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("test.python", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", *values), opset_imports=opsets, ir_version=10).SerializeToString()
    options = treadle.SessionOptions()
    options.memory_limit_bytes = 1000
    session = treadle.InferenceSession(model, options)
    x = np.linspace(0, 4, rows, dtype=np.float32)
    with pytest.raises(treadle.errors.OutOfMemory, match="at least") as refused:
        session.run(None, {"x": x})
    session.set_memory_limit(int(re.search(r"at least (\d+)", str(refused.value))[1]))
    np.testing.assert_allclose(session.run(None, {"x": x})[0], np.exp(-x) * (np.exp(-x) + 1), rtol=1e-5)


def test_a_limit_that_falls_within_a_python_operator_does_not_end_the_run():
    def shrinks(x):
        session.set_memory_limit(1)
        return x + 1

    treadle.register_operator("test.python", "Shrinks", shrinks)
    options = treadle.SessionOptions()
    options.memory_limit_bytes = 1 << 30
    session = treadle.InferenceSession(model_with(helper.make_node("Shrinks", ["x"], ["y"], domain="test.python")), options)
    x = np.arange(100_000, dtype=np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x + 1)


def test_a_plugin_that_does_not_exist_is_an_error():
    with pytest.raises(Exception, match="nowhere.so"):
        treadle.load_plugin("/nowhere.so")


def convolution_models():
    if not ONEDNN:
        return [pytest.param(None, marks=pytest.mark.skip(reason="TREADLE_ONEDNN_PLUGIN does not name the plugin"))]
    return [pytest.param(model, id=model["name"]) for model in manifest() if "Conv" in model["ops"]]


@pytest.mark.parametrize("model", convolution_models())
def test_onednn_gives_the_recorded_outputs(model):
    treadle.load_plugin(ONEDNN)
    assert "onednn" in treadle.get_available_backends()
    options = treadle.SessionOptions()
    options.add_session_config_entry("treadle.backends", "onednn, onednn.products")
    session = treadle.InferenceSession(str(SHARED_DATA / model["file"]), options)
    absolute, relative = tolerances(model)
    for ref in model["refs"]:
        with np.load(SHARED_DATA / ref["file"]) as arrays:
            feeds = {key[3:]: arrays[key] for key in arrays.files if key.startswith("in:")}
            references = {key[4:]: arrays[key] for key in arrays.files if key.startswith("out:")}
        for output, value in zip(session.get_outputs(), session.run(None, feeds), strict=True):
            reference = references[output.name]
            if reference.dtype.kind != "f":
                continue
            magnitude = float(np.abs(reference).astype(np.float64).max(initial=0))
            np.testing.assert_allclose(
                value.astype(np.float64),
                reference.astype(np.float64),
                rtol=0,
                atol=absolute * max(1, magnitude) + relative * magnitude,
                err_msg=output.name,
            )

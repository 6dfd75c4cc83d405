"""Tests booleans that are stored as bytes other than 0 and 1: every operator must treat them as true, as NumPy and onnxruntime do."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from small_models import model, sequence, tensor

import treadle

COUNT = 41
RAW = np.zeros(COUNT, np.uint8)
RAW[::2], RAW[3], RAW[5] = 2, 255, 1
BAD, GOOD = RAW.view(bool), RAW != 0
ODD = np.arange(COUNT) % 2 == 1
X = np.arange(COUNT, dtype=np.float32)

OPERATORS = {
    "Not": (["c"], TensorProto.BOOL, ~GOOD),
    "And": (["c", "d"], TensorProto.BOOL, GOOD & ODD),
    "Xor": (["c", "d"], TensorProto.BOOL, GOOD ^ ODD),
    "Equal": (["c", "d"], TensorProto.BOOL, GOOD == ODD),
    "Identity": (["c"], TensorProto.BOOL, GOOD),
    "NonZero": (["c"], TensorProto.INT64, np.nonzero(GOOD)[0][None]),
    "Where": (["c", "x", "z"], TensorProto.FLOAT, np.where(GOOD, X, -X)),
    "Compress": (["x", "c"], TensorProto.FLOAT, X[GOOD]),
}


def bits(value):
    return value.view(np.uint8) if value.dtype == bool else value


def nodes_of(op):
    return [helper.make_node(op, OPERATORS[op][0], ["y"])]


def constant(raw=RAW.tobytes()):
    return helper.make_tensor("c", TensorProto.BOOL, [COUNT], raw, raw=True)


def declared(names):
    kinds = {"c": TensorProto.BOOL, "d": TensorProto.BOOL}
    return [tensor(name, ["n"], kinds.get(name, TensorProto.FLOAT)) for name in names]


FEEDS = {"c": BAD, "d": ODD, "x": X, "z": -X}


@pytest.mark.parametrize("op", OPERATORS)
def test_feeds(op):
    names, dtype, expected = OPERATORS[op]
    session = treadle.InferenceSession(model(nodes_of(op), declared(names), [tensor("y", None, dtype)]))
    feeds = {name: FEEDS[name] for name in names}
    np.testing.assert_array_equal(bits(session.run(None, feeds)[0]), bits(expected))
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_cpu_input(name, value)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(bits(binding.copy_outputs_to_cpu()[0]), bits(expected))
    np.testing.assert_array_equal(RAW, BAD.view(np.uint8))  # the call has not changed the caller's memory


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("optimized", [True, False])
def test_initializers(op, optimized):
    names, dtype, expected = OPERATORS[op]
    made = model(nodes_of(op), declared([n for n in names if n != "c"]), [tensor("y", None, dtype)], [constant()])
    options = treadle.SessionOptions()
    if not optimized:
        options.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = treadle.InferenceSession(made, options)
    np.testing.assert_array_equal(bits(session.run(None, {n: FEEDS[n] for n in names if n != "c"})[0]), bits(expected))


def test_constants_chains_and_external_data(tmp_path):
    chain = [helper.make_node("Not", ["c"], ["n"]), helper.make_node("Cast", ["n"], ["y"], to=TensorProto.FLOAT)]
    expected = (~GOOD).astype(np.float32)
    made = model(chain, declared(["c"]), [tensor("y", None)])
    np.testing.assert_array_equal(treadle.InferenceSession(made).run(None, {"c": BAD})[0], expected)
    np.testing.assert_array_equal(
        treadle.InferenceSession(model([helper.make_node("Constant", [], ["c"], value=constant()), *chain], [], [tensor("y", None)])).run(None, {})[0], expected
    )
    (tmp_path / "weights").write_bytes(RAW.tobytes())
    outside = TensorProto(name="c", data_type=TensorProto.BOOL, dims=[COUNT], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "weights"), ("offset", "0"), ("length", str(COUNT))):
        outside.external_data.add(key=key, value=value)
    (tmp_path / "model.onnx").write_bytes(model(chain, [], [tensor("y", None)], [outside]))
    np.testing.assert_array_equal(treadle.InferenceSession(str(tmp_path / "model.onnx")).run(None, {})[0], expected)


def test_elements_of_sequences():
    made = model([helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0)], [sequence("s", None, TensorProto.BOOL)], [tensor("y", None, TensorProto.BOOL)])
    np.testing.assert_array_equal(bits(treadle.InferenceSession(made).run(None, {"s": [BAD, ODD]})[0]), bits(np.concatenate([GOOD, ODD])))


def test_bits_of_other_types():
    nodes = [helper.make_node("BitCast", ["u"], ["c"], to=TensorProto.BOOL), *nodes_of("Not")]
    made = model(nodes, [tensor("u", ["n"], TensorProto.UINT8)], [tensor("y", None, TensorProto.BOOL)], opset=26)
    np.testing.assert_array_equal(bits(treadle.InferenceSession(made).run(None, {"u": RAW})[0]), bits(~GOOD))


def test_compiled_models(tmp_path):
    """Booleans in a compiled model are checked as in any other file."""
    made = model([helper.make_node("Where", ["c", "x", "z"], ["y"])], declared(["x", "z"]), [tensor("y", None)], [constant()])
    options = treadle.SessionOptions()
    options.compiled_model_filepath = str(tmp_path / "made.treadle")
    treadle.InferenceSession(made, options)
    session = treadle.InferenceSession(str(tmp_path / "made.treadle"))
    np.testing.assert_array_equal(session.run(None, {"x": X, "z": -X})[0], np.where(GOOD, X, -X))

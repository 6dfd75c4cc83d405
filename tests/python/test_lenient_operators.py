"""Tests models that violate ONNX's text but run in ONNX Runtime, since exporters write them."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import treadle
from contrib import compare, model, run


def test_layer_normalization_stands_in_models_of_older_opsets(ort):
    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((2, 3, 8)), "scale": rng.standard_normal(8), "bias": rng.standard_normal(8)}
    inputs = {name: array.astype(np.float32) for name, array in inputs.items()}
    for opset in (11, 13, 16):
        compare(ort, "LayerNormalization", inputs, 1, {"axis": -1, "epsilon": 1e-3}, domain="", opset=opset)


def test_layer_normalization_of_older_opsets_may_have_misspelt_attributes(ort):
    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((2, 3, 8)).astype(np.float32), "scale": np.ones(8, np.float32)}
    compare(ort, "LayerNormalization", inputs, 1, {"axis": -1, "epsion": 1.0}, domain="", opset=16)
    with pytest.raises(treadle.errors.NotImplemented, match='the attribute "epsion" is not one of the operator\'s'):
        run(model("LayerNormalization", inputs, 1, {"axis": -1, "epsion": 1.0}, domain="", opset=17), inputs)


def test_stft_takes_signals_without_an_axis_of_parts(ort):
    rng = np.random.default_rng(0)
    for onesided in (0, 1):
        signal = rng.standard_normal((2, 64)).astype(np.float32)
        inputs = {"signal": signal, "step": np.array(8), "window": np.hanning(16).astype(np.float32), "length": np.array(16)}
        constants = ("step", "length")
        flat = run(model("STFT", inputs, 1, {"onesided": onesided}, constants, domain="", opset=17), {"signal": signal, "window": inputs["window"]})
        inputs["signal"] = signal[..., None]
        deep = compare(ort, "STFT", inputs, 1, {"onesided": onesided}, constants, domain="", opset=17, atol=1e-4)
        np.testing.assert_array_equal(flat[0], deep[0])


def test_dynamic_quantization_of_half_floats_is_that_of_floats():
    x = np.random.default_rng(0).standard_normal((3, 17)).astype(np.float16)
    y, scale, zero = run(model("DynamicQuantizeLinear", {"x": x}, 3, domain=""), {"x": x})
    wide = x.astype(np.float32)
    for actual, expected in zip((y, scale, zero), run(model("DynamicQuantizeLinear", {"x": wide}, 3, domain=""), {"x": wide})):
        np.testing.assert_array_equal(actual, expected)
    assert np.abs((y.astype(np.float32) - zero) * scale - wide).max() <= 0.51 * scale


def test_sparse_constants_may_have_their_indices_in_any_order(ort):
    values = numpy_helper.from_array(np.array([1, 2, 3], np.float32), "weights")
    for indices in ([7, 0, 5], [[1, 3], [0, 0], [1, 1]]):
        sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array(indices, np.int64), "weights_indices"), [2, 4])
        node = helper.make_node("Add", ["x", "weights"], ["y"])
        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in "xy")
        graph = helper.make_graph([node], "sparse", [x], [y], sparse_initializer=[sparse])
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        assert isinstance(made, onnx.ModelProto)
        feeds = {"x": np.zeros((2, 4), np.float32)}
        expected = np.array([[2, 0, 0, 0], [0, 3, 0, 1]], np.float32)
        np.testing.assert_array_equal(ort.InferenceSession(made.SerializeToString()).run(None, feeds)[0], expected)
        np.testing.assert_array_equal(run(made.SerializeToString(), feeds)[0], expected)


@pytest.mark.parametrize("in_a_branch", [False, True])
@pytest.mark.parametrize("indices", [[1, 4, 5], [[0, 1], [1, 1], [1, 2]], []], ids=["linear", "pairs", "none"])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_constants_may_be_sparse(indices, dtype, in_a_branch):
    stored = np.arange(1, len(indices) + 1).astype(dtype)
    indices = np.array(indices, np.int64)
    expected = np.zeros((2, 3), dtype)
    expected.reshape(-1)[indices if indices.ndim == 1 else indices[:, 0] * 3 + indices[:, 1]] = stored
    sparse = helper.make_sparse_tensor(numpy_helper.from_array(stored, "v"), numpy_helper.from_array(indices, "i"), [2, 3])
    node = helper.make_node("Constant", [], ["y"], sparse_value=sparse)
    y = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [2, 3])
    inputs, feeds = [], {}
    if in_a_branch:
        branch = helper.make_graph([node], "branch", [], [y])
        node, feeds = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch), {"c": np.array(True)}
        inputs = [helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    made = helper.make_model(helper.make_graph([node], "g", inputs, [y]), opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    np.testing.assert_array_equal(run(made.SerializeToString(), feeds)[0], expected)


@pytest.mark.parametrize("fed", [False, True], ids=["constants", "fed"])
@pytest.mark.parametrize("limits", [(1, 3), (1, 3, 1), (3, 0, 1, -1), (-2, 9, -1, 1)], ids=str)
def test_slice_takes_scalars_for_vectors_of_one_element(limits, fed):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    start, end, axis, step = (*limits, 0, 1)[:4] if len(limits) != 3 else (*limits, 1)
    expected = x[(slice(None),) * (axis % 2) + (slice(start, end, step),)]
    inputs = {"x": x} | {name: np.array(value) for name, value in zip(("starts", "ends", "axes", "steps"), limits)}
    constants = () if fed else tuple(inputs)[1:]
    for static in (True, False):
        made = model("Slice", inputs, 1, constants=constants, domain="", static=static)
        np.testing.assert_array_equal(run(made, {name: value for name, value in inputs.items() if name not in constants})[0], expected)


@pytest.mark.parametrize("opset", [11, 13, 21])
@pytest.mark.parametrize("axis", [0, -1])
def test_squeeze_takes_a_scalar_for_a_row_of_one_element(axis, opset):
    """Squeeze of a scalar does what NumPy and PyTorch do."""
    x = np.array(3, np.float32)
    inputs = {"x": x} | ({"axes": np.array([axis])} if opset >= 13 else {})
    attributes = None if opset >= 13 else {"axes": [axis]}
    for constants in ((), ("axes",)):
        made = model("Squeeze", inputs, 1, attributes, constants, domain="", opset=opset)
        result = run(made, {name: value for name, value in inputs.items() if name not in constants})[0]
        assert result.shape == np.squeeze(x, axis).shape and result == 3
    inputs["axes"] = np.array([1])
    with pytest.raises(treadle.Error, match="axes = 1|axis 1|axes"):
        run(model("Squeeze", inputs, 1, None, ("axes",), domain="", opset=max(opset, 13)), {"x": x})


def constants_of_one_name(initializers, nodes):
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    given = [numpy_helper.from_array(np.array(value, np.float32), "k") for value in initializers]
    constants = [helper.make_node("Constant", [], ["k"], f"k{i}", value=numpy_helper.from_array(np.array(v, np.float32))) for i, v in enumerate(nodes)]
    order = [*constants[:1], helper.make_node("Add", ["x", "k"], ["z"]), *constants[1:], helper.make_node("Mul", ["z", "k"], ["y"])]
    graph = helper.make_graph(order, "constants", [x], [y], given)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


@pytest.mark.parametrize(
    ("initializers", "nodes"),
    [([], [[1, 2], [5, 7]]), ([], [[1, 2], [5, 7], [3, 3]]), ([[1, 2], [5, 7]], []), ([[9, 9]], [[1, 2]]), ([[9, 9], [8, 8]], [[1, 2], [4, 5]])],
    ids=["two nodes", "three nodes", "two initializers", "one of both", "two of both"],
)
def test_of_constants_of_one_name_the_last_one_holds(ort, initializers, nodes):
    made, feeds = constants_of_one_name(initializers, nodes), {"x": np.array([1, -1], np.float32)}
    options = ort.SessionOptions()
    options.log_severity_level = 4
    expected = ort.InferenceSession(made, options, providers=["CPUExecutionProvider"]).run(None, feeds)
    np.testing.assert_array_equal(run(made, feeds)[0], expected[0])


def test_a_value_that_is_made_twice_is_refused_unless_it_is_a_constant(ort):
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    constant = helper.make_node("Constant", [], ["k"], value_floats=[1.0, 2.0])
    made = [helper.make_node("Neg", ["x"], ["k"]), helper.make_node("Abs", ["x"], ["k"])]
    for twice in (made, [made[0], constant], [constant, made[0]]):
        graph = helper.make_graph([*twice, helper.make_node("Add", ["x", "k"], ["y"])], "twice", [x], [y])
        model_bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
        with pytest.raises(Exception, match="Duplicate definition"):
            ort.InferenceSession(model_bytes)
        with pytest.raises(treadle.Error, match='"k" is defined twice'):
            treadle.InferenceSession(model_bytes)


@pytest.mark.parametrize("columns", [1, 2, 4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_linear_models_may_have_more_coefficients_than_columns(columns, dtype):
    coefficients, intercepts = np.linspace(-1, 2, 12, dtype=np.float32), np.array([0.1, 0.2, 0.3], np.float32)
    x = np.arange(5 * columns).reshape(5, columns).astype(dtype)
    scores = x @ coefficients[: 3 * columns].reshape(3, columns).T + intercepts
    for op_type, more in (("LinearRegressor", {"targets": 3}), ("LinearClassifier", {"classlabels_ints": [0, 1, 2]})):
        results = [helper.make_value_info(name, onnx.TypeProto()) for name in ("y", "z")[: 1 + (op_type == "LinearClassifier")]]
        node = helper.make_node(op_type, ["x"], [each.name for each in results], domain="ai.onnx.ml", coefficients=coefficients, intercepts=intercepts, **more)
        graph = helper.make_graph([node], "graph", [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), ["rows", "columns"])], results)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
        session = treadle.InferenceSession(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
        np.testing.assert_allclose(session.run(None, {"x": x})[-1], scores, rtol=1e-5, atol=1e-5)
        with pytest.raises(treadle.errors.InvalidArgument, match="X has 5 columns, the model has 4 coefficients a score"):
            session.run(None, {"x": np.ones((2, 5), dtype)})

"""Tests values of undeclared rank: axes that old opsets and normalisations count from the front are determined during the run."""

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import treadle  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 4, 3)).astype(np.float32)
C = RNG.standard_normal(3).astype(np.float32)


def run(node, feeds, constants=None, opset=6, output=TensorProto.FLOAT, optimized=True):
    inputs = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), None) for name, value in feeds.items()]
    initializers = [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()]
    graph = helper.make_graph([node], "unknown_ranks", inputs, [helper.make_tensor_value_info("y", output, None)], initializers)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    options = treadle.SessionOptions()
    if not optimized:
        options.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    return treadle.InferenceSession(made.SerializeToString(), options).run(None, feeds)[0]


@pytest.mark.parametrize("x", [X, X[0], X[0, 0].T[:, :3]], ids=lambda x: f"rank {x.ndim}")
@pytest.mark.parametrize("declared", [True, False])
def test_slopes_of_old_prelu_belong_to_channels(x, declared):
    slope = C if x.ndim == 4 else C[: x.shape[1]] if x.shape[1] <= 3 else np.append(C, C[:1])
    stretched = slope.reshape(-1, *[1] * max(x.ndim - 2, 0))
    expected = np.where(x < 0, x * stretched, x)
    feeds = {"x": x} if declared else {"x": x, "k": slope}
    actual = run(helper.make_node("PRelu", ["x", "k"], ["y"]), feeds, {"k": slope} if declared else {})
    np.testing.assert_array_equal(actual, expected)


def test_slopes_of_old_prelu_may_have_axes_behind_their_channels():
    slope = C.reshape(3, 1, 1)
    actual = run(helper.make_node("PRelu", ["x", "k"], ["y"]), {"x": X, "k": slope})
    np.testing.assert_array_equal(actual, np.where(X < 0, X * slope, X))


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(("axis", "b"), [(1, C), (0, X[:, 0, 0, 0]), (1, X[0, :, :, 0]), (3, C), (-3, C), (-1, C), (0, X)])
def test_old_broadcasting_counts_axes_in_the_run(axis, b, constant):
    stretched = b.reshape(*b.shape, *[1] * (4 - axis % 4 - b.ndim))
    feeds, constants = ({"x": X}, {"b": b}) if constant else ({"x": X, "b": b}, {})
    for op, function in (("Add", np.add), ("Mul", np.multiply)):
        actual = run(helper.make_node(op, ["x", "b"], ["y"], broadcast=1, axis=axis), feeds, constants)
        np.testing.assert_array_equal(actual, function(X, stretched))
    actual = run(helper.make_node("Greater", ["x", "b"], ["y"], broadcast=1, axis=axis), feeds, constants, output=TensorProto.BOOL)
    np.testing.assert_array_equal(actual, stretched < X)


def test_old_broadcasting_that_does_not_fit_is_refused_by_the_run():
    with pytest.raises(treadle.Error):
        run(helper.make_node("Add", ["x", "b"], ["y"], broadcast=1, axis=3), {"x": X, "b": X[0]})


@pytest.mark.parametrize("constant", [True, False])
def test_the_oldest_tile_repeats_an_axis(constant):
    operands = {"tiles": np.array(2, np.float32), "axis": np.array(1, np.float32)}
    feeds, constants = ({"x": X}, operands) if constant else ({"x": X, **operands}, {})
    actual = run(helper.make_node("Tile", ["x", "tiles", "axis"], ["y"]), feeds, constants, opset=1)
    np.testing.assert_array_equal(actual, np.tile(X, (1, 2, 1, 1)))


def normalised(op, x, scale, bias, axis):
    axes, x = tuple(range(axis, x.ndim)), x.astype(np.float64)
    centred = x - x.mean(axes, keepdims=True) if op == "LayerNormalization" else x
    return centred / np.sqrt((centred**2).mean(axes, keepdims=True) + 1e-5) * scale + bias


@pytest.mark.parametrize("optimized", [True, False])
@pytest.mark.parametrize(("op", "opset"), [("LayerNormalization", 17), ("RMSNormalization", 23)])
@pytest.mark.parametrize(
    ("x", "scale", "axis"),
    [
        ((2, 1, 2, 2), (2, 1, 1, 2), 2),
        ((2, 3, 4), (2, 1, 4), 2),
        ((2, 3, 4), (1, 3, 4), 1),
        ((2, 3, 4), (3, 1), 1),
        ((3, 4), (4,), 1),
        ((2, 3, 4), (2, 1, 4), -1),
    ],
)
def test_scales_that_differ_between_rows(op, opset, x, scale, axis, optimized):
    x, scale = RNG.standard_normal(x).astype(np.float32), RNG.standard_normal(scale).astype(np.float32)
    names, feeds = ["x", "s"], {"x": x, "s": scale}
    if op == "LayerNormalization":
        names, feeds["b"] = [*names, "b"], RNG.standard_normal(scale.shape).astype(np.float32)
    node = helper.make_node(op, names, ["y"], axis=axis, epsilon=1e-5)
    expected = normalised(op, x, scale, feeds.get("b", 0), axis % x.ndim)
    for constants in ([], ["s"], ["s", "b"]):
        fed = {name: value for name, value in feeds.items() if name not in constants}
        actual = run(node, fed, {name: feeds[name] for name in constants if name in feeds}, opset, optimized=optimized)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("declared", ["all", "x", "s", "none"])
@pytest.mark.parametrize(("op", "opset"), [("LayerNormalization", 17), ("RMSNormalization", 23)])
@pytest.mark.parametrize(("x", "scale"), [((3, 4), (2, 3, 4)), ((1, 4), (2, 4)), ((4,), (3, 4)), ((3, 4), (1, 1, 1, 4))])
def test_a_scale_stretches_nothing(op, opset, x, scale, declared):
    feeds = {"x": np.ones(x, np.float32), "s": np.ones(scale, np.float32)}
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, list(value.shape) if declared in ("all", name) else None)
        for name, value in feeds.items()
    ]
    graph = helper.make_graph([helper.make_node(op, ["x", "s"], ["y"])], "stretched", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    if set(scale[: len(scale) - len(x)]) == {1} and declared != "all":
        pytest.skip("axes of extent 1 in front, which only the run tells, hold nothing")
    with pytest.raises(treadle.Error):
        treadle.InferenceSession(made.SerializeToString()).run(None, feeds)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("NhwcMaxPool", {"x": (TensorProto.FLOAT16, None)}, {"kernel_shape": [1]}),
        ("NhwcMaxPool", {"x": (TensorProto.FLOAT16, [3, 33])}, {"kernel_shape": [1]}),
        ("NhwcMaxPool", {"x": (TensorProto.FLOAT16, None)}, {"kernel_shape": [1] * 9}),
        *(
            ("GatherBlockQuantized", {"x": (TensorProto.UINT4, None), "i": (TensorProto.INT64, None), "s": (TensorProto.FLOAT, None)}, {"quantize_axis": axis})
            for axis in (-(2**63), 2**63 - 1)
        ),
    ],
)
def test_attributes_beyond_any_rank_end_no_process(op, inputs, attributes):
    infos = [helper.make_tensor_value_info(name, dtype, shape) for name, (dtype, shape) in inputs.items()]
    node = helper.make_node(op, list(inputs), ["y"], domain="com.microsoft", **attributes)
    graph = helper.make_graph([node], "g", infos, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)], ir_version=10)
    try:
        treadle.InferenceSession(model.SerializeToString())
    except treadle.Error as error:
        assert error.code in ("invalid_argument", "invalid_model", "not_implemented"), error


def node_of_rows(op, **attributes):
    return helper.make_node(op, ["x"], ["y"] if "Regressor" in op else ["label", "y"], domain="ai.onnx.ml", **attributes)


RECURRENT = {"w": RNG.standard_normal((2, 8, 3)).astype(np.float32), "r": RNG.standard_normal((2, 8, 2)).astype(np.float32)}
TOLD = {
    "LSTM": (helper.make_node("LSTM", ["x", "w", "r"], ["y", "h", "c"], hidden_size=2, direction="bidirectional"), {"x": X[0], **RECURRENT}, [[None, 2, None, 2], [2, None, 2], [2, None, 2]]),
    "LSTM, its weights declared": (helper.make_node("LSTM", ["x", "w", "r"], ["y"], direction="bidirectional"), {"x": X[0]}, [[None, 2, None, 2]]),
    "LSTM, batch first": (helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=2, direction="bidirectional", layout=1), {"x": X[0], **RECURRENT}, [[None, None, 2, 2]]),
    "BatchNormalization": (helper.make_node("BatchNormalization", ["x", "s", "s", "s", "s"], ["y", "m", "v"], training_mode=1), {"x": X, "s": np.abs(C)}, [None, [None], [None]]),
    "LinearClassifier": (node_of_rows("LinearClassifier", coefficients=[1.0, 0, 0, 0, 1.0, 0], intercepts=[0.0, 0], classlabels_ints=[0, 1]), {"x": X[0, 0]}, [[None], [None, 2]]),
    "LinearRegressor": (node_of_rows("LinearRegressor", coefficients=[1.0, 2, 3], intercepts=[0.0]), {"x": X[0, 0]}, [[None, 1]]),
}


@pytest.mark.parametrize("optimized", [True, False])
@pytest.mark.parametrize("case", TOLD)
def test_what_an_operator_says_of_its_outputs_is_told_without_the_shapes_of_its_inputs(case, optimized):
    node, feeds, expected = TOLD[case]
    inputs = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), None) for name, value in feeds.items()]
    constants = [numpy_helper.from_array(value, name) for name, value in RECURRENT.items() if name not in feeds]
    graph = helper.make_graph([node], "told", inputs, [helper.make_empty_tensor_value_info(name) for name in node.output], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    options = treadle.SessionOptions()
    if not optimized:
        options.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = treadle.InferenceSession(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString(), options)
    given = [output.shape for output in session.get_outputs()]
    for shape, outcome, want in zip(given, session.run(None, feeds), expected, strict=True):
        if want is not None:
            assert list(shape) == want
            assert [extent if known is not None else None for extent, known in zip(outcome.shape, want, strict=True)] == want

"""Compares rare forms of ONNX's operators with NumPy and ONNX Runtime. Models declare all extents, symbols, or nothing."""

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import treadle  # noqa: E402
from contrib import compare, model, run  # noqa: E402

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def agree(ort, op_type, inputs, expected, attributes=None, opset=21, domain="", constants=(), rtol=1e-5, atol=1e-5):
    """Compares NumPy's result with onnxruntime's and with Treadle's, for each degree of declared shapes."""
    for static in (True, False):
        ours = compare(ort, op_type, inputs, 1, attributes, constants, rtol, atol, static=static, domain=domain, opset=opset)
        np.testing.assert_allclose(ours[0], expected, rtol=rtol, atol=atol)


def refused(op_type, inputs, attributes=None, match=None, opset=21, domain=""):
    for static in (True, False, None):
        with pytest.raises(treadle.Error, match=match):
            run(model(op_type, inputs, 1, attributes, static=static, domain=domain, opset=opset), inputs)


@pytest.mark.parametrize("alpha", [-0.5, -2.0, 0.5, 3.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_celu_takes_a_negative_alpha(alpha, dtype):
    """Compares with NumPy only, as onnxruntime has the operator only for float32."""
    x = np.linspace(-4, 4, 41).astype(dtype)
    wide = x.astype(np.float64)
    expected = np.maximum(wide, 0) + np.minimum(0, alpha * np.expm1(wide / np.float32(alpha)))
    for static in (True, None):
        actual = run(model("Celu", {"x": x}, 1, {"alpha": alpha}, static=static, domain="", opset=28 if dtype == np.float64 else 12), {"x": x})[0]
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-7)


EINSUMS = [
    ("ij,jk->ik", (3, 1), (2, 2)),
    ("ij,jk->ik", (3, 2), (1, 4)),
    ("ij,ij->i", (3, 1), (3, 2)),
    ("ij,ij->", (3, 2), (1, 1)),
    ("i,i->", (1,), (4,)),
    ("bij,bjk->bik", (1, 3, 4), (2, 1, 5)),
    ("abc,cba->b", (1, 3, 2), (1, 3, 4)),
    ("...ij,...jk->...ik", (1, 3, 1), (2, 2, 4)),
    ("ij,jk->ik", (3, 4), (4, 2)),
    ("ij,jk->ik", (3, 0), (1, 2)),
]


@pytest.mark.parametrize(("equation", "a", "b"), EINSUMS)
@pytest.mark.parametrize("constant", [(), ("b",)], ids=["fed", "constant"])
def test_einsum_stretches_an_extent_of_one_that_it_sums_over(ort, equation, a, b, constant):
    a, b = floats(*a), floats(*b)
    terms, output = equation.split("->")
    extents = {}
    for term, x in zip(terms.split(","), (a, b)):
        for label, extent in zip(term.replace("...", "")[::-1], x.shape[::-1]):
            extents[label] = extent if extents.get(label, 1) == 1 else extents[label]
    stretched = []
    for term, x in zip(terms.split(","), (a, b)):
        labels = term.replace("...", "")
        stretched.append(np.broadcast_to(x, (*x.shape[: x.ndim - len(labels)], *(extents[label] for label in labels))))
    expected = np.einsum(equation, *(x.astype(np.float64) for x in stretched))
    for static in (True, False, None):
        fed = {"a": a, "b": b}
        actual = run(model("Einsum", fed, 1, {"equation": equation}, constant, static, domain=""), {n: x for n, x in fed.items() if n not in constant})
        np.testing.assert_allclose(actual[0], expected, rtol=1e-5, atol=1e-5)
    if 0 not in a.shape:
        compare(ort, "Einsum", {"a": a, "b": b}, 1, {"equation": equation}, constant, domain="")


def test_einsum_of_three_operands_stretches_between_them(ort):
    inputs = {"a": floats(2, 1), "b": floats(3, 4), "c": floats(1, 5)}
    expected = np.einsum("ij,jk,kl->il", np.broadcast_to(inputs["a"], (2, 3)), inputs["b"], np.broadcast_to(inputs["c"], (4, 5)))
    agree(ort, "Einsum", inputs, expected, {"equation": "ij,jk,kl->il"})


def codes(*shape, dtype=np.uint8):
    return RNG.integers(0, 200 if dtype == np.uint8 else 100, shape).astype(dtype)


ZERO_POINTS = [((2, 3, 4), (2, 4, 5), (2, 3, 1), (2, 1, 5)), ((2, 3, 4), (2, 4, 5), None, (2, 1, 5)), ((2, 2, 3, 4), (2, 2, 4, 4), (2, 2, 3, 1), (2, 2, 1, 4)), ((3, 4), (4, 5), (3,), (5,)), ((2, 3, 4), (4, 5), (2, 3, 1), (1, 5)), ((2, 3, 4), (4, 5), (), (5,))]


@pytest.mark.parametrize(("a", "b", "a_zero", "b_zero"), ZERO_POINTS)
@pytest.mark.parametrize("constants", [(), ("b", "b_zero")], ids=["fed", "constant"])
def test_each_matrix_of_a_stack_may_have_zero_points_of_its_own(a, b, a_zero, b_zero, constants):
    inputs = {"a": codes(*a), "b": codes(*b), "a_zero": None if a_zero is None else codes(*a_zero), "b_zero": codes(*b_zero)}
    of_a = 0 if inputs["a_zero"] is None else inputs["a_zero"].astype(np.int64)
    expected = (inputs["a"] - (of_a[:, None] if np.ndim(of_a) == 1 else of_a)) @ (inputs["b"] - inputs["b_zero"].astype(np.int64))
    fed = {name: x for name, x in inputs.items() if x is not None and name not in constants}
    for static in (True, None):
        actual = run(model("MatMulInteger", inputs, 1, {}, constants, static, domain=""), fed)[0]
        np.testing.assert_array_equal(actual, expected)


def test_one_zero_point_for_each_matrix_is_not_one_for_each_column():
    inputs = {"a": codes(4, 3, 4), "b": codes(4, 4, 4), "a_zero": None, "b_zero": codes(4, 1, 1)}
    feeds = {name: x for name, x in inputs.items() if x is not None}
    for static in (True, None):
        with pytest.raises(treadle.Error, match="b_zero_point"):
            run(model("MatMulInteger", inputs, 1, {}, (), static, domain=""), feeds)


def test_each_matrix_of_a_stack_may_have_scales_of_its_own():
    a, b, y_scale = codes(2, 3, 4), codes(2, 4, 5), np.float32(0.5)
    a_scale, b_scale = RNG.random((2, 3, 1)).astype(np.float32) * 0.01, RNG.random((2, 1, 5)).astype(np.float32) * 0.01
    a_zero, b_zero, y_zero = codes(2, 3, 1), codes(2, 1, 5), np.uint8(10)
    exact = ((a - a_zero.astype(np.float64)) * a_scale) @ ((b - b_zero.astype(np.float64)) * b_scale) / y_scale
    inputs = {"a": a, "a_scale": a_scale, "a_zero": a_zero, "b": b, "b_scale": b_scale, "b_zero": b_zero, "y_scale": y_scale, "y_zero": y_zero}
    inputs = {name: np.asarray(x) for name, x in inputs.items()}
    for static in (True, None):
        actual = run(model("QLinearMatMul", inputs, 1, {}, (), static, domain=""), inputs)[0]
        assert np.abs(actual.astype(np.int64) - np.clip(np.rint(exact) + 10, 0, 255)).max() <= 1


@pytest.mark.parametrize("block", [-1, -16])
@pytest.mark.parametrize("op", ["QuantizeLinear", "DequantizeLinear"])
def test_a_block_is_not_of_a_negative_size(op, block):
    x = floats(2, 4) if op == "QuantizeLinear" else codes(2, 4)
    refused(op, {"x": x, "scale": np.ones((2, 2), np.float32)}, {"block_size": block, "axis": 1}, "block_size is -")


@pytest.mark.parametrize("threshold", [1.5, -0.1, np.nan])
def test_overlaps_are_fractions(threshold):
    inputs = {"boxes": RNG.random((1, 4, 4)).astype(np.float32), "scores": RNG.random((1, 1, 4)).astype(np.float32)}
    inputs |= {"most": np.array([3]), "iou": np.array([threshold], np.float32)}
    refused("NonMaxSuppression", inputs, match="iou_threshold is")


def loop(iteration_shape, condition_shape):
    """Returns a loop that collects iteration numbers. Its body declares the number and the condition with these shapes."""
    i = helper.make_tensor_value_info("i", TensorProto.INT64, iteration_shape)
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, condition_shape)
    total, more = (helper.make_tensor_value_info(name, TensorProto.INT64, None) for name in ("t", "t2"))
    body = [
        helper.make_node("Concat", ["t", "i"], ["t2"], axis=0) if iteration_shape else helper.make_node("Add", ["t", "i"], ["t2"]),
        helper.make_node("Identity", ["c"], ["c2"]),
    ]
    body = helper.make_graph(body, "body", [i, condition, total], [helper.make_tensor_value_info("c2", TensorProto.BOOL, condition_shape), more])
    node = helper.make_node("Loop", ["n", "", "t0"], ["y"], body=body)
    start = numpy_helper.from_array(np.array([7]), "t0")
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("n", TensorProto.INT64, [])], [helper.make_tensor_value_info("y", TensorProto.INT64, None)], [start])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


@pytest.mark.parametrize("iteration_shape", [[1], []])
@pytest.mark.parametrize("condition_shape", [[1], []])
@pytest.mark.parametrize("optimized", [True, False])
def test_a_body_may_declare_the_iteration_number_as_a_vector(ort, iteration_shape, condition_shape, optimized):
    made, feeds = loop(iteration_shape, condition_shape), {"n": np.array(4)}
    options = treadle.SessionOptions()
    if not optimized:
        options.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    actual = treadle.InferenceSession(made, options).run(None, feeds)[0]
    np.testing.assert_array_equal(actual, [7, 0, 1, 2, 3] if iteration_shape else [13])
    np.testing.assert_array_equal(actual, ort.InferenceSession(made, providers=["CPUExecutionProvider"]).run(None, feeds)[0])


@pytest.mark.parametrize(
    "attributes",
    [{"scan_input_directions": [2]}, {"scan_input_directions": [0, 0]}, {"scan_output_directions": [0, 1]}, {"scan_input_axes": [0, 0]}, {"scan_output_axes": [0, 0]}],
    ids=str,
)
def test_lists_of_a_scan_name_what_it_scans_once(attributes):
    scalar = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [])  # noqa: E731
    body = helper.make_graph([helper.make_node("Add", ["s", "x"], ["t"]), helper.make_node("Identity", ["t"], ["o"])], "body", [scalar("s"), scalar("x")], [scalar("t"), scalar("o")])
    node = helper.make_node("Scan", ["start", "xs"], ["last", "all"], body=body, num_scan_inputs=1, **attributes)
    xs = helper.make_tensor_value_info("xs", TensorProto.FLOAT, [4])
    graph = helper.make_graph([node], "g", [scalar("start"), xs], [helper.make_tensor_value_info("all", TensorProto.FLOAT, None)])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    with pytest.raises(treadle.Error, match=next(iter(attributes))):
        treadle.InferenceSession(made)


def classical(op_type, inputs, declared, attributes):
    feeds = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in declared.items()]
    graph = helper.make_graph([helper.make_node(op_type, list(inputs), ["y"], domain="ai.onnx.ml", **attributes)], "g", feeds, [helper.make_empty_tensor_value_info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)], ir_version=8).SerializeToString()


@pytest.mark.parametrize("widths", [[6, 3], [4, 2], [8, 5]])
@pytest.mark.parametrize("declared", [True, False])
def test_features_of_more_axes_stand_side_by_side(ort, widths, declared):
    inputs = {"x": floats(2, 3, 2), "z": floats(2, 3)}
    made = classical("FeatureVectorizer", inputs, {name: list(x.shape) if declared else None for name, x in inputs.items()}, {"inputdimensions": widths})
    cut = lambda x, n: np.pad(x.reshape(2, -1), ((0, 0), (0, 8)))[:, :n]  # noqa: E731
    expected = np.concatenate([cut(x, n) for x, n in zip(inputs.values(), widths)], 1)
    for session in (treadle.InferenceSession(made), ort.InferenceSession(made, providers=["CPUExecutionProvider"])):
        np.testing.assert_array_equal(session.run(None, inputs)[0], expected)


@pytest.mark.parametrize(("text", "number"), [("-1.0", -1), ("3.7", 3), ("+12", 12), ("5.", 5)])
def test_a_map_of_texts_becomes_integers(text, number):
    value = helper.make_value_info("x", helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.STRING, [])))
    graph = helper.make_graph([helper.make_node("CastMap", ["x"], ["y"], domain="ai.onnx.ml", cast_to="TO_INT64")], "g", [value], [helper.make_empty_tensor_value_info("y")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)], ir_version=8).SerializeToString()
    session = treadle.InferenceSession(made)
    np.testing.assert_array_equal(session.run(None, {"x": {1: text}})[0], [[number]])
    for wrong in ("1.5e3", "1.x", "x", ""):
        with pytest.raises(treadle.Error):
            session.run(None, {"x": {1: wrong}})


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_simplified_normalisations_give_their_statistics(ort, domain):
    x, skip, gamma = floats(2, 3, 8), floats(2, 3, 8), floats(8)
    if domain:
        sums = (x + skip).astype(np.float64)
        deviation = 1 / np.sqrt((sums**2).mean(-1, keepdims=True) + 1e-12)
        inputs, names, expected = {"x": x, "s": skip, "g": gamma}, ["y", "mean", "deviation", "sum"], [sums * deviation * gamma, 0 * deviation, deviation, sums]
        compare(ort, "SkipSimplifiedLayerNormalization", inputs, names, domain=domain)
        made = [model("SkipSimplifiedLayerNormalization", inputs, names, static=static, domain=domain) for static in (True, None)]
    else:
        deviation = 1 / np.sqrt((x.astype(np.float64) ** 2).mean((1, 2), keepdims=True) + 1e-5)
        inputs, names, expected = {"x": x, "g": floats(3, 8)}, ["y", "deviation"], [None, deviation]
        expected[0] = x * deviation * inputs["g"]
        made = [model("SimplifiedLayerNormalization", inputs, names, {"axis": axis, "epsilon": 1e-5}, static=static, domain=domain) for static in (True, None) for axis in (1, -2)]
    for one in made:
        for a, e in zip(run(one, inputs), expected, strict=True):
            np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("groups", ["of all columns", "of the padding, too", None])
@pytest.mark.parametrize("zeros", ["codes", "floats", None])
@pytest.mark.parametrize("fed", [("b",), ("z",), ("b", "z"), ()], ids=str)
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_weights_of_some_bits_may_be_computed(bits, fed, zeros, groups):
    k, n, block = 40, 6, 16
    blocks, padded, most = 3, 48, 2**bits
    values, middle = RNG.integers(0, most, (n, padded)), RNG.integers(0, most, (n, blocks))
    pack = lambda x: sum(x.reshape(*x.shape[:-1], -1, 8 // bits)[..., i] << (bits * i) for i in range(8 // bits)).astype(np.uint8)  # noqa: E731
    scales, x = RNG.random((n, blocks)).astype(np.float32), floats(3, k)
    row = np.zeros((n, -(-blocks * bits // 8) * 8 // bits), np.int64)
    row[:, :blocks] = middle
    z = {"codes": pack(row).reshape(-1), "floats": middle.astype(np.float32).reshape(-1), None: None}[zeros]
    group = None if groups is None else (np.arange(k if groups == "of all columns" else padded) // block).astype(np.int32)
    inputs = {"x": x, "b": pack(values).reshape(n, blocks, -1), "s": scales.reshape(-1), "z": z, "g": group}
    own = np.arange(k) // block
    expected = x.astype(np.float64) @ ((values[:, :k] - (middle if zeros else np.full((n, blocks), most // 2))[:, own]) * scales[:, own]).T
    constants = [name for name in ("b", "s", "z", "g") if name not in fed]
    for static in (True, None):
        made = model("MatMulNBits", inputs, 1, {"K": k, "N": n, "bits": bits, "block_size": block}, constants, static)
        actual = run(made, {name: a for name, a in inputs.items() if a is not None and name not in constants})[0]
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("constants", [(), ("w",)])
def test_a_convolution_of_bytes_without_channels_is_a_sum_of_nothing(constants):
    inputs = {"x": np.zeros((1, 0, 4, 4), np.uint8), "w": np.zeros((2, 0, 3, 3), np.uint8)}
    for static in (True, None):
        made = model("ConvInteger", inputs, 1, None, constants, static=static, domain="", opset=21)
        (actual,) = run(made, {name: value for name, value in inputs.items() if name not in constants})
        np.testing.assert_array_equal(actual, np.zeros((1, 2, 2, 2), np.int32))


def test_shrink_keeps_integers_in_their_range():
    x = np.array([-128, -100, -1, 0, 1, 100, 127], np.int8)
    actual = run(model("Shrink", {"x": x}, 1, {"lambd": 50.0, "bias": -100.0}, domain="", opset=9), {"x": x})[0]
    np.testing.assert_array_equal(actual, np.array([-128, -128, 0, 0, 0, 127, 127], np.int8))

"""Tests the option `precision`: which nodes compute in less than float32, and how large the errors are."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import treadle
from treadle import errors

WEIGHTS = np.random.default_rng(1).standard_normal((200, 70)).astype(np.float32)
FILTERS = np.random.default_rng(2).standard_normal((24, 16, 1, 1)).astype(np.float32)


def product_model():
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], name="/first/MatMul"), helper.make_node("Relu", ["a"], ["y"], name="/first/Relu")]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name, size in (("x", 200), ("y", 70)))
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(WEIGHTS, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def conv_model():
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], name="/conv/Conv")]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size, 9, 7]) for name, size in (("x", 16), ("y", 24)))
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(FILTERS, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def run(model, x, precision, threads=1):
    options = treadle.SessionOptions()
    options.intra_op_num_threads, options.precision = threads, precision
    return treadle.InferenceSession(model, options).run(None, {"x": x})[0]


def error(got, exact):
    return float(np.abs(got - exact).max() / np.abs(exact).max())


@pytest.mark.parametrize(("precision", "least", "most"), [("float32", 0, 1e-6), ("bfloat16", 1e-4, 8e-3), ("bfloat16x3", 0, 2e-5), ("float16", 1e-5, 1e-3), ("int8_weights", 1e-4, 2e-2)])
@pytest.mark.parametrize("rows", [1, 37])
def test_a_product_has_the_error_of_its_precision(precision, least, most, rows):
    x = np.random.default_rng(3).standard_normal((rows, 200)).astype(np.float32)
    exact = np.maximum(x.astype(np.float64) @ WEIGHTS, 0)
    got = run(product_model(), x, precision)
    assert least <= error(got, exact) <= most
    assert np.array_equal(got, run(product_model(), x, precision, threads=2))


@pytest.mark.parametrize(("precision", "least", "most"), [("bfloat16", 1e-4, 8e-3), ("bfloat16x3", 0, 2e-5), ("float16", 1e-5, 1e-3), ("int8_weights", 0, 1e-6)])
def test_a_convolution_has_the_error_of_its_precision(precision, least, most):
    x = np.random.default_rng(4).standard_normal((1, 16, 9, 7)).astype(np.float32)
    exact = np.einsum("oc,nchw->nohw", FILTERS[:, :, 0, 0].astype(np.float64), x)
    assert least <= error(run(conv_model(), x, precision), exact) <= most


@pytest.mark.parametrize("opset", [13, 23])
def test_quantize_linear_keeps_its_own_attribute_precision(opset):
    """ONNX's attribute chooses the division's dtype. The optimiser's attribute of the same name must not replace it."""
    scale, zero = numpy_helper.from_array(np.float32(0.25), "scale"), numpy_helper.from_array(np.uint8(128), "zero")
    own = {"precision": TensorProto.FLOAT} if opset == 23 else {}
    nodes = [helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], **own), helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [64]) for name in "xy")
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], [scale, zero]), opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    values = np.linspace(-40, 40, 64, dtype=np.float32)
    expected = (np.clip(np.rint(values / np.float32(0.25)) + 128, 0, 255) - 128) * 0.25
    for precision in ("float32", "bfloat16", "float16", "int8_weights", "*=bfloat16x3"):
        assert np.array_equal(run(model.SerializeToString(), values, precision), expected), precision


def test_patterns_choose_nodes_and_the_last_one_counts():
    x = np.random.default_rng(5).standard_normal((5, 200)).astype(np.float32)
    results = {text: run(product_model(), x, text) for text in ("float32", "bfloat16", "/first/*=bfloat16", "bfloat16;*MatMul=float32;*Relu=float32")}
    assert np.array_equal(results["/first/*=bfloat16"], results["bfloat16"])
    assert not np.array_equal(results["bfloat16"], results["float32"])
    assert np.array_equal(results["bfloat16;*MatMul=float32;*Relu=float32"], results["float32"])
    with pytest.raises(errors.InvalidArgument, match='"/second/\\*" matches no node; is it /first/'):
        run(product_model(), x, "/second/*=bfloat16")


def test_a_config_entry_sets_the_option():
    options = treadle.SessionOptions()
    options.add_session_config_entry("treadle.precision", "bfloat16")
    assert options.precision == "bfloat16"


def test_a_wrong_precision_is_an_error_that_lists_the_right_ones():
    with pytest.raises(errors.InvalidArgument, match="float32, bfloat16, bfloat16x3, float16, int8_weights"):
        run(product_model(), np.zeros((1, 200), np.float32), "half")


def deep_model():
    """Returns a chain of eight products, the last of which are large."""
    rng = np.random.default_rng(3)
    nodes, weights, value = [], [], "x"
    for i in range(8):
        weights.append(numpy_helper.from_array(rng.standard_normal((96, 96)).astype(np.float32) / 10, f"w{i}"))
        nodes.append(helper.make_node("MatMul", [value, f"w{i}"], [f"y{i}"], name=f"/layer{i}/MatMul"))
        value = f"y{i}"
    nodes.append(helper.make_node("ArgMax", [value], ["label"], axis=-1, keepdims=0, name="/label"))
    outputs = [helper.make_tensor_value_info(value, 1, ["n", 96]), helper.make_tensor_value_info("label", 7, ["n"])]
    graph = helper.make_graph(nodes, "deep", [helper.make_tensor_value_info("x", 1, ["n", 96])], outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


@pytest.mark.parametrize("bound", [1e-9, 3e-4, 1e-3, 1.0])
def test_a_chosen_precision_keeps_to_its_bound(tmp_path, bound):
    path = tmp_path / "deep.onnx"
    path.write_bytes(deep_model())
    samples = [{"x": np.random.default_rng(seed).standard_normal((40, 96)).astype(np.float32)} for seed in range(3)]
    choice = treadle.choose_precision(path, samples, bound, timed_runs=3)
    assert [tried.precision for tried in choice.tried[:3]] == ["float32", "bfloat16", "bfloat16x3"]
    assert choice.error <= bound
    assert choice.tried[1].error > 1e-4 > choice.tried[2].error > 0
    if bound < 1e-6:
        assert choice.precision == "float32"
    options = treadle.SessionOptions()
    exact = treadle.InferenceSession(str(path), options)
    options.precision = choice.precision
    chosen = treadle.InferenceSession(str(path), options)
    worst = 0.0
    for sample in samples:
        (expected, label), (result, chosen_label) = exact.run(None, sample), chosen.run(None, sample)
        worst = max(worst, float(np.abs(result - expected).max() / np.abs(expected).max()))
        np.testing.assert_array_equal(label, chosen_label)
    assert worst == pytest.approx(choice.error, rel=1e-6)
    assert f"chosen: {choice.precision}" in str(choice)


def test_a_mixture_gives_some_nodes_fewer_bits(tmp_path):
    path = tmp_path / "deep.onnx"
    path.write_bytes(deep_model())
    samples = [{"x": np.random.default_rng(5).standard_normal((40, 96)).astype(np.float32)}]
    whole = treadle.choose_precision(path, samples, 1.0, timed_runs=1).tried[1].error
    choice = treadle.choose_precision(path, samples, whole * 0.6, timed_runs=1)
    mixed = choice.tried[3]
    assert mixed.precision.startswith("float32;")
    assert 0 < mixed.precision.count("=bfloat16") < 8
    assert 0 < mixed.error <= whole * 0.6


def test_choosing_needs_samples_and_a_bound(tmp_path):
    path = tmp_path / "deep.onnx"
    path.write_bytes(deep_model())
    with pytest.raises(errors.InvalidArgument, match="at least one"):
        treadle.choose_precision(path, [])
    with pytest.raises(errors.InvalidArgument, match="more than 0"):
        treadle.choose_precision(path, [{"x": np.zeros((1, 96), np.float32)}], 0)
    with pytest.raises(errors.InvalidArgument, match="no input"):
        treadle.choose_precision(path, [{"z": np.zeros((1, 96), np.float32)}])

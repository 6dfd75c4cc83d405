"""Compares small networks of bytes and of 16-bit floats with ONNX Runtime without optimisation."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import treadle

from conftest import need_exact_bytes


class Network:
    """Collects nodes and constants of a model with one input and one output."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.nodes, self.constants = [], []

    def constant(self, value):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(self, op, *inputs, **attributes):
        name = f"{op}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def model(self, shape, output, kind=TensorProto.FLOAT, output_kind=None):
        graph = helper.make_graph(self.nodes, "network", [helper.make_tensor_value_info("x", kind, shape)],
                                  [helper.make_tensor_value_info(output, output_kind or kind, None)], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def run_both(model, x):
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level, quiet.graph_optimization_level = 4, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    peer = onnxruntime.InferenceSession(model, quiet, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    return treadle.InferenceSession(model).run(None, {"x": x})[0], peer


class Quantised(Network):
    def __init__(self, seed, dtype):
        super().__init__(seed)
        self.dtype, self.info = dtype, np.iinfo(dtype)

    def point(self, low, high):
        """Returns the scale and zero point that represent a range of values."""
        scale = np.float32((high - low) / 255)
        zero = np.clip(np.rint(self.info.min - low / scale), self.info.min, self.info.max)
        return self.constant(scale), self.constant(self.dtype(zero))

    def between(self, x, low, high):
        point = self.point(low, high)
        return self.node("DequantizeLinear", self.node("QuantizeLinear", x, *point), *point)

    def convolution(self, x, channels, filters, kernel, group=1, **attributes):
        weights = self.rng.integers(-127, 128, (filters, channels // group, kernel, kernel), dtype=np.int8)
        scales = (self.rng.uniform(0.5, 1.5, filters) / (74 * kernel * (channels // group) ** 0.5)).astype(np.float32)
        w = self.node("DequantizeLinear", self.constant(weights), self.constant(scales), self.constant(np.zeros(filters, np.int8)), axis=0)
        x_scale = next(node.input[1] for node in self.nodes if node.output[0] == x)
        units = scales * next(numpy_helper.to_array(c) for c in self.constants if c.name == x_scale)
        bias = self.node("DequantizeLinear", self.constant(np.rint(self.rng.normal(0, 0.3, filters) / units).astype(np.int32)),
                         self.constant(units), self.constant(np.zeros(filters, np.int32)), axis=0)
        return self.node("Conv", x, w, bias, group=group, **attributes)


def convolutions_between_quantisations(dtype, seed, low, high):
    """Returns a model whose last sum is quantised from `low` to `high`, and its input."""
    n = Quantised(seed, dtype)
    height, width = (int(v) for v in n.rng.integers(9, 24, 2))
    a = n.between("x", -2, 2)
    a = n.between(n.node("Relu", n.convolution(a, 3, 24, 3, pads=[1, 1, 1, 1], strides=[2, 2])), 0, 4)
    deep = n.between(n.convolution(a, 24, 24, 3, group=24, pads=[2, 2, 2, 2], dilations=[2, 2]), -3, 3)
    wide = n.between(n.convolution(deep, 24, 70, 1), -3, 3)
    left = n.node("Relu", n.between(n.convolution(wide, 70, 17, 3, pads=[0, 1, 0, 1]), -3, 3))
    right = n.between(n.convolution(wide, 70, 9, 3, pads=[0, 1, 0, 1]), -2, 2)
    joined = n.between(n.node("Concat", left, right, axis=1), -1, 3)
    pooled = n.between(n.node("MaxPool", joined, kernel_shape=[2, 2], pads=[1, 0, 0, 1]), -1, 3)
    again = n.between(n.convolution(pooled, 26, 26, 1), -3, 3)
    total = n.between(n.node("Add", again, pooled), low, high)
    moved = n.between(n.node("Transpose", total, perm=[0, 2, 3, 1]), low, high)
    return n.model([2, 3, height, width], moved), n.rng.normal(0, 1, (2, 3, height, width)).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("seed", range(6))
def test_convolutions_between_quantisations(dtype, seed):
    ours, peers = run_both(*convolutions_between_quantisations(dtype, seed, -4.1, 4.03))
    # A sum half-way between two codes may be rounded to either of them, and later values then change too.
    steps = np.rint(np.abs(ours - peers) / (8.13 / 255))
    assert ours.shape == peers.shape
    assert steps.max() <= 2
    assert (steps > 0).mean() < 0.01


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("seed", range(6))
def test_sums_half_way_between_codes_are_exact_without_fusion(dtype, seed):
    """The scales' ratio is so simple that a quarter of the sums are half-way: a fused sum is at most two codes off, and the level basic exact."""
    model, x = convolutions_between_quantisations(dtype, seed, -4, 4)
    ours, peers = run_both(model, x)
    assert np.rint(np.abs(ours - peers) / (8 / 255)).max() <= 2
    options = treadle.SessionOptions()
    options.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_ENABLE_BASIC
    exact = treadle.InferenceSession(model, options).run(None, {"x": x})[0]
    np.testing.assert_array_equal(exact, peers)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("seed", range(4))
def test_qlinear_convolutions(dtype, seed):
    n = Quantised(seed, dtype)
    scale, zero = n.point(-2, 2)
    q = n.node("QuantizeLinear", "x", scale, zero)
    points = [(n.point(-3, 3)) for _ in range(3)]

    def conv(value, at, to, channels, filters, kernel, group=1, **attributes):
        weights = n.constant(n.rng.integers(-127, 128, (filters, channels // group, kernel, kernel), dtype=np.int8))
        factor = n.constant((n.rng.uniform(0.5, 1.5, filters) / (74 * kernel * (channels // group) ** 0.5)).astype(np.float32))
        bias = n.constant(n.rng.integers(-1000, 1000, filters, dtype=np.int32))
        return n.node("QLinearConv", value, *at, weights, factor, n.constant(np.zeros(filters, np.int8)), *to, bias, group=group, **attributes)

    y = conv(q, (scale, zero), points[0], 4, 33, 3, pads=[1, 1, 1, 1])
    y = n.node("QuantizeLinear", n.node("Relu", n.node("DequantizeLinear", y, *points[0])), *points[1])
    y = conv(y, points[1], points[2], 33, 33, 3, group=33, strides=[2, 1])
    y = conv(y, points[2], points[0], 33, 20, 1)
    kind = TensorProto.UINT8 if dtype is np.uint8 else TensorProto.INT8
    model = n.model([1, 4, 15, 12], y, output_kind=kind)
    if dtype is np.uint8:
        need_exact_bytes()
    ours, peers = run_both(model, n.rng.normal(0, 1, (1, 4, 15, 12)).astype(np.float32))
    difference = np.abs(ours.astype(int) - peers.astype(int))
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.01


@pytest.mark.parametrize("seed", range(4))
def test_dynamically_quantised_convolutions(seed):
    n = Network(seed)
    y = "x"
    for channels, filters, kernel, group in [(3, 20, 3, 1), (20, 20, 3, 20), (20, 37, 1, 1)]:
        name = f"q{len(n.nodes)}"
        n.nodes.append(helper.make_node("DynamicQuantizeLinear", [y], [name, name + "_scale", name + "_zero"], name=name))
        weights = n.constant(n.rng.integers(-127, 128, (filters, channels // group, kernel, kernel), dtype=np.int8))
        sums = n.node("ConvInteger", name, weights, name + "_zero", n.constant(np.int8(0)), group=group, pads=[kernel // 2] * 4)
        scale = n.node("Mul", name + "_scale", n.constant(np.float32(1 / (74 * kernel * (channels // group) ** 0.5))))
        y = n.node("Mul", n.node("Cast", sums, to=TensorProto.FLOAT), scale)
        y = n.node("Relu", n.node("Add", y, n.constant(n.rng.normal(0, 0.3, (1, filters, 1, 1)).astype(np.float32))))
    ours, peers = run_both(n.model([1, 3, 13, 10], y), n.rng.normal(0, 1, (1, 3, 13, 10)).astype(np.float32))
    np.testing.assert_allclose(ours, peers, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["float16"])
@pytest.mark.parametrize("seed", range(3))
def test_networks_of_16_bits(kind, seed):
    n = Network(seed)
    half = lambda *shape: n.constant((n.rng.standard_normal(shape) / max(1, np.prod(shape[1:])) ** 0.5).astype(kind))
    y = n.node("Relu", n.node("Conv", "x", half(16, 3, 3, 3), half(16), pads=[1, 1, 1, 1]))
    y = n.node("MaxPool", n.node("Concat", y, n.node("Conv", y, half(8, 16, 1, 1)), axis=1), kernel_shape=[2, 2], strides=[2, 2])
    y = n.node("Add", y, n.node("Conv", n.node("Sigmoid", y), half(24, 24, 3, 3), pads=[1, 1, 1, 1]))
    y = n.node("GlobalAveragePool", n.node("Transpose", y, perm=[0, 2, 1, 3]))
    y = n.node("Softmax", n.node("Gemm", n.node("Flatten", y), half(6, 10), half(10)))
    x = n.rng.standard_normal((2, 3, 12, 14)).astype(kind)
    ours, peers = run_both(n.model([2, 3, 12, 14], y, kind=TensorProto.FLOAT16), x)
    assert ours.dtype == peers.dtype
    np.testing.assert_allclose(ours.astype(np.float64), peers.astype(np.float64), rtol=4e-3, atol=1e-3)

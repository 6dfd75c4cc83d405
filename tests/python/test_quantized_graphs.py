"""Q/DQ graphs of several nodes against onnx's reference evaluator: codes may differ by a stated number of steps, and not at all at the basic level.

The graphs are those of onnxruntime.quantization: every tensor between two operators is quantized and dequantized again.
"""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import treadle


class Network:
    """Builds a graph whose values are quantized by one scale each."""

    def __init__(self, code, seed=0):
        self.code, self.random = np.dtype(code), np.random.default_rng(seed)
        self.nodes, self.initializers, self.inputs, self.count = [], [], [], 0

    def constant(self, value):
        self.count += 1
        self.initializers.append(numpy_helper.from_array(np.asarray(value), f"c{self.count}"))
        return f"c{self.count}"

    def op(self, op_type, *inputs, **attributes):
        self.count += 1
        self.nodes.append(helper.make_node(op_type, list(inputs), [f"v{self.count}"], name=f"n{self.count}", **attributes))
        return f"v{self.count}"

    def zero(self, zero):
        """The zero point, given for codes from 0 to 255."""
        return self.constant(np.array(zero - (128 if self.code == np.int8 else 0), self.code))

    def codes(self, x, scale, zero):
        return self.op("QuantizeLinear", x, self.constant(np.float32(scale)), self.zero(zero))

    def again(self, x, scale, zero=128):
        scale, zero = self.constant(np.float32(scale)), self.zero(zero)
        return self.op("DequantizeLinear", self.op("QuantizeLinear", x, scale, zero), scale, zero)

    def weights(self, *shape, axis=0):
        scales = self.random.uniform(0.5, 1.5, shape[axis]).astype(np.float32) / np.float32(127 * np.prod(shape) ** 0.25)
        codes = self.random.integers(-127, 128, shape).astype(np.int8)
        zeros = self.constant(np.zeros(shape[axis], np.int8))
        return self.op("DequantizeLinear", self.constant(codes), self.constant(scales), zeros, axis=axis)

    def row(self, length, scale=0.02):
        """A quantized bias."""
        codes = self.constant(self.random.integers(-128, 128, length).astype(np.int8))
        return self.op("DequantizeLinear", codes, self.constant(np.float32(scale / 128)), self.constant(np.int8(0)))

    def input(self, shape):
        self.inputs.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, shape))
        return "x"

    def model(self, rank, *outputs):
        dtype = TensorProto.INT8 if self.code == np.int8 else TensorProto.UINT8
        infos = [helper.make_tensor_value_info(name, dtype, [None] * rank) for name in outputs]
        graph = helper.make_graph(self.nodes, "g", self.inputs, infos, self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
        onnx.checker.check_model(model)
        return model


def linear(n, x, inputs, outputs, scale):
    product = n.again(n.op("MatMul", x, n.weights(inputs, outputs, axis=1)), scale, 120)
    return n.again(n.op("Add", n.row(outputs), product), scale, 131)


def gelu(n, x, scale):
    erf = n.again(n.op("Erf", n.op("Div", x, n.constant(np.float32(1.4142135)))), 2 / 255)
    both = n.again(n.op("Mul", x, n.again(n.op("Add", erf, n.constant(np.float32(1))), 2 / 255, 0)), 2 * scale, 30)
    return n.again(n.op("Mul", both, n.constant(np.float32(0.5))), scale, 30)


def transformer(code, width=24, heads=3, tokens=11, batch=2):
    """A layer with attention, residuals, normalizations and a Gelu; the number of tokens is not known before the run."""
    n = Network(code)
    x = n.again(n.input([batch, "tokens", width]), 0.03)
    normal = n.again(n.op("LayerNormalization", x, n.row(width, 2.0), n.row(width), axis=-1), 0.03, 125)
    qkv = n.op("Reshape", linear(n, normal, width, 3 * width, 0.02), n.constant(np.array([batch, -1, 3, heads, width // heads])))
    qkv = n.again(n.op("Transpose", n.again(qkv, 0.02, 131), perm=[2, 0, 3, 1, 4]), 0.02, 131)
    n.count += 1
    parts = [f"part{i}" for i in range(3)]
    n.nodes.append(helper.make_node("Split", [qkv, n.constant(np.array([1, 1, 1]))], parts, axis=0))
    q, k, v = (n.again(n.op("Squeeze", n.again(part, 0.02, 131), n.constant(np.array([0]))), 0.02, 131) for part in parts)
    k = n.again(n.op("Transpose", k, perm=[0, 1, 3, 2]), 0.02, 131)
    scores = n.again(n.op("MatMul", n.again(n.op("Mul", q, n.constant(np.float32(0.35))), 0.01), k), 0.02)
    weights = n.again(n.op("Softmax", scores, axis=-1), 1 / 255, 0)
    context = n.again(n.op("Transpose", n.again(n.op("MatMul", weights, v), 0.01, 127), perm=[0, 2, 1, 3]), 0.01, 127)
    context = n.again(n.op("Reshape", context, n.constant(np.array([batch, -1, width]))), 0.01, 127)
    x = n.again(n.op("Add", x, linear(n, context, width, width, 0.02)), 0.04, 130)
    hidden = gelu(n, linear(n, x, width, 4 * width, 0.03), 0.03)
    y = n.codes(n.op("Add", linear(n, hidden, 4 * width, width, 0.03), x), 0.05, 126)
    return n.model(3, y), [batch, tokens, width]


def convolutions(code, channels=24, size=(9, 13), batch=2):
    """A block of each kind: few channels, depthwise with a wide window, groups, squeeze and excite, a transposed convolution and a join."""
    n = Network(code)
    x = n.again(n.input(["batch", 3, *size]), 0.02)
    conv = lambda x, w, scale, zero, **attributes: n.again(n.op("Conv", x, w, **attributes), scale, zero)
    same = {"pads": [1, 1, 1, 1]}
    y = n.again(n.op("Relu", n.op("Conv", x, n.weights(channels, 3, 3, 3), **same)), 0.02, 0)
    deep = conv(y, n.weights(channels, 1, 5, 5), 0.03, 128, group=channels, pads=[2, 2, 2, 2])
    grouped = conv(deep, n.weights(channels, 8, 3, 3), 0.04, 120, group=channels // 8, **same)
    gate = n.again(n.op("GlobalAveragePool", grouped), 0.01, 128)
    gate = n.again(n.op("Sigmoid", conv(gate, n.weights(channels, channels, 1, 1), 0.02, 128)), 1 / 255, 0)
    grouped = n.again(n.op("Mul", grouped, gate), 0.03, 120)
    y = n.again(n.op("Relu", n.op("Add", conv(grouped, n.weights(channels, channels, 1, 1), 0.03, 125), y)), 0.03, 0)
    down = conv(y, n.weights(16, channels, 3, 3), 0.05, 131, strides=[2, 2], **same)
    pooled = n.again(n.op("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2]), 0.03, 0)
    up = n.again(n.op("ConvTranspose", pooled, n.weights(channels, 16, 2, 2, axis=1), strides=[2, 2]), 0.05, 128)
    wide = conv(n.again(n.op("Concat", up, up, axis=1), 0.05, 128), n.weights(8, 32, 1, 1), 0.05, 128)
    return n.model(4, n.codes(down, 0.05, 131), n.codes(wide, 0.05, 128)), [batch, 3, *size]


def run(model, feeds, level):
    options = treadle.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = 2
    return treadle.InferenceSession(model.SerializeToString(), options).run(None, feeds)


@pytest.mark.parametrize("code", ["uint8", "int8"])
@pytest.mark.parametrize("build", [transformer, convolutions])
def test_codes_are_those_of_the_reference_but_for_a_few_steps(build, code):
    model, shape = build(code)
    feeds = {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    expected = ReferenceEvaluator(model).run(None, feeds)
    levels = treadle.GraphOptimizationLevel
    for level, most, share in ((levels.ORT_DISABLE_ALL, 1, 0.01), (levels.ORT_ENABLE_BASIC, 1, 0.01), (levels.ORT_ENABLE_ALL, 4, 0.3)):
        for actual, wanted in zip(run(model, feeds, level), expected):
            assert actual.dtype == wanted.dtype and actual.shape == wanted.shape
            steps = np.abs(actual.astype(int) - wanted.astype(int))
            assert steps.max() <= most and (steps > 0).mean() <= share, f"{level}: {steps.max()} steps, {(steps > 0).mean():.4f} of the codes"
            assert len(np.unique(wanted)) > 20, "the example uses few codes"


@pytest.mark.parametrize("build", [transformer, convolutions])
def test_other_extents_and_batches_follow(build):
    """The same session runs other extents, and several of them at once give the same codes as one after the other."""
    model, shape = build("uint8")
    axis = 1 if build is transformer else 0
    session = treadle.InferenceSession(model.SerializeToString())
    for extent in (1, 4, 7):
        shape[axis] = extent
        feeds = {"x": np.random.default_rng(extent).standard_normal(shape).astype(np.float32)}
        for actual, wanted in zip(session.run(None, feeds), ReferenceEvaluator(model).run(None, feeds)):
            steps = np.abs(actual.astype(int) - wanted.astype(int))
            assert steps.max() <= 4 and (steps > 0).mean() <= 0.3

"""Compares com.microsoft's quantised and fused operators with ONNX Runtime. TREADLE_TEST_ROUNDS sets the number of random cases."""

import ml_dtypes
import numpy as np
import pytest
import treadle

from onnx import TensorProto, helper, numpy_helper
from conftest import need_exact_bytes
from contrib import compare, model, run
from test_microsoft_operators import ROUNDS, floats, pick, small, window

# Not compared, since ONNX Runtime is wrong: QLinearSoftmax over one element (256 becomes 0), and QLinearAveragePool with ceil_mode and
# count_include_pad (it counts elements beyond the pads).


def codes(rng, *shape, dtype):
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def quantisation(rng, dtype, low=0.01, high=0.05):
    """Returns a random scale and zero point."""
    return np.array(rng.uniform(low, high), np.float32), codes(rng, dtype=dtype)


def operand(rng, name, dtype, *shape):
    scale, zero = quantisation(rng, dtype)
    return {name: codes(rng, *shape, dtype=dtype), name + "_scale": scale, name + "_zero": zero}


def result(rng, dtype, low=0.01, high=0.05):
    scale, zero = quantisation(rng, dtype, low, high)
    return {"y_scale": scale, "y_zero": zero}


def parameters_of(inputs):
    return tuple(name for name in inputs if name.endswith(("_scale", "_zero")))


def byte(rng):
    return pick(rng, np.int8, np.uint8)


def binary(op_type):
    def case(rng):
        dtype, shape = byte(rng), (small(rng), small(rng), small(rng))
        other = pick(rng, shape, (1, shape[1], 1), shape[2:])
        inputs = operand(rng, "a", dtype, *shape) | operand(rng, "b", dtype, *other) | result(rng, dtype, 0.02, 0.1)
        return op_type, inputs, {"steps": 1}

    return case


def unary(op_type, **attributes):
    def case(rng):
        dtype = byte(rng)
        inputs = operand(rng, "x", dtype, small(rng), small(rng), small(rng)) | result(rng, dtype)
        return op_type, inputs, {"steps": 1, "attributes": attributes, "constants": parameters_of(inputs)}

    return case


def softmax(rng):
    dtype = byte(rng)
    inputs = operand(rng, "x", dtype, small(rng, 2), small(rng, 2), small(rng, 2))
    inputs |= {"y_scale": np.array(pick(rng, 1 / 256, 1 / 255, 0.0039, 0.01), np.float32), "y_zero": np.array(np.iinfo(dtype).min, dtype)}
    attributes = {"axis": int(rng.integers(-3, 3)), "opset": int(pick(rng, 9, 13))}
    return "QLinearSoftmax", inputs, {"steps": 1, "attributes": attributes, "constants": parameters_of(inputs)}


def concat(rng):
    dtype, rows, columns = byte(rng), small(rng), small(rng)
    inputs = result(rng, dtype)
    for k in range(small(rng, 1, 4)):
        inputs |= operand(rng, f"x{k}", dtype, rows, small(rng), columns)
    return "QLinearConcat", inputs, {"steps": 1, "attributes": {"axis": int(pick(rng, 1, -2))}}


def where(rng):
    dtype, shape = byte(rng), (small(rng), small(rng))
    inputs = {"condition": rng.integers(0, 2, shape).astype(bool)}
    inputs |= operand(rng, "a", dtype, *shape) | operand(rng, "b", dtype, *shape) | result(rng, dtype)
    return "QLinearWhere", inputs, {"steps": 1, "constants": parameters_of(inputs)}


def average_pool(rng):
    dtype, last, channels, size = byte(rng), int(rng.integers(2)), small(rng), (small(rng, 4, 9), small(rng, 4, 9))
    shape = (small(rng), *size, channels) if last else (small(rng), channels, *size)
    inputs = operand(rng, "x", dtype, *shape) | result(rng, dtype)
    attributes = window(rng)
    del attributes["dilations"]
    attributes["pads"] = [int(rng.integers(0, extent)) for extent in attributes["kernel_shape"] * 2]
    attributes |= {"channels_last": last} | pick(rng, {}, {"ceil_mode": 1}, {"count_include_pad": 1})
    return "QLinearAveragePool", inputs, {"steps": 1, "attributes": attributes, "constants": parameters_of(inputs)}


def global_average_pool(rng):
    dtype = byte(rng)
    inputs = operand(rng, "x", dtype, small(rng), small(rng), small(rng), small(rng)) | result(rng, dtype)
    return "QLinearGlobalAveragePool", inputs, {"steps": 1, "attributes": {"channels_last": int(rng.integers(2))}}


def gemm(rng):
    dtype, M, N, K = byte(rng), small(rng), small(rng), small(rng, 1, 20)
    trans_a, trans_b, per_channel = (bool(rng.integers(2)) for _ in range(3))
    inputs = operand(rng, "a", dtype, *((K, M) if trans_a else (M, K)))
    scale = np.asarray(rng.uniform(0.01, 0.05, N if per_channel else ()).astype(np.float32))
    inputs |= {"b": codes(rng, *((N, K) if trans_b else (K, N)), dtype=dtype), "b_scale": scale, "b_zero": np.zeros(scale.shape, dtype)}
    inputs |= {"c": rng.integers(-500, 500, N).astype(np.int32) if rng.integers(2) else None}
    if rng.integers(2):
        inputs |= result(rng, dtype, 0.2, 0.5)
    attributes = {"transA": int(trans_a), "transB": int(trans_b), "alpha": float(pick(rng, 1.0, 0.5))}
    constants = (*parameters_of(inputs), "b", "c")
    return "QGemm", inputs, {"steps": 1, "rtol": 1e-4, "atol": 1e-4, "attributes": attributes, "constants": constants}


def weights(rng):
    """Returns random weights with scales and zero points, and sometimes a bias."""
    dtype, N, K = byte(rng), small(rng), small(rng, 1, 20)
    scale = np.asarray(rng.uniform(0.01, 0.05, pick(rng, (), (N,))).astype(np.float32))
    return codes(rng, K, N, dtype=dtype), scale, np.full(scale.shape, 0 if dtype == np.int8 else 128, dtype), floats(rng, N) if rng.integers(2) else None


def dynamic_matmul(rng):
    b, scale, zero, bias = weights(rng)
    inputs = {"a": floats(rng, small(rng), len(b)), "b": b, "b_scale": scale, "b_zero": zero, "bias": bias}
    return "DynamicQuantizeMatMul", inputs, {"rtol": 1e-3, "atol": 1e-3}


def matmul_to_float(rng):
    b, scale, zero, bias = weights(rng)
    a = operand(rng, "a", np.uint8, small(rng), len(b))
    inputs = {"a": a["a"], "b": b, "a_scale": a["a_scale"], "b_scale": scale, "a_zero": a["a_zero"], "b_zero": zero, "bias": bias}
    return "MatMulIntegerToFloat", inputs, {"rtol": 1e-4, "atol": 1e-4}


def per_axis(rng, quantised):
    dtype, shape, axis = pick(rng, np.int8, np.uint8, np.int16, np.uint16), (small(rng), small(rng), small(rng)), int(rng.integers(3))
    parameters = shape[axis : axis + 1] if rng.integers(2) else ()
    x = codes(rng, *shape, dtype=dtype) if quantised else floats(rng, *shape)
    scale = np.asarray(rng.uniform(0.01, 0.1, parameters).astype(np.float32))
    return {"x": x, "scale": scale, "zero": codes(rng, *parameters, dtype=dtype)}, {"steps": 1, "attributes": {"axis": axis}}


def quantize(rng):
    return "QuantizeLinear", *per_axis(rng, False)


def dequantize(rng):
    return "DequantizeLinear", *per_axis(rng, True)


def distances(rng):
    K = small(rng)
    attributes = {"metric": pick(rng, "euclidean", "sqeuclidean")}
    return "CDist", {"a": floats(rng, small(rng), K), "b": floats(rng, small(rng), K)}, {"attributes": attributes, "rtol": 1e-3, "atol": 2e-3}


def fused_matmul(rng):
    M, N, K, batch = small(rng), small(rng), small(rng), small(rng)
    trans_a, trans_b = int(rng.integers(2)), int(rng.integers(2))
    inputs = {"a": floats(rng, batch, *((K, M) if trans_a else (M, K))), "b": floats(rng, batch, *((N, K) if trans_b else (K, N)))}
    attributes = {"transA": trans_a, "transB": trans_b, "alpha": 0.5}
    return pick(rng, "FusedMatMul", "TransposeMatMul"), inputs, {"attributes": attributes, "rtol": 1e-4, "atol": 1e-4}


def fused_gemm(rng):
    M, N, K = small(rng), small(rng), small(rng)
    parameters = {"LeakyRelu": (0.2,), "Elu": (0.4,), "ThresholdedRelu": (0.3,), "HardSigmoid": (0.3, 0.4), "Selu": (1.5, None, 1.1)}
    activation = pick(rng, "Relu", "Tanh", "Sigmoid", "Softplus", "Softsign", *parameters)
    attributes = {"activation": activation, "alpha": 0.5, "beta": 2.0}
    for name, value in zip(("activation_alpha", "activation_beta", "activation_gamma"), parameters.get(activation, ()), strict=False):
        attributes |= {name: value} if value is not None else {}
    return "FusedGemm", {"a": floats(rng, M, K), "b": floats(rng, K, N), "c": floats(rng, N)}, {"attributes": attributes, "rtol": 1e-4, "atol": 1e-4}


def fused_conv(rng):
    attributes, group = window(rng), small(rng, 1, 3)
    channels, filters = group * small(rng), group * small(rng)
    parameters = {"LeakyRelu": [0.2], "Clip": [-0.5, 1.5], "HardSigmoid": [0.3, 0.4]}
    activation = pick(rng, "Relu", "Tanh", "Sigmoid", *parameters)
    attributes |= {"group": group, "activation": activation}
    if activation in parameters:
        attributes["activation_params"] = parameters[activation]
    inputs = {
        "x": floats(rng, small(rng), channels, small(rng, 4, 9), small(rng, 4, 9)),
        "w": floats(rng, filters, channels // group, *attributes["kernel_shape"]),
        "b": floats(rng, filters) if rng.integers(2) else None,
    }
    return "FusedConv", inputs, {"attributes": attributes, "rtol": 1e-4, "atol": 1e-4}


CASES = {
    "add": binary("QLinearAdd"),
    "mul": binary("QLinearMul"),
    "leaky_relu": unary("QLinearLeakyRelu", alpha=0.1),
    "sigmoid": unary("QLinearSigmoid"),
    "softmax": softmax,
    "concat": concat,
    "where": where,
    "average_pool": average_pool,
    "global_average_pool": global_average_pool,
    "gemm": gemm,
    "dynamic_matmul": dynamic_matmul,
    "matmul_to_float": matmul_to_float,
    "quantize": quantize,
    "dequantize": dequantize,
    "distances": distances,
    "fused_matmul": fused_matmul,
    "fused_gemm": fused_gemm,
    "fused_conv": fused_conv,
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_results_are_those_of_onnxruntime(ort, case):
    if case in (dynamic_matmul, matmul_to_float):
        need_exact_bytes()
    for seed in range(ROUNDS):
        op_type, inputs, options = case(np.random.default_rng(seed))
        compare(ort, op_type, inputs, **options)


def packed_codes(codes, bits):
    """Packs codes along the last axis, 8 / bits per byte, low bits first. A row's last byte may be partly unused."""
    codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % (8 // bits))]).astype(np.uint8)
    parts = codes.reshape(*codes.shape[:-1], -1, 8 // bits)
    return np.bitwise_or.reduce([parts[..., i] << (bits * i) for i in range(8 // bits)]).astype(np.uint8)


def gather_block_quantized(rng, bits):
    """Returns inputs with codes of `bits` bits packed in bytes, or with a 4-bit dtype, and the expected result by definition."""
    block, blocks, rank = pick(rng, 16, 32), small(rng, 1, 6), small(rng, 2, 6)
    gather_axis, axis = (0, rank - 1) if bits else tuple(int(i) for i in rng.permutation(rank)[:2])
    extents = [small(rng, 2, 6) for _ in range(rank)]
    grid = [blocks if i == axis else n for i, n in enumerate(extents)]
    extents[axis] = block * blocks
    signed = bits is None and bool(rng.integers(2))
    low, high = (-8, 8) if signed else (0, 2 ** (bits or 4))
    codes, scales = rng.integers(low, high, extents), rng.random(grid).astype(np.float32) + 0.5
    zeros = rng.integers(low, high, grid) if rng.integers(2) else None
    store = (lambda x: packed_codes(x, bits)) if bits else (lambda x: x.astype(ml_dtypes.int4 if signed else ml_dtypes.uint4))
    count = extents[gather_axis]
    indices = rng.integers(-count, count, (2, 3)[: small(rng, 1, 3)]).astype(pick(rng, np.int32, np.int64))
    inputs = {"data": store(codes), "indices": indices, "scales": scales, "zero_points": None if zeros is None else store(zeros)}
    middle = zeros if zeros is not None else 2 ** (bits - 1) if bits else 0
    spread = lambda x: np.repeat(x, block, axis) if np.ndim(x) else x  # noqa: E731
    table = ((codes - spread(middle)) * spread(scales)).astype(np.float32)
    attributes = {"block_size": block, "gather_axis": gather_axis, "quantize_axis": axis - rank if rng.integers(2) else axis}
    return inputs, attributes | ({"bits": bits} if bits else {}), table.take(indices, gather_axis)


@pytest.mark.parametrize("bits", [2, 4, 8, None], ids=lambda bits: f"{bits} bits in bytes" if bits else "int4 and uint4")
def test_quantised_rows_are_those_of_the_table(ort, bits):
    for seed in range(ROUNDS):
        inputs, attributes, expected = gather_block_quantized(np.random.default_rng(seed), bits)
        constants = ("data", "scales", "zero_points")
        for static in (True, False):
            ours = compare(ort, "GatherBlockQuantized", inputs, 1, attributes, constants, static=static)
            np.testing.assert_allclose(ours[0], expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"])
def test_rows_of_small_floats_are_those_of_the_table(ort, name):
    """A scale may be shared by a whole axis, and a block may be a whole axis (block_size = 0)."""
    dtype = getattr(ml_dtypes, name)
    for seed in range(ROUNDS):
        rng = np.random.default_rng(seed)
        rank, block, blocks = small(rng, 2, 5), pick(rng, 0, 16), small(rng, 1, 4)
        gather_axis, axis = (int(i) for i in rng.permutation(rank)[:2])
        if rng.integers(3) == 0:
            gather_axis = axis
        extents = [small(rng, 2, 6) for _ in range(rank)]
        extents[axis] = 16 * blocks
        grid = [blocks if i == axis and block else 1 if i == axis or rng.integers(3) == 0 else n for i, n in enumerate(extents)]
        codes, scales = rng.integers(-6, 7, extents).astype(np.float32).astype(dtype), rng.random(grid).astype(np.float32) + 0.5
        indices = rng.integers(-extents[gather_axis], extents[gather_axis], (2, 3))
        table = codes.astype(np.float32) * np.repeat(scales, extents[axis] // grid[axis], axis)
        attributes = {"block_size": block, "gather_axis": gather_axis, "quantize_axis": axis - rank if rng.integers(2) else axis}
        inputs = {"data": codes, "indices": indices, "scales": scales}
        for static in (True, False):
            ours = compare(ort, "GatherBlockQuantized", inputs, 1, attributes, ("data", "scales"), static=static)
            np.testing.assert_allclose(ours[0], table.take(indices, gather_axis), rtol=1e-6)


BAD_BLOCKS = [({"block_size": 15}, "block_size is 15"), ({"block_size": 0}, "block_size is 0"), ({"block_size": 48}, "block_size is 48"), ({"block_size": -16}, "block_size is -16"), ({"bits": 3}, "bits is 3"), ({"bits": 16}, "bits is 16")]


@pytest.mark.parametrize(("attributes", "message"), BAD_BLOCKS)
def test_blocks_and_bits_that_there_are_not_are_refused(attributes, message):
    inputs = {"data": np.ones((6, 16), np.uint8), "indices": np.array([0]), "scales": np.ones((6, 1), np.float32)}
    for static in (True, False, None):
        with pytest.raises(treadle.Error, match=message):
            run(model("GatherBlockQuantized", inputs, 1, {"bits": 8, "block_size": 16} | attributes, static=static), inputs)


@pytest.mark.parametrize("index", [6, -7, 2**31 - 1, -(2**31)])
def test_quantised_rows_that_there_are_not_are_zeros(ort, index):
    rng = np.random.default_rng(0)
    inputs = {"data": rng.integers(0, 256, (6, 16)).astype(np.uint8), "indices": np.array([0, index, 5], np.int32), "scales": np.ones((6, 1), np.float32)}
    ours = compare(ort, "GatherBlockQuantized", inputs, 1, {"bits": 8, "block_size": 16}, ("data", "scales"))
    assert not ours[0][1].any()
    assert ours[0][[0, 2]].any(1).all()


def test_a_table_shared_with_the_last_product_is_gathered_by_rows(ort):
    """onnxruntime-genai writes tied embeddings in this form: the reshaped weights of the last product are the table."""
    rng, (vocabulary, width, block) = np.random.default_rng(3), (24, 64, 32)
    weights = {
        "q": rng.integers(0, 256, (vocabulary, width // block, block // 2)).astype(np.uint8),
        "s": rng.random(vocabulary * width // block).astype(np.float32),
    }
    constants = {**weights, "rows": np.array([vocabulary, width // 2]), "blocks": np.array([vocabulary, width // block])}
    nodes = [
        helper.make_node("Reshape", ["q", "rows"], ["table"]),
        helper.make_node("Reshape", ["s", "blocks"], ["scales"]),
        helper.make_node("GatherBlockQuantized", ["table", "ids", "scales"], ["x"], domain="com.microsoft", bits=4, block_size=block, quantize_axis=1),
        helper.make_node("MatMulNBits", ["x", "q", "s"], ["y"], domain="com.microsoft", K=width, N=vocabulary, bits=4, block_size=block),
    ]
    graph = helper.make_graph(
        nodes,
        "tied",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "length", vocabulary])],
        [numpy_helper.from_array(x, name) for name, x in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)], ir_version=10).SerializeToString()
    ids = np.array([[0, 5, 23]])
    expected = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"ids": ids})[0]
    np.testing.assert_allclose(treadle.InferenceSession(model).run(None, {"ids": ids})[0], expected, rtol=1e-4, atol=1e-3)


def quantised_lstm(rng):
    directions, hidden, width, steps, batch = small(rng, 1, 3), small(rng, 1, 9), small(rng, 1, 9), small(rng), small(rng)
    per_channel = bool(rng.integers(2))

    def layer(k):
        dtype = np.int8
        scale = rng.uniform(0.002, 0.004, (directions, 4 * hidden) if per_channel else (directions,)).astype(np.float32)
        return rng.integers(-128, 128, (directions, k, 4 * hidden)).astype(dtype), scale, np.zeros(scale.shape, dtype)

    w, w_scale, w_zero = layer(width)
    r, r_scale, r_zero = layer(hidden)
    inputs = {
        "x": floats(rng, steps, batch, width),
        "w": w,
        "r": r,
        "b": floats(rng, directions, 8 * hidden) if rng.integers(2) else None,
        "lengths": rng.integers(1, steps + 1, batch).astype(np.int32) if rng.integers(2) else None,
        "initial_h": None,
        "initial_c": None,
        "p": None,
        "w_scale": w_scale,
        "w_zero": w_zero,
        "r_scale": r_scale,
        "r_zero": r_zero,
    }
    attributes = {"hidden_size": hidden, "direction": "bidirectional" if directions == 2 else pick(rng, "forward", "reverse")}
    return inputs, attributes


def rounded_to_bytes(x):
    """Quantises x as DynamicQuantizeLinear does, and dequantises it."""
    low, high = np.float32(min(x.min(), 0)), np.float32(max(x.max(), 0))
    scale = (high - low) / np.float32(255) if high > low else np.float32(1)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    return (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale


def lstm_of_bytes(x, w, r, b, lengths):
    """Computes one direction with NumPy. The input is rounded to bytes, and so are the whole batch's states in each step."""
    hidden, batch = r.shape[0], x.shape[1]
    h, c, y, x = np.zeros((batch, hidden)), np.zeros((batch, hidden)), np.zeros((*x.shape[:2], hidden)), rounded_to_bytes(x)
    sigmoid = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
    for step in range(len(x)):
        i, o, f, g = np.split(x[step] @ w + rounded_to_bytes(h.astype(np.float32)) @ r + b, 4, 1)
        going = (step < lengths)[:, None]
        c = np.where(going, sigmoid(f) * c + sigmoid(i) * np.tanh(g), c)
        h = np.where(going, sigmoid(o) * np.tanh(c), h)
        y[step] = np.where(going, h, 0)
    return y


def test_a_quantised_lstm_rounds_inputs_and_states(ort):
    need_exact_bytes()
    constants = ("w", "r", "b", "w_scale", "w_zero", "r_scale", "r_zero")
    for seed in range(ROUNDS):
        inputs, attributes = quantised_lstm(np.random.default_rng(seed))
        # Two codes may be equally near to a state.
        ours = compare(ort, "DynamicQuantizeLSTM", inputs, 3, attributes, constants, rtol=1e-4, atol=1e-3)
        if attributes["direction"] != "forward":
            continue

        def floats_of(name, inputs=inputs):
            return (inputs[name][0].astype(np.float64) - inputs[name + "_zero"][0]) * inputs[name + "_scale"][0]

        bias = np.zeros(4 * attributes["hidden_size"]) if inputs["b"] is None else inputs["b"].reshape(2, -1).sum(0)
        lengths = np.full(inputs["x"].shape[1], len(inputs["x"])) if inputs["lengths"] is None else inputs["lengths"]
        expected = lstm_of_bytes(inputs["x"], floats_of("w"), floats_of("r"), bias, lengths)
        np.testing.assert_allclose(ours[0][:, 0], expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("accuracy_level", [0, 4])
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_weights_of_four_bits_stay_so(ort, rank, accuracy_level, rows):
    """Tests activations of any rank. With `accuracy_level` 4, activations may be rounded to 8 bits, as onnxruntime does."""
    rng = np.random.default_rng(rows)
    k, n = 96, 80
    nodes = [helper.make_node("MatMulNBits", ["x", "b", "s"], ["y"], domain="com.microsoft", K=k, N=n, bits=4, block_size=32, accuracy_level=accuracy_level)]
    x = rng.normal(size=(1,) * (rank - 2) + (rows, k)).astype(np.float32)
    graph = helper.make_graph(nodes, "graph", [helper.make_tensor_value_info("x", 1, x.shape)], [helper.make_tensor_value_info("y", 1, None)],
                              [numpy_helper.from_array(rng.integers(0, 256, (n, k // 32, 16), dtype=np.uint8), "b"),
                               numpy_helper.from_array(rng.random(n * k // 32).astype(np.float32), "s")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)], ir_version=10).SerializeToString()
    session = treadle.InferenceSession(model)
    assert "BlockedMatMul" in session._sess.to_text("planned")
    have, want = session.run(None, {"x": x})[0], ort.InferenceSession(model).run(None, {"x": x})[0]
    tolerance = 1e-4 if accuracy_level == 0 else 2e-2  # only one of the two engines may have byte instructions
    np.testing.assert_allclose(have, want, rtol=tolerance, atol=tolerance * np.abs(want).max())

"""Products and convolutions of bytes on a GPU: compares values with NumPy and PyTorch, which compute in wider types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from test_gpu import on_gpu
from test_gpu_operators import floats, run

BYTES = [(np.uint8, np.int8), (np.int8, np.int8), (np.uint8, np.uint8)]


def codes(dtype: Any, *shape: int, seed: int = 1) -> np.ndarray:
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape).astype(dtype)


def requantized(sums: np.ndarray, scale: Any, zero: Any, dtype: Any) -> np.ndarray:
    limits = np.iinfo(dtype)
    return np.clip(np.round(sums.astype(np.float64) * scale) + float(zero), limits.min, limits.max).astype(dtype)


def assert_codes(got: np.ndarray, expected: np.ndarray) -> None:
    """Allows a few codes to differ by 1, because a quotient next to a half may round either way in float32."""
    difference = np.abs(got.astype(np.int32) - expected.astype(np.int32))
    assert difference.max() <= 1 and (difference != 0).mean() < 0.001


@pytest.mark.parametrize(("a_type", "b_type"), BYTES)
@pytest.mark.parametrize(("a_shape", "b_shape"), [((70, 33), (33, 130)), ((1, 300), (300, 1)), ((2, 3, 7, 33), (3, 33, 13)), ((2, 1, 5, 4), (1, 3, 4, 6)), ((5,), (5, 3))])
def test_products_of_bytes(a_shape: tuple[int, ...], b_shape: tuple[int, ...], a_type: Any, b_type: Any) -> None:
    a, b = codes(a_type, *a_shape), codes(b_type, *b_shape, seed=2)
    wide = a.astype(np.int64), b.astype(np.int64)
    got = run("MatMulInteger", {"a": a, "b": b}, fed="a", output=TensorProto.INT32)
    np.testing.assert_array_equal(got, wide[0] @ wide[1])
    a_zero, b_zero = codes(a_type, 1, seed=3)[0], codes(b_type, b_shape[-1], seed=4)
    got = run("MatMulInteger", {"a": a, "b": b, "z": np.array(a_zero), "w": b_zero}, fed="a", output=TensorProto.INT32)
    np.testing.assert_array_equal(got, (wide[0] - int(a_zero)) @ (wide[1] - b_zero.astype(np.int64)))


def test_products_of_bytes_with_zero_points_of_rows() -> None:
    a, b, zeros = codes(np.uint8, 2, 9, 17), codes(np.int8, 17, 5, seed=2), codes(np.uint8, 9, seed=3)
    got = run("MatMulInteger", {"a": a, "b": b, "z": zeros}, fed="a", output=TensorProto.INT32)
    np.testing.assert_array_equal(got, (a.astype(np.int64) - zeros[:, None]) @ b.astype(np.int64))
    own = codes(np.uint8, 2, 9, 1, seed=4)
    got = run("MatMulInteger", {"a": a, "b": b, "z": own}, fed="a", output=TensorProto.INT32)
    np.testing.assert_array_equal(got, (a.astype(np.int64) - own) @ b.astype(np.int64))


@pytest.mark.parametrize(("a_type", "b_type"), BYTES)
@pytest.mark.parametrize("per_column", [False, True])
def test_products_of_codes(per_column: bool, a_type: Any, b_type: Any) -> None:
    a, b = codes(a_type, 3, 40, 33), codes(b_type, 33, 70, seed=2)
    a_zero, b_zero, y_zero = codes(a_type, seed=3), codes(b_type, *([70] if per_column else []), seed=4), codes(a_type, seed=5)
    b_scale = np.abs(floats(*([70] if per_column else []), seed=6)).astype(np.float32) / 50
    operands = {"a": a, "as": np.array(0.02, np.float32), "az": np.array(a_zero), "b": b, "bs": np.array(b_scale), "bz": np.array(b_zero)}
    got = run("QLinearMatMul", operands | {"ys": np.array(0.5, np.float32), "yz": np.array(y_zero)}, fed=["a"])
    sums = (a.astype(np.int64) - a_zero.astype(np.int64)) @ (b.astype(np.int64) - b_zero.astype(np.int64))
    assert_codes(got, requantized(sums, np.float64(np.float32(0.02)) * b_scale / 0.5, y_zero, a_type))


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize(("x_type", "w_type"), BYTES)
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_convolutions_of_bytes(spatial: int, x_type: Any, w_type: Any, groups: int) -> None:
    x, w = codes(x_type, 2, 6, *(9, 11, 8)[:spatial]), codes(w_type, 18, 6 // groups, *(3, 2, 3)[:spatial], seed=2)
    x_zero, w_zero = codes(x_type, seed=3), codes(w_type, 18, seed=4)
    window = {"strides": [2, 1, 1][:spatial], "pads": [1, 2, 0][:spatial] * 2, "dilations": [1, 2, 1][:spatial], "group": groups}
    convolve = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)[spatial - 1]
    tensors = torch.from_numpy(x.astype(np.float64) - float(x_zero)), torch.from_numpy(w.astype(np.float64) - w_zero.reshape(18, *[1] * (spatial + 1)))
    sums = convolve(*tensors, None, window["strides"], window["pads"][:spatial], window["dilations"], groups).numpy()
    got = run("ConvInteger", {"x": x, "w": w, "z": np.array(x_zero), "v": w_zero}, output=TensorProto.INT32, **window)
    np.testing.assert_array_equal(got, sums)
    scale, bias, y_zero = np.abs(floats(18, seed=5)) / 50, codes(np.int8, 18, seed=6).astype(np.int32) * 50, codes(x_type, seed=7)
    operands = {"x": x, "xs": np.array(0.1, np.float32), "xz": np.array(x_zero), "w": w, "ws": scale, "wz": w_zero}
    operands |= {"ys": np.array(0.7, np.float32), "yz": np.array(y_zero), "b": bias}
    got = run("QLinearConv", operands, fed=["x"], **window)
    shape = (18, *[1] * spatial)
    assert_codes(got, requantized(sums + bias.reshape(shape), np.float64(np.float32(0.1)) * scale.reshape(shape) / np.float64(np.float32(0.7)), y_zero, x_type))


@pytest.mark.parametrize("count", [1, 255, 5000, 1_500_000])
def test_codes_by_the_range_of_the_data(count: int) -> None:
    x = floats(count) * 3 + 1
    got = run("DynamicQuantizeLinear", {"x": x}, outputs=3, output=None, types=[TensorProto.UINT8, TensorProto.FLOAT, TensorProto.UINT8])
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    scale = (high - low) / 255
    zero = np.clip(np.round(-low / scale), 0, 255)
    np.testing.assert_allclose(got[1], scale, rtol=1e-6)
    assert got[2] == zero
    assert_codes(got[0], np.clip(np.round(x.astype(np.float64) / scale) + zero, 0, 255).astype(np.uint8))


@pytest.mark.parametrize("shape", [(0,), (3, 4)])
def test_nothing_but_zeros_has_the_scale_1(shape: tuple[int, ...]) -> None:
    types = [TensorProto.UINT8, TensorProto.FLOAT, TensorProto.UINT8]
    got = run("DynamicQuantizeLinear", {"x": np.zeros(shape, np.float32)}, outputs=3, output=None, types=types)
    assert got[0].shape == shape and not got[0].any() and got[1] == 1 and got[2] == 0


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [1, 3, 70])
@pytest.mark.parametrize("zeros", [False, True])
def test_products_with_weights_of_few_bits(zeros: bool, rows: int, bits: int) -> None:
    k, n, block = 96, 40, 32
    random = np.random.default_rng(9)
    weights, zero_points = (random.integers(0, 2**bits, shape) for shape in ((n, k), (n, k // block)))
    scales = random.random((n, k // block)).astype(np.float32)

    def packed(values: np.ndarray) -> np.ndarray:
        padded = np.pad(values, ((0, 0), (0, values.shape[1] % 2)))
        return (values if bits == 8 else padded[:, ::2] | padded[:, 1::2] << 4).astype(np.uint8)

    constants = {"b": packed(weights).reshape(n, k // block, -1), "s": scales} | ({"z": packed(zero_points)} if zeros else {})
    node = helper.make_node("MatMulNBits", ["a", *constants], ["y"], domain="com.microsoft", K=k, N=n, bits=bits, block_size=block)
    graph = helper.make_graph(
        [node],
        "few bits",
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, ["m", k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    session = on_gpu(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())
    assert " cpu compute" not in session.to_text("planned")
    a = floats(rows, k)
    zero = zero_points if zeros else np.full_like(zero_points, 2 ** (bits - 1))
    wide = (weights - zero.repeat(block, 1)) * scales.astype(np.float64).repeat(block, 1)
    np.testing.assert_allclose(session.run(None, {"a": a})[0], a.astype(np.float64) @ wide.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("written", ["DequantizeLinear", "MatMulInteger"])
def test_products_of_scaled_bytes_are_one_node(written: str, per_column: bool) -> None:
    random = np.random.default_rng(3)
    a, b = random.integers(0, 256, (3, 70, 50)).astype(np.uint8), random.integers(-128, 128, (50, 90)).astype(np.int8)
    columns = 90 if per_column else 1
    b_scale, b_zero = (random.random(columns) / 50 + 0.01).astype(np.float32), random.integers(-9, 9, columns).astype(np.int8)
    if not per_column:
        b_scale, b_zero = b_scale.reshape(()), b_zero.reshape(())
    constants = {"sa": np.float32(0.02), "za": np.uint8(120), "b": b, "sb": b_scale, "zb": b_zero}
    if written == "DequantizeLinear":
        nodes = [
            helper.make_node("DequantizeLinear", ["a", "sa", "za"], ["wide_a"]),
            helper.make_node("DequantizeLinear", ["b", "sb", "zb"], ["wide_b"], axis=1),
            helper.make_node("MatMul", ["wide_a", "wide_b"], ["y"]),
        ]
    else:
        nodes = [
            helper.make_node("MatMulInteger", ["a", "b", "za", "zb"], ["sums"]),
            helper.make_node("Cast", ["sums"], ["wide"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["sa", "sb"], ["scale"]),
            helper.make_node("Mul", ["wide", "scale"], ["y"]),
        ]
        constants["sb"] = b_scale if per_column else b_scale.reshape(1)
    graph = helper.make_graph(
        nodes,
        "bytes",
        # A scale that is fed, as a constant one would be folded into the other.
        [helper.make_tensor_value_info("a", TensorProto.UINT8, ["n", 70, 50]), helper.make_tensor_value_info("sa", TensorProto.FLOAT, [])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items() if name != "sa"],
    )
    session = on_gpu(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString())
    made = [fields[:2] for fields in (line.split("\t") for line in session.to_text("devices").splitlines())]
    assert made == [["gpu:0", "QuantizedMatMul"]], made
    sums = (a.astype(np.float64) - 120) @ (b.astype(np.float64) - b_zero)
    np.testing.assert_allclose(session.run(None, {"a": a, "sa": np.float32(0.02)})[0], sums * (np.float64(np.float32(0.02)) * b_scale), rtol=1e-6)

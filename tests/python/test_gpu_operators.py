"""Operators on a GPU with constant and fed operands, compared with NumPy and PyTorch in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from test_gpu import on_gpu

import treadle


def run(
    op_type: str,
    operands: dict[str, np.ndarray | None],
    fed: str | list[str] = "x",
    output: int | None = None,
    outputs: int = 1,
    types: list[int] | None = None,
    skipped: int = 0,
    **attributes: Any,
) -> Any:
    """Runs the node on the GPU. `fed` has the names of operands that are inputs; others are constants, and None is an absent operand. All
    outputs have the type `output`, or that of the first operand, or each has its own of `types`. The first `skipped` outputs are absent."""
    feeds = {name: value for name, value in operands.items() if name in fed and value is not None}
    first = next(iter(value for value in operands.values() if value is not None))
    own = helper.np_dtype_to_tensor_dtype(first.dtype)
    names = [f"out{i}" if i >= skipped else "" for i in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op_type, [name if value is not None else "" for name, value in operands.items()], names, name="node", **attributes)],
        "one",
        [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape) for name, value in feeds.items()],
        [helper.make_tensor_value_info(name, dtype, None) for name, dtype in zip(names, types or [output or own] * outputs, strict=True) if name],
        [numpy_helper.from_array(value, name) for name, value in operands.items() if name not in feeds and value is not None],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    session = on_gpu(model.SerializeToString())
    plan = session.to_text("planned")
    assert f"{op_type} [gpu]" in plan, plan
    results = session.run(None, feeds)
    return results[0] if outputs == 1 + skipped else results


def floats(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.int64])
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pads(mode: str, dtype: Any) -> None:
    x = np.random.default_rng(2).integers(0, 100, (2, 5, 4, 6)).astype(dtype)
    pads = ((0, 0), (2, 3), (1, 0), (0, 4))
    value = np.array(7, dtype) if mode == "constant" else None
    given = np.array([low for low, _ in pads] + [high for _, high in pads])
    expected = np.pad(x, pads, mode, **({"constant_values": 7} if mode == "constant" else {}))
    np.testing.assert_array_equal(run("Pad", {"x": x, "p": given, "v": value}, mode=mode), expected)


def test_negative_pads_remove_elements() -> None:
    x = floats(3, 5, 7)
    expected = np.pad(x[:, 1:, :-2], ((0, 0), (0, 2), (1, 0)))
    np.testing.assert_array_equal(run("Pad", {"x": x, "p": np.array([0, -1, 1, 0, 2, -2])}), expected)


@pytest.mark.parametrize(
    ("mode", "coordinates", "size"),
    [("linear", "half_pixel", (13, 9)), ("linear", "align_corners", (13, 20)), ("cubic", "half_pixel", (11, 29)), ("cubic", "align_corners", (6, 31))],
)
def test_resizes_by_filters(mode: str, coordinates: str, size: tuple[int, int]) -> None:
    x = floats(2, 3, 7, 10)
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(x).double(), size, mode="bi" + mode, align_corners=coordinates == "align_corners", antialias=False
    )
    sizes = np.array([2, 3, *size])
    got = run("Resize", {"x": x, "roi": None, "scales": None, "s": sizes}, mode=mode, coordinate_transformation_mode=coordinates)
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("factor", [2, 3, 7])
def test_resizes_to_the_nearest(factor: int, dtype: Any) -> None:
    x = np.random.default_rng(3).integers(0, 100, (2, 5, 6)).astype(dtype)
    expected = x.repeat(factor, 1).repeat(factor, 2)
    for coordinates, nearest in (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")):
        got = run(
            "Resize",
            {"x": x, "roi": None, "s": np.array([1, factor, factor], np.float32)},
            mode="nearest",
            coordinate_transformation_mode=coordinates,
            nearest_mode=nearest,
        )
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.int64])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_places_of_extremes(axis: int, dtype: Any) -> None:
    x = np.random.default_rng(4).integers(-50, 50, (3, 700, 5)).astype(dtype)
    for op_type, find in (("ArgMax", np.argmax), ("ArgMin", np.argmin)):
        np.testing.assert_array_equal(run(op_type, {"x": x}, output=TensorProto.INT64, axis=axis, keepdims=0), find(x, axis))
        last = x.shape[axis] - 1 - find(np.flip(x, axis), axis)
        np.testing.assert_array_equal(run(op_type, {"x": x}, output=TensorProto.INT64, axis=axis, keepdims=0, select_last_index=1), last)


def test_a_nan_is_the_extreme() -> None:
    x = np.array([[1, np.nan, 3], [2, 1, 0]], np.float32)
    assert run("ArgMax", {"x": x}, output=TensorProto.INT64, axis=1, keepdims=0).tolist() == [1, 0]


def test_batches_are_normalized_by_given_statistics() -> None:
    x, scale, bias, mean = floats(3, 6, 5, 7), floats(6, seed=2), floats(6, seed=3), floats(6, seed=4)
    variance = np.abs(floats(6, seed=5)) + np.float32(0.1)
    got = run("BatchNormalization", {"x": x, "s": scale, "b": bias, "m": mean, "v": variance}, epsilon=1e-3)
    tensors = (torch.from_numpy(v).double() for v in (x, mean, variance, scale, bias))
    np.testing.assert_allclose(got, torch.nn.functional.batch_norm(*tensors, eps=1e-3).numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_transposed_convolutions(spatial: int, groups: int) -> None:
    x, w, b = floats(2, 6, *(7, 9, 4)[:spatial]), floats(6, 4, *(3, 4, 2)[:spatial], seed=2), floats(4 * groups, seed=3)
    got = run(
        "ConvTranspose",
        {"x": x, "w": w, "b": b},
        fed="xwb",
        group=groups,
        strides=[2, 3, 2][:spatial],
        pads=[1, 2, 0][:spatial] * 2,
        dilations=[2, 1, 2][:spatial],
        output_padding=[1, 0, 1][:spatial],
    )
    functions = torch.nn.functional.conv_transpose1d, torch.nn.functional.conv_transpose2d, torch.nn.functional.conv_transpose3d
    tensors = (torch.from_numpy(v).double() for v in (x, w, b))
    expected = functions[spatial - 1](*tensors, (2, 3, 2)[:spatial], (1, 2, 0)[:spatial], (1, 0, 1)[:spatial], groups, (2, 1, 2)[:spatial])
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_convolutions_of_three_dimensions(groups: int) -> None:
    x, w, b = floats(2, 6, 7, 9, 8), floats(18, 6 // groups, 3, 2, 3, seed=2), floats(18, seed=3)
    got = run("Conv", {"x": x, "w": w, "b": b}, group=groups, strides=[2, 1, 2], pads=[1, 0, 2] * 2, dilations=[1, 2, 1])
    tensors = (torch.from_numpy(v).double() for v in (x, w, b))
    expected = torch.nn.functional.conv3d(*tensors, (2, 1, 2), (1, 0, 2), (1, 2, 1), groups)
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-5, atol=1e-5)


def test_pools_of_three_dimensions() -> None:
    x = floats(2, 3, 7, 9, 8)
    tensor = torch.from_numpy(x).double()
    window = {"kernel_shape": [3, 2, 3], "strides": [2, 1, 2], "pads": [1, 0, 1] * 2}
    expected = torch.nn.functional.max_pool3d(tensor, (3, 2, 3), (2, 1, 2), (1, 0, 1))
    np.testing.assert_allclose(run("MaxPool", {"x": x}, **window), expected.numpy(), rtol=1e-6)
    for counts_pads in (0, 1):
        expected = torch.nn.functional.avg_pool3d(tensor, (3, 2, 3), (2, 1, 2), (1, 0, 1), count_include_pad=bool(counts_pads))
        got = run("AveragePool", {"x": x}, count_include_pad=counts_pads, **window)
        np.testing.assert_allclose(got, expected.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
@pytest.mark.parametrize("axis", [None, 1, -1])
def test_quantization(axis: int | None, dtype: Any) -> None:
    x = floats(3, 4, 5) * 10
    random, limits = np.random.default_rng(6), np.iinfo(dtype)
    count = () if axis is None else (x.shape[axis],)
    scale = np.float32(2) ** random.integers(-5, 2, count).astype(np.float32)  # powers of two, so that quotients are exact
    scale, zero = np.asarray(scale, np.float32), np.asarray(random.integers(limits.min, limits.max, count), dtype)
    place = (Ellipsis,) if axis is None else (slice(None), None) if axis == 1 else (Ellipsis,)
    expected = np.clip(np.round(x.astype(np.float64) / scale[place]) + zero[place].astype(np.float64), limits.min, limits.max).astype(dtype)
    attributes = {} if axis is None else {"axis": axis}
    codes = run("QuantizeLinear", {"x": x, "s": scale, "z": zero}, output=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), **attributes)
    np.testing.assert_array_equal(codes, expected)
    back = run("DequantizeLinear", {"x": codes, "s": scale, "z": zero}, output=TensorProto.FLOAT, **attributes)
    np.testing.assert_array_equal(back, ((codes.astype(np.float64) - zero[place]) * scale[place]).astype(np.float32))


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.float32, np.int64])
def test_elements_are_gathered_by_indices_of_all_axes(dtype: Any) -> None:
    random = np.random.default_rng(7)
    x = random.integers(0, 2, (4, 5, 6)).astype(dtype)
    pairs = np.stack([random.integers(-4, 4, (3, 2)), random.integers(-5, 5, (3, 2))], -1)
    np.testing.assert_array_equal(run("GatherND", {"x": x, "i": pairs}, fed="xi"), x[pairs[..., 0], pairs[..., 1]])
    batch = random.integers(-5, 5, (4, 3, 1))
    expected = np.stack([x[b, batch[b, :, 0]] for b in range(4)])
    np.testing.assert_array_equal(run("GatherND", {"x": x, "i": batch}, fed="xi", batch_dims=1), expected)
    for axis in (0, 1, 2):
        index = random.integers(-x.shape[axis], x.shape[axis], (3, 5, 4) if axis != 1 else (4, 9, 6))
        within = tuple(slice(None) if i == axis else slice(0, extent) for i, extent in enumerate(index.shape))
        expected = np.take_along_axis(x[within], index, axis)
        np.testing.assert_array_equal(run("GatherElements", {"x": x, "i": index}, fed="xi", axis=axis), expected)


def test_an_index_outside_of_its_axis_is_an_error() -> None:
    x = floats(4, 5)
    with pytest.raises(treadle.Error, match='GatherND node "node" .*: an index is outside of its axis'):
        run("GatherND", {"x": x, "i": np.array([[1, 2], [3, 5]])}, fed="xi")
    with pytest.raises(treadle.Error, match='GatherElements node "node" .*: an index is outside of the axis, which has 5 elements'):
        run("GatherElements", {"x": x, "i": np.array([[2**32, 1]])}, fed="xi", axis=1)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64])
def test_ranges(dtype: Any) -> None:
    start, limit, delta = np.array(-3, dtype), np.array(900, dtype), np.array(2, dtype)
    graph = helper.make_graph(
        [helper.make_node("Range", ["a", "b", "c"], ["r"]), helper.make_node("Add", ["r", "x"], ["y"])],
        "range",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [])],
        [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), None)],
        [numpy_helper.from_array(value, name) for name, value in (("a", start), ("b", limit), ("c", delta))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    got = on_gpu(model.SerializeToString()).run(None, {"x": np.array(1, dtype)})[0]
    np.testing.assert_array_equal(got, np.arange(-3, 900, 2).astype(dtype) + 1)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def recurrent(op_type: str, x: np.ndarray, w: np.ndarray, r: np.ndarray, b: np.ndarray, h: np.ndarray, c: np.ndarray, resets_last: bool) -> Any:
    """Computes one sequence in one direction by ONNX's formulas, in float64, with gates in ONNX's order."""
    gates, hidden, outputs = len(w) // len(h), len(h), []
    for token in x:
        of_x, of_h = (w @ token + b[: len(w)]).reshape(gates, hidden), (r @ h + b[len(w) :]).reshape(gates, hidden)
        if op_type == "RNN":
            h = np.tanh(of_x[0] + of_h[0])
        elif op_type == "GRU":
            update, reset = sigmoid(of_x[0] + of_h[0]), sigmoid(of_x[1] + of_h[1])
            kept = reset * of_h[2] if resets_last else r[2 * hidden :] @ (reset * h) + b[len(w) + 2 * hidden :]
            h = (1 - update) * np.tanh(of_x[2] + kept) + update * h
        else:
            c = sigmoid(of_x[2] + of_h[2]) * c + sigmoid(of_x[0] + of_h[0]) * np.tanh(of_x[3] + of_h[3])
            h = sigmoid(of_x[1] + of_h[1]) * np.tanh(c)
        outputs.append(h)
    return np.array(outputs).reshape(len(x), hidden), h, c


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("op_type", "resets_last"), [("RNN", 0), ("GRU", 0), ("GRU", 1), ("LSTM", 0)])
@pytest.mark.parametrize("complete", [False, True], ids=["least", "all operands"])
def test_recurrent_layers(op_type: str, resets_last: int, direction: str, complete: bool) -> None:
    steps, batch, features, hidden = 6, 3, 5, 7
    gates, directions = {"RNN": 1, "GRU": 3, "LSTM": 4}[op_type], 2 if direction == "bidirectional" else 1
    x, w, r = floats(steps, batch, features), floats(directions, gates * hidden, features, seed=2), floats(directions, gates * hidden, hidden, seed=3)
    b = floats(directions, 2 * gates * hidden, seed=4) if complete else np.zeros((directions, 2 * gates * hidden), np.float32)
    state = floats(directions, batch, hidden, seed=5) if complete else np.zeros((directions, batch, hidden), np.float32)
    cell = floats(directions, batch, hidden, seed=6) if complete and op_type == "LSTM" else np.zeros_like(state)
    lengths = np.array([6, 0, 4], np.int32) if complete else np.full(batch, steps, np.int32)
    operands: dict[str, np.ndarray | None] = {"x": x, "w": w, "r": r}
    if complete:
        operands |= {"b": b, "l": lengths, "h": state} | ({"c": cell} if op_type == "LSTM" else {})
    attributes = {"linear_before_reset": resets_last} if op_type == "GRU" else {}
    outputs = 3 if op_type == "LSTM" else 2
    got = run(op_type, operands, fed="xl", outputs=outputs, output=TensorProto.FLOAT, direction=direction, hidden_size=hidden, **attributes)
    for d in range(directions):
        backwards = direction == "reverse" or d == 1
        for n, length in enumerate(lengths):
            sequence = x[:length, n].astype(np.float64)
            parameters = (v[d].astype(np.float64) for v in (w, r, b))
            start = (v[d, n].astype(np.float64) for v in (state, cell))
            y, h, c = recurrent(op_type, sequence[::-1] if backwards else sequence, *parameters, *start, bool(resets_last))
            expected = np.zeros((steps, hidden))
            expected[:length] = y[::-1] if backwards else y
            np.testing.assert_allclose(got[0][:, d, n], expected, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(got[1][d, n], h, rtol=1e-5, atol=1e-5)
            if op_type == "LSTM":
                np.testing.assert_allclose(got[2][d, n], c, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("skipped", [1, 2])
def test_a_layer_may_write_its_last_states_only(skipped: int) -> None:
    x, w, r, zeros = floats(4, 1, 3), floats(1, 20, 3, seed=2), floats(1, 20, 5, seed=3), np.zeros(5)
    got = run("LSTM", {"x": x, "w": w, "r": r}, outputs=3, skipped=skipped, output=TensorProto.FLOAT, hidden_size=5)
    sequence, *parameters = (v.astype(np.float64) for v in (x[:, 0], w[0], r[0], np.zeros(40)))
    expected = recurrent("LSTM", sequence, *parameters, zeros, zeros, resets_last=False)[skipped:]
    for state, values in zip(got if skipped == 1 else [got], expected, strict=True):
        np.testing.assert_allclose(state[0, 0], values, rtol=1e-5, atol=1e-5)


def test_a_split_may_leave_parts_out() -> None:
    x = floats(6, 4)
    np.testing.assert_array_equal(run("Split", {"x": x}, outputs=2, skipped=1, num_outputs=2), x[3:])


def test_a_sequence_longer_than_its_data_is_an_error() -> None:
    x, w, r, b = floats(4, 2, 3), floats(1, 15, 3), floats(1, 15, 5), floats(1, 30)
    with pytest.raises(treadle.Error, match=r'GRU node "node" .*: a sequence\'s length is not in \[0, 4\]'):
        run("GRU", {"x": x, "w": w, "r": r, "b": b, "l": np.array([4, 5], np.int32)}, fed="xl", outputs=2, output=TensorProto.FLOAT, hidden_size=5)

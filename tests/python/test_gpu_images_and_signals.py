"""Operators on a GPU that sample images, transform signals, normalise and count, within small graphs: compared with the host and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_gpu import on_gpu

import treadle


def floats(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def build(
    op_type: str, feeds: dict[str, Any], constants: dict[str, Any], outputs: list[int], opset: int, attributes: dict[str, Any]
) -> bytes:
    """The operator between two negations: of its floating-point operands, and of its floating-point results."""
    nodes, names, initializers, inputs = [], [], [], []
    for name, value in {**feeds, **constants}.items():
        if value is None:
            names.append("")
            continue
        value = np.asarray(value)
        if name in constants:
            initializers.append(numpy_helper.from_array(value, name))
        else:
            inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape))
        if name in feeds and np.issubdtype(value.dtype, np.floating):
            nodes.append(helper.make_node("Neg", [name], [name + "_negated"]))
            name += "_negated"
        names.append(name)
    nodes.append(helper.make_node(op_type, names, [f"y{i}" for i in range(len(outputs))], name="node", **attributes))
    results = []
    for i, dtype in enumerate(outputs):
        negates = dtype in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
        nodes.append(helper.make_node("Neg" if negates else "Identity", [f"y{i}"], [f"z{i}"]))
        results.append(helper.make_tensor_value_info(f"z{i}", dtype, None))
    graph = helper.make_graph(nodes, "graph", inputs, results, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10).SerializeToString()


def run_both(
    op_type: str,
    feeds: dict[str, Any],
    constants: dict[str, Any] | None = None,
    outputs: list[int] | None = None,
    opset: int = 22,
    **attributes: Any,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Runs the graph on the GPU, where every node has to be, and on the host."""
    first = next(value for value in feeds.values() if value is not None)
    model = build(op_type, feeds, constants or {}, outputs or [helper.np_dtype_to_tensor_dtype(first.dtype)], opset, attributes)
    fed = {name: value for name, value in feeds.items() if value is not None}
    session = on_gpu(model)
    devices = session.to_text("devices")
    assert "gpu:0" in devices and "no kernel" not in devices, devices
    return session.run(None, fed), treadle.InferenceSession(model).run(None, fed)


def check(op_type: str, feeds: dict[str, Any], constants: dict[str, Any] | None = None, tolerance: float = 2e-6, **options: Any) -> None:
    got, expected = run_both(op_type, feeds, constants, **options)
    for y, t in zip(got, expected, strict=True):
        assert y.dtype == t.dtype and y.shape == t.shape
        largest = np.max(np.abs(t.astype(np.float64))) if t.size else 1
        step = {np.dtype(np.float16): 1e-3}.get(y.dtype, 0)  # results that the two round differently
        np.testing.assert_allclose(y.astype(np.float64), t.astype(np.float64), rtol=tolerance + step, atol=tolerance * largest)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("aligned", [0, 1])
def test_samples_at_grids(dtype: Any, mode: str, padding: str, aligned: int) -> None:
    grid = (floats(2, 9, 8, 2, seed=2) * 0.8).astype(dtype)
    options = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    tolerance = 2e-3 if dtype == np.float16 else 2e-6
    check("GridSample", {"x": floats(2, 3, 6, 7).astype(dtype), "grid": grid}, tolerance=tolerance, **options)


def test_samples_along_one_and_three_axes() -> None:
    check("GridSample", {"x": floats(2, 3, 11), "grid": floats(2, 9, 1, seed=2)})
    check("GridSample", {"x": floats(2, 3, 4, 5, 6), "grid": floats(2, 3, 4, 5, 3, seed=2)}, padding_mode="reflection")


@pytest.mark.parametrize("aligned", [0, 1])
def test_makes_affine_grids(aligned: int) -> None:
    check("AffineGrid", {"theta": floats(2, 2, 3)}, {"size": np.array([2, 3, 6, 1])}, align_corners=aligned)
    check("AffineGrid", {"theta": floats(2, 3, 4)}, {"size": np.array([2, 3, 4, 5, 6])}, align_corners=aligned)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [0, 2])
def test_pools_aligned_regions(mode: str, coordinates: str, ratio: int) -> None:
    regions = -np.array([[1, 2, 9, 8], [0, 0, 3, 40], [-90, -90, 90, 90], [5, 5, 5, 5]], np.float32)  # the graph negates them
    options = {"mode": mode, "coordinate_transformation_mode": coordinates, "sampling_ratio": ratio, "output_height": 3, "output_width": 4}
    check("RoiAlign", {"x": floats(2, 3, 12, 10), "r": regions, "b": np.array([0, 1, 1, 0])}, spatial_scale=0.5, **options)


def test_a_region_of_no_image_is_told() -> None:
    feeds = {"x": floats(2, 3, 12, 10), "r": floats(2, 4), "b": np.array([0, 2])}
    session = on_gpu(build("RoiAlign", feeds, {}, [TensorProto.FLOAT], 22, {}))
    with pytest.raises(treadle.Error, match=r'RoiAlign node "node" .*: a region lies in no image of 2'):
        session.run(None, feeds)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
def test_regions_with_nan_are_those_of_the_host(mode: str, coordinates: str) -> None:
    x, images = floats(1, 2, 6, 5), np.zeros(6, np.int64)
    x[0, 0, 2, 2] = np.nan
    regions = -np.abs(floats(6, 4)) * 3
    regions[np.arange(4), np.arange(4)] = np.nan
    options = {"mode": mode, "coordinate_transformation_mode": coordinates, "output_height": 3, "output_width": 2}
    (got,), (expected,) = run_both("RoiAlign", {"x": x, "r": regions, "b": images}, sampling_ratio=2, **options)
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-6)
    feeds = {"x": x, "r": regions, "b": images}
    session = on_gpu(build("RoiAlign", feeds, {}, [TensorProto.FLOAT], 22, options))  # a region's extent determines the number of its samples
    with pytest.raises(treadle.Error, match="a part of a region spans"):
        session.run(None, feeds)


def test_pools_maxima_of_regions() -> None:
    regions = -np.array([[0, 1, 2, 9, 8], [1, 0, 0, 3, 30], [1, -4, -4, 2, 2], [0, 20, 20, 30, 30]], np.float32)
    check("MaxRoiPool", {"x": floats(2, 3, 12, 10), "r": regions}, pooled_shape=[3, 4], spatial_scale=0.5)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("masked", [False, True])
def test_deformed_convolutions(groups: int, masked: bool) -> None:
    feeds = {
        "x": floats(2, 4, 9, 8),
        "w": floats(6, 4 // groups, 3, 2, seed=2),
        "offset": floats(2, 2 * 2 * 6, 5, 4, seed=3),
        "b": floats(6, seed=4),
        "mask": floats(2, 2 * 6, 5, 4, seed=5) if masked else None,
    }
    options = {"strides": [2, 2], "pads": [1, 1, 1, 0], "dilations": [1, 1], "kernel_shape": [3, 2]}
    check("DeformConv", feeds, group=groups, offset_group=2, **options)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.int32, np.uint64])
def test_puts_columns_together(dtype: Any) -> None:
    columns = np.random.default_rng(1).integers(-50, 50, (2, 3 * 2 * 3, 3 * 4)).astype(dtype)
    shapes = {"image": np.array([7, 9]), "block": np.array([2, 3])}
    check("Col2Im", {"x": columns}, shapes, strides=[3, 2], pads=[1, 0, 1, 1], dilations=[2, 1], tolerance=1e-3 if dtype == np.float16 else 1e-6)


@pytest.mark.parametrize("length", [1, 7, 64, 60, 101, 1024])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("inverse", [0, 1])
def test_fourier_transforms(length: int, parts: int, inverse: int) -> None:
    x = floats(3, length, 2, parts)
    (got,), (expected,) = run_both("DFT", {"x": x}, {"n": None, "axis": np.array(1)}, inverse=inverse)
    complexes = x[..., 0] + 1j * (x[..., 1] if parts == 2 else 0)
    truth = (np.fft.ifft if inverse else np.fft.fft)(complexes.astype(np.complex128), axis=1)
    largest = np.abs(truth).max()
    np.testing.assert_allclose(got[..., 0] + 1j * got[..., 1], truth, rtol=0, atol=1e-6 * largest)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6 * largest)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_fourier_transforms_of_other_lengths_and_types(dtype: Any) -> None:
    tolerance = {np.float16: 2e-3, np.float32: 1e-6, np.float64: 1e-13}[dtype]
    x = floats(2, 20, 1).astype(dtype)
    for length in (12, 33):
        check("DFT", {"x": x}, {"n": np.array(length), "axis": np.array(1)}, onesided=1, tolerance=tolerance)
    halves = floats(2, 17, 2).astype(dtype)
    check("DFT", {"x": halves}, {"n": np.array(32), "axis": np.array(1)}, inverse=1, onesided=1, tolerance=tolerance)


@pytest.mark.parametrize("onesided", [0, 1])
def test_short_time_fourier_transforms(onesided: int) -> None:
    window = np.hanning(40).astype(np.float32)
    check("STFT", {"x": floats(2, 200, 1), "step": np.array(16), "w": window}, {"length": np.array(40)}, onesided=onesided, tolerance=1e-6)
    (got,), _ = run_both("STFT", {"x": floats(1, 96, 1)}, {"step": np.array(8), "w": None, "length": np.array(24)}, onesided=0)
    x = floats(1, 96, 1)[0, :, 0].astype(np.float64)
    truth = np.fft.fft(np.stack([x[i : i + 24] for i in range(0, 73, 8)]))
    np.testing.assert_allclose(got[0, ..., 0] + 1j * got[0, ..., 1], truth, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_normalizations(dtype: Any) -> None:
    x = floats(3, 6, 5, 70).astype(dtype)
    tolerance = 2e-3 if dtype == np.float16 else 2e-6
    for axis in (-1, 1):
        for p in (1, 2):
            check("LpNormalization", {"x": x}, axis=axis, p=p, tolerance=tolerance)
        check("Hardmax", {"x": x}, axis=axis)
    check("LRN", {"x": x}, size=4, alpha=0.3, beta=0.6, bias=1.5, tolerance=tolerance)
    check("MeanVarianceNormalization", {"x": x}, tolerance=tolerance)
    check("MeanVarianceNormalization", {"x": x}, axes=[3, 1], tolerance=tolerance)
    check("LpPool", {"x": x}, kernel_shape=[3, 4], strides=[2, 3], pads=[1, 1, 0, 2], p=3, tolerance=tolerance)
    for p in (1, 2, 3):
        check("GlobalLpPool", {"x": x}, p=p, tolerance=tolerance)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_normalizes_groups_of_channels(groups: int) -> None:
    check("GroupNormalization", {"x": floats(3, 6, 5, 70), "s": floats(6, seed=2), "b": floats(6, seed=3)}, num_groups=groups, epsilon=1e-3)


def test_pools_bytes() -> None:
    x = np.random.default_rng(1).integers(-128, 127, (2, 3, 9, 8)).astype(np.int8)
    check("MaxPool", {"x": x}, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1])


INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_divides_integers_by_computed_numbers(dtype: Any) -> None:
    info, random = np.iinfo(dtype), np.random.default_rng(1)
    a = random.integers(info.min, info.max, (3, 1, 50), dtype, endpoint=True)
    b = random.integers(max(info.min, -9), 9, (4, 50), dtype)
    b[b == 0] = 7
    a[0, 0, 0] = info.min
    if info.min < 0:
        b[0, 0] = dtype(-1)  # the quotient wraps
    for op_type, attributes in (("Div", {}), ("Mod", {}), ("Mod", {"fmod": 1})):
        (got,), (expected,) = run_both(op_type, {"a": a, "b": b}, **attributes)
        np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(run_both("Mod", {"a": a, "b": b})[0][0][:, 1:], np.mod(a, b[1:]))


@pytest.mark.parametrize("op_type", ["Div", "Mod"])
def test_a_division_by_zero_is_told(op_type: str) -> None:
    feeds = {"a": np.arange(10), "b": np.arange(10) - 5}
    session = on_gpu(build(op_type, feeds, {}, [TensorProto.INT64], 22, {}))
    with pytest.raises(treadle.Error, match=rf'{op_type} node "node" .*: integer division by zero'):
        session.run(None, feeds)
    feeds["b"][5] = 1  # the session still works
    np.testing.assert_array_equal(session.run(None, feeds)[0][6:], (feeds["a"] // feeds["b"] if op_type == "Div" else feeds["a"] % feeds["b"])[6:])


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_shifts_bits(dtype: Any) -> None:
    a = np.random.default_rng(1).integers(0, np.iinfo(dtype).max, (5, 40), dtype)
    by = np.arange(40).astype(dtype) * dtype(2)
    for direction in ("LEFT", "RIGHT"):
        (got,), (expected,) = run_both("BitShift", {"a": a, "b": by}, direction=direction)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
def test_compresses(dtype: Any) -> None:
    x = np.random.default_rng(1).integers(0, 100, (4, 50, 3)).astype(dtype)
    keep = np.random.default_rng(2).random(50) < 0.4
    for attributes, condition in (({"axis": 1}, keep), ({"axis": -2}, keep[:30]), ({}, np.tile(keep, 12)), ({"axis": 1}, keep & False)):
        (got,), (expected,) = run_both("Compress", {"x": x, "keep": condition}, **attributes)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float16, np.float32, np.float64, np.int64])
@pytest.mark.parametrize("is_sorted", [0, 1])
def test_finds_unique_numbers(dtype: Any, is_sorted: int) -> None:
    x = np.random.default_rng(1).integers(0, 90, (7, 200)).astype(dtype)
    if np.issubdtype(dtype, np.floating):
        x[3, :5] = np.nan
        x[4, :5] = -0.0
    types = [helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), *[TensorProto.INT64] * 3]
    got, expected = run_both("Unique", {"x": x}, outputs=types, sorted=is_sorted)
    for y, t in zip(got, expected, strict=True):
        np.testing.assert_array_equal(y, t)


@pytest.mark.parametrize("batch_axis", [0, 1])
def test_reverses_sequences(batch_axis: int) -> None:
    lengths = np.array([0, 1, 4, 7, 3])
    for dtype in (np.uint8, np.float32, np.int64):
        x = np.random.default_rng(1).integers(0, 100, (5, 7, 3) if batch_axis == 0 else (7, 5, 3)).astype(dtype)
        (got,), (expected,) = run_both("ReverseSequence", {"x": x, "n": lengths}, batch_axis=batch_axis, time_axis=1 - batch_axis)
        np.testing.assert_array_equal(got, expected)


def test_unpools_maxima() -> None:
    x, places = floats(2, 3, 4), np.array([3, 1, 9, 2, 0, 13, 14, 22, 17, 18, 19, 20, 30, 31, 26, 27, 28, 29, 40, 41, 42, 43, 44, 45]).reshape(2, 3, 4)
    check("MaxUnpool", {"x": x, "i": places}, kernel_shape=[2], strides=[2])
    feeds = {"x": x, "i": places - 1}
    session = on_gpu(build("MaxUnpool", feeds, {}, [TensorProto.FLOAT], 22, {"kernel_shape": [2], "strides": [2]}))
    with pytest.raises(treadle.Error, match="an index is outside of its axis"):
        session.run(None, feeds)


@pytest.mark.parametrize("k", [-2, 0, 3, 90])
def test_makes_identities(k: int) -> None:
    for dtype in (np.float32, np.float16, np.int64, np.float64, np.uint8):
        x = np.ones((4, 6), dtype)
        (got,), _ = run_both("EyeLike", {"x": x}, k=k)
        np.testing.assert_array_equal(np.abs(got), np.eye(4, 6, k, dtype))


def test_crops_and_pads_at_the_center() -> None:
    check("CenterCropPad", {"x": floats(5, 8, 7)}, {"shape": np.array([8, 3, 7])})
    check("CenterCropPad", {"x": floats(5, 8, 7)}, {"shape": np.array([6, 4])}, axes=[2, 0])


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("size", [(3, 29), (6, 4)])
def test_resizes_with_antialiasing(mode: str, size: tuple[int, int]) -> None:
    sizes = {"roi": None, "scales": None, "sizes": np.array([2, 3, *size])}
    for dtype in (np.float32, np.float16):
        tolerance = 2e-3 if dtype == np.float16 else 2e-6
        for outside in (0, 1):
            check("Resize", {"x": floats(2, 3, 11, 10).astype(dtype)}, sizes, mode=mode, antialias=1, exclude_outside=outside, tolerance=tolerance)
    pixels = np.random.default_rng(1).integers(0, 255, (2, 3, 11, 10)).astype(np.uint8)
    (got,), (expected,) = run_both("Resize", {"x": pixels}, sizes, mode=mode, antialias=1)
    assert np.max(np.abs(got.astype(int) - expected)) <= 1 and np.mean(got != expected) < 0.02


def test_resizes_crops() -> None:
    sizes = {"roi": np.array([0, 0, 0.2, -0.3, 1, 1, 0.7, 1.2], np.float32), "scales": None, "sizes": np.array([2, 3, 9, 12])}
    for mode in ("linear", "cubic"):
        check("Resize", {"x": floats(2, 3, 11, 10)}, sizes, mode=mode, coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=3.0)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_recurrent_layers_with_all_options(kind: str, layout: int, direction: str) -> None:
    directions, gates = (2 if direction == "bidirectional" else 1), {"RNN": 1, "GRU": 3, "LSTM": 4}[kind]
    batch, steps, size, hidden = 3, 5, 4, 6
    state = (batch, directions, hidden) if layout else (directions, batch, hidden)
    feeds: dict[str, Any] = {
        "x": floats(*((batch, steps) if layout else (steps, batch)), size),
        "w": floats(directions, gates * hidden, size, seed=2),
        "r": floats(directions, gates * hidden, hidden, seed=3),
        "b": floats(directions, 2 * gates * hidden, seed=4),
        "n": np.array([5, 2, 4], np.int32),
        "h": floats(*state, seed=5),
    }
    functions = {"RNN": ["Elu"], "GRU": ["HardSigmoid", "Softsign"], "LSTM": ["Sigmoid", "ScaledTanh", "LeakyRelu"]}[kind]
    if kind == "LSTM":
        feeds |= {"c": floats(*state, seed=6), "p": floats(directions, 3 * hidden, seed=7)}
    attributes: dict[str, Any] = {"hidden_size": hidden, "clip": 0.8, "direction": direction, "layout": layout, "activations": functions * directions}
    if kind == "LSTM":
        attributes |= {"input_forget": 1, "activation_alpha": [1.2, 0.3] * directions, "activation_beta": [0.7] * directions}
    outputs = 3 if kind == "LSTM" else 2
    check(kind, feeds, outputs=[TensorProto.FLOAT] * outputs, **attributes)
    halves = {name: value if value.dtype == np.int32 else value.astype(np.float16) for name, value in feeds.items()}
    check(kind, halves, outputs=[TensorProto.FLOAT16] * outputs, tolerance=2e-3, **attributes)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16])
def test_quantizes_in_blocks(dtype: Any) -> None:
    scale = np.abs(floats(3, 4, 5, seed=2)) * 0.1 + np.float32(0.01)
    zero = np.random.default_rng(3).integers(0, 9, (3, 4, 5)).astype(dtype)
    codes = np.random.default_rng(4).integers(0, 100, (3, 16, 5)).astype(dtype)
    feeds = {"x": codes, "s": -scale, "z": zero}  # the graph negates the scale
    check("DequantizeLinear", feeds, outputs=[TensorProto.FLOAT], axis=1, block_size=4)
    (got,), (expected,) = run_both(
        "QuantizeLinear", {"x": floats(3, 16, 5), "s": -scale, "z": zero}, outputs=[helper.np_dtype_to_tensor_dtype(np.dtype(dtype))], axis=1, block_size=4
    )
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("op_type", ["RandomNormalLike", "RandomUniformLike", "Bernoulli"])
def test_random_numbers_are_the_hosts(op_type: str) -> None:
    for dtype in (np.float32, np.float64, np.float16):
        x = -np.random.default_rng(1).random((301, 7)).astype(dtype)  # the graph negates it
        (got,), (expected,) = run_both(op_type, {"x": x}, seed=3.0)
        assert dtype != np.float32 or np.mean(got != expected) < 1e-3
        np.testing.assert_allclose(got, expected, rtol=1e-3 if dtype == np.float16 else 1e-6 if dtype == np.float32 else 1e-13, atol=1e-12)


def test_random_numbers_without_operands_are_the_hosts() -> None:
    nodes = [
        helper.make_node("RandomNormal", [], ["a"], shape=[50, 3], mean=2.0, scale=0.5, seed=1.0),
        helper.make_node("RandomUniform", [], ["b"], shape=[50, 3], low=-1.0, high=4.0, seed=2.0),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "random", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [50, 3])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10).SerializeToString()
    session, host = on_gpu(model), treadle.InferenceSession(model)
    assert session.to_text("devices").count("gpu:0") == len(session.to_text("devices").strip().splitlines())
    runs = [session.run(None, {})[0] for _ in range(2)]
    np.testing.assert_allclose(runs, [host.run(None, {})[0] for _ in range(2)], rtol=1e-6)
    assert not np.array_equal(*runs)


def test_draws_classes_as_the_host_does() -> None:
    for dtype in (np.float32, np.float64):
        (got,), (expected,) = run_both("Multinomial", {"x": floats(6, 40).astype(dtype)}, outputs=[TensorProto.INT32], sample_size=500, seed=1.0)
        assert np.mean(got != expected) < 1e-3


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.int64, np.uint32, np.uint64])
def test_products_of_wide_types(dtype: Any) -> None:
    random = np.random.default_rng(1)
    a, b = (random.integers(-9 if np.issubdtype(dtype, np.signedinteger) else 0, 9, shape).astype(dtype) for shape in ((3, 1, 70, 33), (2, 33, 65)))
    if dtype == np.float64:
        a, b = a + random.standard_normal(a.shape), b + random.standard_normal(b.shape)
    (got,), _ = run_both("MatMul", {"a": a, "b": b})
    np.testing.assert_allclose(got, -(a @ b) if dtype == np.float64 else a @ b, rtol=1e-13, atol=1e-12)


def test_gemm_in_float64() -> None:
    feeds = {"a": floats(5, 70).astype(np.float64), "b": floats(9, 5, seed=2).astype(np.float64), "c": floats(9, seed=3).astype(np.float64)}
    check("Gemm", feeds, transA=1, transB=1, alpha=0.5, beta=2.0, tolerance=1e-13)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_layer_normalizations_tell_their_statistics(dtype: Any) -> None:
    x, kind = floats(3, 4, 70).astype(dtype), helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    outputs = [kind, TensorProto.FLOAT, TensorProto.FLOAT]
    feeds = {"x": x, "s": floats(4, 70, seed=2).astype(dtype), "b": floats(4, 70, seed=3).astype(dtype)}
    check("LayerNormalization", feeds, outputs=outputs, axis=1, tolerance=2e-3 if dtype == np.float16 else 2e-6)


def test_bits_of_other_types() -> None:
    feeds = {"x": floats(3, 5)}
    for to, dtype in ((TensorProto.INT32, np.int32), (TensorProto.UINT32, np.uint32)):
        (got,), _ = run_both("BitCast", feeds, outputs=[to], opset=26, to=to)
        np.testing.assert_array_equal(got, (-feeds["x"]).view(dtype))


def test_powers_of_integers_and_shrinking() -> None:
    for dtype in (np.int32, np.int64, np.uint32, np.float32):
        check("Pow", {"x": floats(40, 1), "y": np.arange(0, 7).astype(dtype)})
    check("Shrink", {"x": floats(40)}, lambd=0.7, bias=0.2)


def test_the_largest_of_uint64() -> None:
    x = np.random.default_rng(1).integers(0, 2**64 - 1, (3, 50), np.uint64)
    for largest in (0, 1):
        got, expected = run_both("TopK", {"x": x}, {"k": np.array([7])}, outputs=[TensorProto.UINT64, TensorProto.INT64], largest=largest)
        for y, t in zip(got, expected, strict=True):
            np.testing.assert_array_equal(y, t)


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint8, np.int32, np.uint32, np.int64])
def test_extremes_of_integers(dtype: Any) -> None:
    for shape in ((3, 70, 2), (3, 0, 2)):
        x = np.random.default_rng(1).integers(0, 250, shape).astype(dtype)
        for op_type in ("ReduceMax", "ReduceMin"):
            (got,), (expected,) = run_both(op_type, {"x": x}, {"axes": np.array([1])}, opset=20)
            np.testing.assert_array_equal(got, expected)


NARROW = ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT4E2M1", "FLOAT8E8M0", "INT4", "UINT4", "INT2", "UINT2"]


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("saturate", [0, 1])
def test_casts_through_small_types(name: str, saturate: int) -> None:
    code = getattr(TensorProto, name)
    random = np.random.default_rng(1)
    x = np.concatenate([random.standard_normal(201) * 10.0 ** random.integers(-8, 8, 201), [0.0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 57344, 61440]])
    x = np.clip(x, -7, 7) if "INT" in name else x
    for dtype in (np.float32, np.float16):
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        with np.errstate(over="ignore"):
            feeds = {"x": x.astype(dtype)}
        attributes: dict[str, Any] = {"saturate": saturate} if name.startswith("FLOAT8") else {}
        nodes = [
            helper.make_node("Neg", ["x"], ["a"]),
            helper.make_node("Cast", ["a"], ["b"], to=code, **attributes),
            helper.make_node("Cast", ["b"], ["c"], to=kind),
            helper.make_node("Neg", ["c"], ["y"]),
        ]
        graph = helper.make_graph(
            nodes, "casts", [helper.make_tensor_value_info("x", kind, x.shape)], [helper.make_tensor_value_info("y", kind, None)]
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13).SerializeToString()
        session = on_gpu(model)
        assert "cpu\t" not in session.to_text("devices")
        np.testing.assert_array_equal(session.run(None, feeds)[0], treadle.InferenceSession(model).run(None, feeds)[0])


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_rests_of_floats_are_exact(dtype: Any) -> None:
    random = np.random.default_rng(1)
    a = (random.standard_normal((40, 1)) * 10.0 ** random.integers(-4, 4, (40, 1))).astype(dtype)
    b = (random.standard_normal(30) * 10.0 ** random.integers(-4, 4, 30)).astype(dtype)
    a[:5, 0], b[:5] = [0, -0.0, np.inf, np.nan, 6], [0, -3, np.inf, np.nan, 1e-7]
    for fmod in (0, 1):
        (got,), (expected,) = run_both("Mod", {"a": a, "b": b}, fmod=fmod)
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(np.signbit(got)[np.isfinite(got)], np.signbit(expected)[np.isfinite(expected)])


def test_gathers_elements_of_many_dimensions() -> None:
    x = floats(2, 3, 2, 3, 2, 4)
    places = np.random.default_rng(1).integers(-3, 3, (2, 3, 2, 5, 2, 4))
    (got,), _ = run_both("GatherElements", {"x": x, "i": places}, axis=3)
    np.testing.assert_array_equal(got, np.take_along_axis(x, places, 3))


def test_gathers_elements_by_indices_of_unknown_rank() -> None:
    x, places = floats(2, 3, 2, 3, 4), np.random.default_rng(1).integers(-4, 4, (2, 3, 2, 3, 6))
    nodes = [helper.make_node("Neg", ["x"], ["n"]), helper.make_node("GatherElements", ["n", "i"], ["g"], axis=4), helper.make_node("Neg", ["g"], ["y"])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape), helper.make_tensor_value_info("i", TensorProto.INT64, None)]
    graph = helper.make_graph(nodes, "graph", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    session = on_gpu(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10).SerializeToString())
    (got,) = session.run(None, {"x": x, "i": places})
    np.testing.assert_array_equal(got, np.take_along_axis(x, places, 4))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_powers_keep_nan_and_infinity(dtype: Any) -> None:
    x = floats(1, 4, 5, 6).astype(dtype)
    x[0, 0, 1, 1], x[0, 1, 2, 2], x[0, 2, 3, 3] = np.nan, np.inf, -np.inf
    x[0, 3] = 0
    for op_type, attributes in (
        ("LpPool", {"p": 3, "kernel_shape": [2, 2]}),
        ("LRN", {"size": 3}),
        ("LRN", {"size": 1, "bias": 0.0, "beta": 0.5}),
        ("LRN", {"size": 1, "bias": 0.0, "beta": -0.5}),
    ):
        (got,), (expected,) = run_both(op_type, {"x": x}, **attributes)
        np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=2e-3 if dtype == np.float16 else 1e-5, atol=1e-6)


FAR = 2**31 - 1  # as a dilation of five taps, it makes pads of more than 32 bits, where pads keep the extents


@pytest.mark.parametrize(
    ("op_type", "feeds", "constants", "attributes"),
    [
        ("Conv", {"x": floats(1, 1, 3, 3), "w": floats(1, 1, 5, 5)}, {}, {"auto_pad": "SAME_UPPER", "dilations": [FAR, FAR]}),
        ("MaxPool", {"x": floats(1, 1, 3, 3)}, {}, {"auto_pad": "SAME_UPPER", "dilations": [FAR, FAR], "kernel_shape": [5, 5]}),
        ("LpPool", {"x": floats(1, 1, 3, 3)}, {}, {"kernel_shape": [2, 2], "p": 2**32}),
        (
            "Col2Im",
            {"x": floats(1, 4, 1)},
            {"image": np.array([3, 3]), "block": np.array([2, 2])},
            {"dilations": [2**32, 2**32], "pads": [0, 0, 2**32 - 2, 2**32 - 2]},
        ),
    ],
    ids=["Conv", "MaxPool", "LpPool", "Col2Im"],
)
def test_attributes_beyond_32_bits_are_refused(op_type: str, feeds: dict[str, Any], constants: dict[str, Any], attributes: dict[str, Any]) -> None:
    session = on_gpu(build(op_type, feeds, constants, [TensorProto.FLOAT], 22, attributes))
    assert "no kernel" not in session.to_text("devices")
    with pytest.raises(treadle.Error, match="the GPU's kernels have numbers of 32 bits"):
        session.run(None, feeds)


WIDE = [
    *["Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu"],
    *["Log", "Mish", "Reciprocal", "Relu", "Selu", "Sigmoid", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu"],
]


@pytest.mark.parametrize("op_type", WIDE)
def test_functions_of_float64(op_type: str) -> None:
    x = np.concatenate([np.linspace(-1, 1, 401), np.random.default_rng(1).uniform(-30, 30, 400), [1e3, -1e3, 1e-9, 0, -0.0, 709, -709, 5.5, 1e9]])
    x = -np.clip(x, 1, None) if op_type == "Acosh" else -np.clip(x, -1, 1) if op_type in ("Acos", "Asin", "Atanh") else x
    (got,), (expected,) = run_both(op_type, {"x": x}, opset=24)
    least = 1 if op_type == "Gelu" else 1e-3 if op_type in ("Mish", "Swish", "Sin", "Cos", "Tan", "Log", "Acos") else 1e-300
    scale = np.maximum(np.abs(expected), least)
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0, np.abs(got - expected) / scale)
    assert np.max(error) < (1e-12 if op_type == "Tan" else 2e-14), (x[np.argmax(error)], np.max(error))

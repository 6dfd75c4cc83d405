"""Tests models on a Vulkan GPU or its substitute: values are compared with NumPy in float64, networks with the host."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import treadle


def on_gpu(model: Any) -> treadle.InferenceSession:
    options = treadle.SessionOptions()
    options.device = "gpu:0"
    try:
        return treadle.InferenceSession(model, options)
    except treadle.Error as error:
        if any(reason in str(error) for reason in ("no Vulkan", "has no GPUs", "Vulkan finds none")):
            pytest.skip(str(error))
        raise


def one_node(op_type: str, feeds: dict[str, np.ndarray], output: int = TensorProto.FLOAT, **attributes: Any) -> bytes:
    inputs = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape) for name, value in feeds.items()]
    node = helper.make_node(op_type, list(feeds), ["y"], **attributes)
    graph = helper.make_graph([node], "one", inputs, [helper.make_tensor_value_info("y", output, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()


def run(op_type: str, feeds: dict[str, np.ndarray], output: int = TensorProto.FLOAT, **attributes: Any) -> np.ndarray:
    session = on_gpu(one_node(op_type, feeds, output, **attributes))
    assert "gpu:0" in session.to_text("planned"), "the node runs on the host"
    return session.run(None, feeds)[0]


def _erf(x: np.ndarray) -> np.ndarray:
    import math

    return np.vectorize(math.erf)(x)


FUNCTIONS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float, float]] = {  # function, and the lower and upper bound of x
    "Exp": (np.exp, -80, 80),
    "Log": (np.log, 1e-30, 1e30),
    "Tanh": (np.tanh, -12, 12),
    "Erf": (_erf, -5, 5),
    "Sin": (np.sin, -1000, 1000),
    "Cos": (np.cos, -1000, 1000),
    "Asin": (np.arcsin, -1, 1),
    "Acos": (np.arccos, -1, 1),
    "Atan": (np.arctan, -50, 50),
    "Sinh": (np.sinh, -80, 80),
    "Cosh": (np.cosh, -80, 80),
    "Asinh": (np.arcsinh, -1e5, 1e5),
    "Acosh": (np.arccosh, 1, 1e5),
    "Atanh": (np.arctanh, -0.999, 0.999),
    "Sqrt": (np.sqrt, 0, 1e10),
    "Reciprocal": (lambda x: 1 / x, 0.001, 1000),
    "Sigmoid": (lambda x: 1 / (1 + np.exp(-x)), -80, 80),
    "Softplus": (lambda x: np.logaddexp(0, x), -80, 80),
    "Gelu": (lambda x: x * (1 + _erf(x / np.sqrt(2))) / 2, -2, 10),
    "Mish": (lambda x: x * np.tanh(np.logaddexp(0, x)), -10, 30),
    "Floor": (np.floor, -100, 100),
    "Ceil": (np.ceil, -100, 100),
    "Round": (np.round, -100, 100),
    "Abs": (np.abs, -100, 100),
    "Neg": (np.negative, -100, 100),
}


@pytest.mark.parametrize("op_type", FUNCTIONS)
def test_functions_are_as_exact_as_on_the_host(op_type: str) -> None:
    function, low, high = FUNCTIONS[op_type]
    random = np.random.default_rng(3)
    x = np.concatenate([random.uniform(low, high, 5000), random.uniform(max(low, -1), min(high, 2), 5000)]).astype(np.float32)
    expected = function(x.astype(np.float64))
    np.testing.assert_allclose(run(op_type, {"x": x}), expected, rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("op_type", ["Exp", "Log", "Tanh", "Sqrt", "Relu", "Sigmoid", "Erf", "Abs"])
def test_a_nan_stays_one(op_type: str) -> None:
    x = np.array([np.nan, 1, np.nan], np.float32)
    assert np.isnan(run(op_type, {"x": x})).tolist() == [True, False, True]


ARITHMETIC = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Less": np.less, "LessOrEqual": np.less_equal, "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal, "Equal": np.equal, "Max": np.maximum, "Min": np.minimum,
}  # fmt: skip
SHAPES = [((5, 7), (5, 7)), ((5, 7), (7,)), ((5, 1), (1, 7)), ((2, 3, 4, 5), (3, 1, 5)), ((1,), (4, 3)), ((), (2, 2)), ((0, 3), (1, 3))]


@pytest.mark.parametrize("op_type", ARITHMETIC)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32, np.int64, np.uint8, np.int8, np.uint16])
def test_arithmetic_of_every_type_broadcasts(op_type: str, dtype: Any) -> None:
    random = np.random.default_rng(5)
    compares = op_type in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")
    output = TensorProto.BOOL if compares else helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for a_shape, b_shape in SHAPES:
        a, b = (random.integers(0, 11, shape).astype(dtype) for shape in (a_shape, b_shape))
        np.testing.assert_array_equal(run(op_type, {"a": a, "b": b}, output), ARITHMETIC[op_type](a, b))


def test_bfloat16_is_rounded_to_the_nearest() -> None:
    x = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    words = x.view(np.uint32).astype(np.uint64)
    expected = ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint32) << 16
    feeds = {"x": x}
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["h"], to=TensorProto.BFLOAT16), helper.make_node("Cast", ["h"], ["y"], to=TensorProto.FLOAT)],
        "casts",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, x.shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    np.testing.assert_array_equal(on_gpu(model.SerializeToString()).run(None, feeds)[0].view(np.uint32), expected.astype(np.uint32))


@pytest.mark.parametrize(("a", "b"), [((70, 33), (33, 130)), ((1, 300), (300, 1)), ((2, 3, 7, 33), (3, 33, 13)), ((2, 1, 5, 4), (1, 3, 4, 6)), ((5,), (5, 3)), ((4, 0), (0, 2))])
def test_products_of_matrices(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    random = np.random.default_rng(7)
    x, y = random.standard_normal(a).astype(np.float32), random.standard_normal(b).astype(np.float32)
    np.testing.assert_allclose(run("MatMul", {"a": x, "b": y}), x.astype(np.float64) @ y.astype(np.float64), rtol=1e-5, atol=1e-5)


def test_gemm_transposes_scales_and_adds() -> None:
    random = np.random.default_rng(8)
    a, b, c = (random.standard_normal(shape).astype(np.float32) for shape in ((40, 70), (50, 40), (50,)))
    got = run("Gemm", {"a": a, "b": b, "c": c}, transA=1, transB=1, alpha=0.5, beta=2.0)
    np.testing.assert_allclose(got, 0.5 * (a.T.astype(np.float64) @ b.T) + 2 * c, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_convolutions(groups: int) -> None:
    import torch

    random = np.random.default_rng(9)
    x, w, b = (random.standard_normal(shape).astype(np.float32) for shape in ((2, 6, 19, 23), (24, 6 // groups, 3, 5), (24,)))
    got = run("Conv", {"x": x, "w": w, "b": b}, group=groups, strides=[2, 1], pads=[1, 2, 1, 2], dilations=[1, 2])
    expected = torch.nn.functional.conv2d(*(torch.from_numpy(v).double() for v in (x, w, b)), (2, 1), (1, 2), (1, 2), groups)
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axes", [[0], [1], [2], [0, 2], [1, 2], [0, 1, 2]])
def test_reductions(axes: list[int]) -> None:
    x = np.random.default_rng(10).standard_normal((5, 300, 7)).astype(np.float32)
    wide = x.astype(np.float64)
    reduced = {"ReduceSum": np.sum, "ReduceMean": np.mean, "ReduceMax": np.max, "ReduceMin": np.min, "ReduceL2": lambda v, axis: np.sqrt((v * v).sum(axis))}
    for op_type, function in reduced.items():
        graph = helper.make_graph(
            [helper.make_node(op_type, ["x", "axes"], ["y"], keepdims=0)],
            "reduction",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [helper.make_tensor("axes", TensorProto.INT64, [len(axes)], axes)],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        got = on_gpu(model.SerializeToString()).run(None, {"x": x})[0]
        np.testing.assert_allclose(got, function(wide, axis=tuple(axes)), rtol=2e-5, atol=2e-5, err_msg=op_type)


def test_integer_sums_wrap_like_the_hosts() -> None:
    x = np.random.default_rng(11).integers(-(2**31), 2**31, (3, 1000)).astype(np.int32)
    graph = helper.make_graph(
        [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)],
        "sum",
        [helper.make_tensor_value_info("x", TensorProto.INT32, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    assert on_gpu(model.SerializeToString()).run(None, {"x": x})[0] == x.astype(np.int64).sum().astype(np.int32)


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.int64])
def test_elements_are_moved(dtype: Any) -> None:
    x = np.random.default_rng(6).integers(0, 100, (3, 4, 6, 8)).astype(dtype)
    output = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def moved(op_type: str, operands: dict[str, list[int]], num_outputs: int = 1, **attributes: Any) -> list[np.ndarray]:
        outputs = [f"y{i}" for i in range(num_outputs)]
        graph = helper.make_graph(
            [helper.make_node(op_type, ["x", *operands], outputs, **attributes)],
            "movement",
            [helper.make_tensor_value_info("x", output, x.shape)],
            [helper.make_tensor_value_info(name, output, None) for name in outputs],
            [helper.make_tensor(name, TensorProto.INT64, [len(values)], values) for name, values in operands.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        session = on_gpu(model.SerializeToString())
        assert "gpu:0" in session.to_text("planned"), "the node runs on the host"
        return session.run(None, {"x": x})

    np.testing.assert_array_equal(moved("Transpose", {}, perm=[2, 0, 3, 1])[0], x.transpose(2, 0, 3, 1))
    np.testing.assert_array_equal(moved("Slice", {"s": [-1, 1], "e": [-99, 7], "a": [1, 3], "step": [-1, 3]})[0], x[:, ::-1, :, 1:7:3])
    np.testing.assert_array_equal(moved("Tile", {"r": [2, 1, 3, 1]})[0], np.tile(x, (2, 1, 3, 1)))
    np.testing.assert_array_equal(moved("Expand", {"r": [2, 3, 4, 6, 8]})[0], np.broadcast_to(x, (2, 3, 4, 6, 8)))
    for part, expected in zip(moved("Split", {"sizes": [1, 3, 2]}, 3, axis=2), np.split(x, [1, 4], axis=2), strict=True):
        np.testing.assert_array_equal(part, expected)
    np.testing.assert_array_equal(run("Concat", {"a": x, "b": x[:, :1]}, output, axis=1), np.concatenate([x, x[:, :1]], axis=1))


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
def test_rows_are_gathered(dtype: Any, index: Any) -> None:
    random = np.random.default_rng(4)
    x = random.integers(0, 200, (3, 50, 5)).astype(dtype)
    output = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for axis in (0, 1, 2):
        indices = random.integers(-x.shape[axis], x.shape[axis], (2, 7)).astype(index)
        np.testing.assert_array_equal(run("Gather", {"x": x, "i": indices}, output, axis=axis), np.take(x, indices, axis))


@pytest.mark.parametrize("bad", [50, -51, 2**32, -(2**32), 2**40 + 3])
def test_an_index_outside_is_an_error_and_the_next_run_is_fine(bad: int) -> None:
    x, good = np.arange(150, dtype=np.float32).reshape(50, 3), np.array([49, -50, 0])
    session = on_gpu(one_node("Gather", {"x": x, "i": good}))
    with pytest.raises(treadle.Error, match=r"an index is outside of the axis, which has 50 elements"):
        session.run(None, {"x": x, "i": np.array([1, bad, 2])})
    np.testing.assert_array_equal(session.run(None, {"x": x, "i": good})[0], x[good])


# A dispatch may have only 65,535 groups in a dimension.
def test_more_products_than_a_dispatch_has_groups() -> None:
    random = np.random.default_rng(14)
    a, b = random.standard_normal((70_000, 1, 2)).astype(np.float32), random.standard_normal((70_000, 2, 1)).astype(np.float32)
    np.testing.assert_allclose(run("MatMul", {"a": a, "b": b}), a.astype(np.float64) @ b, rtol=1e-5, atol=1e-6)
    x, w = random.standard_normal((70, 1024, 1, 1)).astype(np.float32), random.standard_normal((1024, 1, 1, 1)).astype(np.float32)
    np.testing.assert_allclose(run("Conv", {"x": x, "w": w}, group=1024), x * w[:, 0], rtol=1e-6)


def test_more_dimensions_than_a_shader_has() -> None:
    x = np.arange(32, dtype=np.float32).reshape(2, 2, 2, 2, 2)
    graph = helper.make_graph(
        [helper.make_node("Tile", ["x", "r"], ["y"])],
        "tile",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [helper.make_tensor("r", TensorProto.INT64, [5], [2] * 5)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    np.testing.assert_array_equal(on_gpu(model.SerializeToString()).run(None, {"x": x})[0], np.tile(x, [2] * 5))
    deep = np.arange(3 * 2**9, dtype=np.int64).reshape(3, *[2] * 9)
    np.testing.assert_array_equal(run("Transpose", {"x": deep}, TensorProto.INT64), deep.T)


def test_what_only_the_host_can_say_runs_there() -> None:
    def value(op_type: str, feeds: dict[str, np.ndarray], output: int) -> np.ndarray:
        return on_gpu(one_node(op_type, feeds, output)).run(None, feeds)[0]

    assert value("ReduceL2", {"x": np.array([3, 4], np.int32)}, TensorProto.INT32) == 5
    assert value("ReduceMean", {"x": np.array([2_000_000_000] * 2, np.int32)}, TensorProto.INT32) == 2_000_000_000
    with pytest.raises(treadle.Error, match="division by zero"):
        value("Div", {"a": np.array([7], np.int32), "b": np.array([0], np.int32)}, TensorProto.INT32)


def test_special_values() -> None:
    x = np.array([1e5, 1e6, 123456.7, -5e6, 1e12], np.float32)
    np.testing.assert_allclose(run("Sin", {"x": x})[:4], np.sin(x.astype(np.float64))[:4], atol=1e-6)
    assert np.all(np.abs(run("Cos", {"x": x})) <= 1)
    square_roots = run("Pow", {"x": np.array([-np.inf, -0.0, 4], np.float32), "p": np.array([0.5], np.float32)})
    assert square_roots.tolist() == [np.inf, 0, 2] and not np.signbit(square_roots[1])
    a, c = np.ones((2, 2), np.float32), np.full((2, 2), np.nan, np.float32)
    assert run("Gemm", {"a": a, "b": a, "c": c}, beta=0.0).tolist() == [[2, 2], [2, 2]]
    assert run("Cast", {"x": np.array([-1.0, 300.0], np.float32)}, TensorProto.UINT8, to=TensorProto.UINT8).tolist() == [255, 44]
    halves = np.array([65519, 65520, 2**-25, 3 * 2**-25, 2049, 2051], np.float32)
    identity = np.ones((1, 1), np.float16)
    products = run("MatMul", {"a": halves.astype(np.float16).reshape(-1, 1)[2:], "b": identity}, TensorProto.FLOAT16)
    assert products.ravel().tolist() == halves.astype(np.float16)[2:].tolist()


def _network() -> bytes:
    """Makes a small convolutional network with much that the GPU computes, and an LRN that the host computes in its middle."""
    random = np.random.default_rng(12)
    initializers = []

    def weight(name: str, *shape: int) -> str:
        initializers.append(onnx.numpy_helper.from_array((random.standard_normal(shape) / np.sqrt(np.prod(shape[1:] or shape))).astype(np.float32), name))
        return name

    nodes = [
        helper.make_node("Conv", ["image", weight("w1", 16, 3, 3, 3), weight("b1", 16)], ["c1"], pads=[1] * 4),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p1", weight("w2", 16, 1, 3, 3)], ["c2"], group=16, pads=[1] * 4),
        helper.make_node("Sigmoid", ["c2"], ["s2"]),
        helper.make_node("Mul", ["c2", "s2"], ["m2"]),
        helper.make_node("Transpose", ["m2"], ["t2"], perm=[0, 2, 3, 1]),
        helper.make_node("LayerNormalization", ["t2", weight("scale", 16), weight("shift", 16)], ["n2"]),
        helper.make_node("LRN", ["n2"], ["local"], size=3),
        helper.make_node("ReduceMean", ["local", "axes"], ["mean"], keepdims=0),
        helper.make_node("Gemm", ["mean", weight("w3", 10, 16), weight("b3", 10)], ["logits"], transB=1),
        helper.make_node("Softmax", ["logits"], ["scores"]),
    ]
    initializers += [onnx.numpy_helper.from_array(np.array([1, 2]), "axes")]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, "h", "w"])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 10])],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()


def test_a_network_gives_the_hosts_answers_for_any_extents() -> None:
    model = _network()
    session, host = on_gpu(model), treadle.InferenceSession(model)
    for shape in ((1, 3, 32, 32), (4, 3, 17, 21), (2, 3, 64, 48), (1, 3, 32, 32)):
        image = np.random.default_rng(13).standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(session.run(None, {"image": image})[0], host.run(None, {"image": image})[0], rtol=1e-4, atol=1e-6)


def test_runs_give_the_same_bits_from_many_threads() -> None:
    session = on_gpu(_network())
    images = [np.random.default_rng(seed).standard_normal((2, 3, 20, 20)).astype(np.float32) for seed in range(4)]
    expected = [session.run(None, {"image": image})[0] for image in images]
    failures: list[str] = []

    def client(i: int) -> None:
        for _ in range(10):
            if not np.array_equal(session.run(None, {"image": images[i]})[0], expected[i]):
                failures.append(f"client {i}")

    threads = [threading.Thread(target=client, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_device_that_is_not_there_is_told_with_those_that_are() -> None:
    on_gpu(_network())  # skips the test if there is no GPU
    options = treadle.SessionOptions()
    options.device = "gpu:99"
    with pytest.raises(treadle.Error, match='there is no device "gpu:99": gpu:0 is '):
        treadle.InferenceSession(_network(), options)

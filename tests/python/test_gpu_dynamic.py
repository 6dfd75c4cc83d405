"""Tests models on a GPU with extents that only a run determines: compares values with NumPy, and checks that nothing but results is copied
to the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_gpu import on_gpu

import treadle


def session_of(
    nodes: list[Any], inputs: dict[str, tuple[int, list[Any]]], outputs: dict[str, int], constants: dict[str, np.ndarray] | None = None, version: int = 20
) -> Any:
    graph = helper.make_graph(
        nodes,
        "dynamic",
        [helper.make_tensor_value_info(name, dtype, shape) for name, (dtype, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, dtype, None) for name, dtype in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", version)]
    return on_gpu(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())


def copies_to_host(session: Any) -> list[str]:
    """Returns the names of values that a run copies from the GPU."""
    lines = [line for line in session.to_text("planned").splitlines() if " copy %" in line and " on cpu" in line.split("->")[-1]]
    return [line.split("copy %")[1].split()[0] for line in lines]


def devices_of(session: Any) -> dict[str, str]:
    return {line.split("\t")[1]: line.split("\t")[0] for line in session.to_text("devices").splitlines()}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.bool_, np.uint8, np.int32, np.int64])
def test_places_of_what_is_not_zero(dtype: Any) -> None:
    session = session_of([helper.make_node("NonZero", ["x"], ["y"])], {"x": (helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), ["a", "b", "c"])}, {"y": TensorProto.INT64})
    assert devices_of(session)["NonZero"] == "gpu:0"
    for shape in ((3, 70, 11), (1, 1, 1), (2, 0, 3), (50, 60, 40)):
        x = np.random.default_rng(1).integers(-1, 2, shape).astype(dtype)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.stack(np.nonzero(x)))
    np.testing.assert_array_equal(session.run(None, {"x": np.zeros((3, 4, 5), dtype)})[0], np.zeros((3, 0)))


def test_negative_zeros_are_zeros() -> None:
    session = session_of([helper.make_node("NonZero", ["x"], ["y"])], {"x": (TensorProto.FLOAT, ["a"])}, {"y": TensorProto.INT64})
    assert session.run(None, {"x": np.array([-0.0, np.nan, 0.0, -1.0], np.float32)})[0].tolist() == [[1, 3]]


def suppressed(boxes: np.ndarray, scores: np.ndarray, limit: int, iou: float, least: float | None, center: int) -> list[list[int]]:
    """Computes NonMaxSuppression by its definition, in float64."""
    found = []
    for image in range(len(boxes)):
        b = boxes[image].astype(np.float64)
        if center:
            b = np.stack([b[:, 1] - b[:, 3] / 2, b[:, 0] - b[:, 2] / 2, b[:, 1] + b[:, 3] / 2, b[:, 0] + b[:, 2] / 2], 1)
        low, high = np.minimum(b[:, :2], b[:, 2:]), np.maximum(b[:, :2], b[:, 2:])
        areas = (high - low).prod(1)
        for of_class in range(scores.shape[1]):
            kept: list[int] = []
            for i in np.argsort(-scores[image, of_class].astype(np.float64), kind="stable"):
                if len(kept) == limit or (least is not None and not scores[image, of_class, i] > least):
                    continue
                common = (np.minimum(high[i], high[kept]) - np.maximum(low[i], low[kept])).clip(0).prod(1)
                if not np.any(common / (areas[i] + areas[kept] - common) > iou):
                    kept.append(int(i))
            found += [[image, of_class, i] for i in kept]
    return found


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize("least", [None, 0.4])
def test_boxes_are_suppressed(least: float | None, center: int) -> None:
    names = ["b", "s", "limit", "iou"] + (["least"] if least is not None else [])
    constants = {"limit": np.array([12]), "iou": np.array([0.3], np.float32)} | ({"least": np.array([least], np.float32)} if least is not None else {})
    node = helper.make_node("NonMaxSuppression", names, ["chosen"], center_point_box=center)
    gathered = [helper.make_node("Gather", ["chosen", "last"], ["which"], axis=1), helper.make_node("Cast", ["which"], ["y"], to=TensorProto.FLOAT)]
    inputs: dict[str, tuple[int, list[Any]]] = {"b": (TensorProto.FLOAT, ["n", "boxes", 4]), "s": (TensorProto.FLOAT, ["n", "classes", "boxes"])}
    session = session_of([node, *gathered], inputs, {"chosen": TensorProto.INT64, "y": TensorProto.FLOAT}, constants | {"last": np.array(2)})
    assert set(devices_of(session).values()) == {"gpu:0"}, session.to_text("devices")
    assert sorted(copies_to_host(session)) == ["chosen", "y"]
    for n, classes, count in ((1, 1, 6), (2, 3, 600), (1, 2, 1)):
        random = np.random.default_rng(count)
        boxes, scores = random.random((n, count, 4)).astype(np.float32), random.random((n, classes, count)).astype(np.float32)
        expected = suppressed(boxes, scores, 12, 0.3, least, center)
        chosen, y = session.run(None, {"b": boxes, "s": scores})
        assert chosen.tolist() == expected
        assert y.tolist() == [float(row[2]) for row in expected]
    empty = session.run(None, {"b": np.zeros((1, 0, 4), np.float32), "s": np.zeros((1, 2, 0), np.float32)})
    assert [value.shape for value in empty] == [(0, 3), (0,)]


def test_a_threshold_outside_of_0_to_1_is_an_error() -> None:
    inputs: dict[str, tuple[int, list[Any]]] = {"b": (TensorProto.FLOAT, [1, 2, 4]), "s": (TensorProto.FLOAT, [1, 1, 2]), "iou": (TensorProto.FLOAT, [1])}
    node = helper.make_node("NonMaxSuppression", ["b", "s", "limit", "iou"], ["y"], name="node")
    session = session_of([node], inputs, {"y": TensorProto.INT64}, {"limit": np.array([2])})
    feeds = {"b": np.array([[[0, 0, 1, 1], [2, 2, 3, 3]]], np.float32), "s": np.ones((1, 1, 2), np.float32)}
    with pytest.raises(treadle.Error, match=r"iou_threshold is not in \[0, 1\]"):
        session.run(None, feeds | {"iou": np.array([1.5], np.float32)})
    assert session.run(None, feeds | {"iou": np.array([0.5], np.float32)})[0].tolist() == [[0, 0, 0], [0, 0, 1]]


def test_what_was_found_is_computed_with_on_the_gpu() -> None:
    """A mask selects rows, and only the run knows how many. A product, a softmax and a reduction then compute with them."""
    random = np.random.default_rng(2)
    weights = random.standard_normal((5, 6)).astype(np.float32)
    nodes = [
        helper.make_node("Greater", ["m", "half"], ["mask"]),
        helper.make_node("NonZero", ["mask"], ["found"]),
        helper.make_node("Transpose", ["found"], ["tuples"], perm=[1, 0]),
        helper.make_node("GatherND", ["x", "tuples"], ["rows"]),
        helper.make_node("MatMul", ["rows", "w"], ["p"]),
        helper.make_node("Softmax", ["p"], ["q"]),
        helper.make_node("Add", ["q", "p"], ["r"]),
        helper.make_node("ReduceMax", ["r", "axes"], ["y"], keepdims=0),
    ]
    inputs: dict[str, tuple[int, list[Any]]] = {"m": (TensorProto.FLOAT, ["n"]), "x": (TensorProto.FLOAT, ["n", 5])}
    constants = {"half": np.array(0.5, np.float32), "w": weights, "axes": np.array([1])}
    session = session_of(nodes, inputs, {"y": TensorProto.FLOAT}, constants)
    assert set(devices_of(session).values()) == {"gpu:0"}, session.to_text("devices")
    assert copies_to_host(session) == ["y"]
    for n in (40, 3, 1000, 1):
        m, x = random.random(n).astype(np.float32), random.standard_normal((n, 5)).astype(np.float32)
        p = x[m > 0.5].astype(np.float64) @ weights
        e = np.exp(p - p.max(1, keepdims=True, initial=-1e9))
        np.testing.assert_allclose(session.run(None, {"m": m, "x": x})[0], (e / e.sum(1, keepdims=True) + p).max(1), rtol=1e-5)


def test_scales_that_a_run_computes_do_not_come_back_from_the_gpu() -> None:
    """A model computes scales from an image's extents, resizes the image by them, cuts a square from its center, and takes square roots."""
    nodes = [
        helper.make_node("Shape", ["x"], ["extents"], start=2),
        helper.make_node("Cast", ["extents"], ["sides"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["wanted", "sides"], ["ratios"]),
        helper.make_node("ReduceMax", ["ratios"], ["ratio"]),
        helper.make_node("Concat", ["ones", "ratio", "ratio"], ["scales"], axis=0),
        helper.make_node("Resize", ["x", "", "scales"], ["resized"], mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        helper.make_node("Shape", ["resized"], ["now"], start=2),
        helper.make_node("Sub", ["now", "square"], ["rest"]),
        helper.make_node("Div", ["rest", "two"], ["begin"]),
        helper.make_node("Add", ["begin", "square"], ["end"]),
        helper.make_node("Slice", ["resized", "begin", "end", "axes"], ["cut"]),
        helper.make_node("Sqrt", ["cut"], ["y"]),
    ]
    constants = {
        "wanted": np.array([8, 8], np.float32), "ones": np.ones(2, np.float32), "square": np.array([8, 8]), "two": np.array([2, 2]), "axes": np.array([2, 3]),
    }  # fmt: skip
    session = session_of(nodes, {"x": (TensorProto.FLOAT, [1, 1, "h", "w"])}, {"y": TensorProto.FLOAT}, constants, version=17)
    devices = devices_of(session)
    assert {devices[op_type] for op_type in ("Resize", "Slice", "Sqrt")} == {"gpu:0"}, session.to_text("devices")
    assert copies_to_host(session) == ["y"], session.to_text("planned")
    for h, w in ((4, 8), (2, 4), (4, 4)):
        x = np.random.default_rng(h).random((1, 1, h, w)).astype(np.float32)
        factor = 8 // min(h, w)
        large = x.repeat(factor, 2).repeat(factor, 3)
        top, left = (large.shape[2] - 8) // 2, (large.shape[3] - 8) // 2
        np.testing.assert_allclose(session.run(None, {"x": x})[0], np.sqrt(large[:, :, top : top + 8, left : left + 8]), rtol=1e-6)


def test_ranks_that_come_out_in_the_run() -> None:
    nodes = [helper.make_node("Squeeze", ["x"], ["s"]), helper.make_node("Sigmoid", ["s"], ["t"]), helper.make_node("Mul", ["t", "s"], ["y"])]
    session = session_of(nodes, {"x": (TensorProto.FLOAT, ["n", 1, "m"])}, {"y": TensorProto.FLOAT})
    assert set(devices_of(session).values()) == {"gpu:0"}, session.to_text("devices")
    for shape in ((3, 1, 4), (1, 1, 4), (1, 1, 1), (5, 1, 1)):
        x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
        s = np.squeeze(x).astype(np.float64)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], s / (1 + np.exp(-s)), rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, np.float16])
def test_constants_of_a_shape(dtype: Any) -> None:
    value = helper.make_tensor("value", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [1], np.array([1], dtype))
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("ConstantOfShape", ["s"], ["y"], value=value)]
    session = session_of(nodes, {"x": (TensorProto.FLOAT, ["n", "m"])}, {"y": helper.np_dtype_to_tensor_dtype(np.dtype(dtype))})
    assert devices_of(session)["ConstantOfShape"] == "gpu:0"
    for shape in ((3, 4), (0, 2), (700, 9)):
        np.testing.assert_array_equal(session.run(None, {"x": np.zeros(shape, np.float32)})[0], np.ones(shape, dtype))


@pytest.mark.parametrize("reader", ["TopK", "Slice", "Reshape"])
def test_what_the_host_reads_of_the_gpus_results_has_arrived(reader: str) -> None:
    """The number is computed on the GPU, and differs from run to run."""
    node = helper.make_node
    read = {"TopK": node("TopK", ["x", "count"], ["y", "places"]), "Slice": node("Slice", ["x", "zero", "count"], ["y"]), "Reshape": node("Reshape", ["x", "shape"], ["y"])}[reader]
    nodes = [node("ReduceMax", ["n"], ["most"], keepdims=0), node("Cast", ["most"], ["whole"], to=TensorProto.INT64), node("Reshape", ["whole", "one"], ["count"])]
    nodes += [node("Concat", ["count", "rest"], ["shape"], axis=0)] if reader == "Reshape" else []
    constants = {"one": np.array([1]), "zero": np.array([0]), "rest": np.array([-1])}
    inputs = {"x": (TensorProto.FLOAT, [24]), "n": (TensorProto.FLOAT, ["a"])}
    session = session_of([*nodes, read], inputs, {"y": TensorProto.FLOAT}, {name: value for name, value in constants.items() if name in ("one", *read.input, *(i for n in nodes for i in n.input))})
    x = np.random.default_rng(3).permutation(24).astype(np.float32)
    for count in (3, 8, 2, 12, 1):
        (y,) = session.run(None, {"x": x, "n": np.array([0, count, 1], np.float32)})
        expected = {"TopK": np.sort(x)[::-1][:count], "Slice": x[:count], "Reshape": x.reshape(count, -1)}[reader]
        np.testing.assert_array_equal(y, expected)


def test_index_tuples_without_an_axis_are_refused() -> None:
    with pytest.raises(treadle.Error, match="indices is a scalar"):
        session_of([helper.make_node("ScatterND", ["x", "i", "u"], ["y"])], {"x": (TensorProto.FLOAT, [3]), "i": (TensorProto.INT64, []), "u": (TensorProto.FLOAT, [3])}, {"y": TensorProto.FLOAT})

"""Operators on a GPU that select, scatter and sort elements: compares values with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from test_gpu_operators import floats, run

import treadle

NUMBERS = [np.float32, np.float16, np.float64, np.int32, np.int64]
REDUCTIONS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def numbers(dtype: Any, *shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(-40, 40, shape).astype(dtype)


def tensor_type(dtype: Any) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(("shape", "axis"), [((3, 700, 2), 1), ((5, 9), 1), ((1, 1), 0), ((3000,), 0)])
def test_the_first_of_sorted_rows(shape: tuple[int, ...], axis: int, largest: int, dtype: Any) -> None:
    x = numbers(dtype, *shape)
    order = np.argsort(-x.astype(np.float64) if largest else x, axis=axis, kind="stable")
    for k in {1, min(5, shape[axis]), shape[axis]}:
        types = [tensor_type(dtype), TensorProto.INT64]
        values, places = run("TopK", {"x": x, "k": np.array([k])}, outputs=2, types=types, axis=axis, largest=largest)
        expected = order.take(range(k), axis)
        np.testing.assert_array_equal(places, expected)
        np.testing.assert_array_equal(values, np.take_along_axis(x, expected, axis))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nans_are_larger_than_all_numbers_and_zeros_are_equal(dtype: Any) -> None:
    x = np.array([1, np.nan, -np.inf, 0.0, -0.0, np.inf], dtype)
    types = [tensor_type(dtype), TensorProto.INT64]
    assert run("TopK", {"x": x, "k": np.array([6])}, outputs=2, types=types)[1].tolist() == [1, 5, 0, 3, 4, 2]
    assert run("TopK", {"x": x, "k": np.array([6])}, outputs=2, types=types, largest=0)[1].tolist() == [2, 3, 4, 0, 5, 1]


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.int64])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_elements_are_scattered(axis: int, dtype: Any) -> None:
    x, random = numbers(dtype, 5, 6, 7), np.random.default_rng(2)
    extents = [4, 3, 5]
    places = np.argsort(random.random((*extents[:-1], x.shape[axis]) if axis == -1 else x.shape), axis=axis)  # no index occurs twice along the axis
    places = places[tuple(slice(0, extent) for extent in extents)]
    updates = numbers(dtype, *extents, seed=3)
    expected = x.copy()
    within = expected[tuple(slice(None) if i == axis % 3 else slice(0, extent) for i, extent in enumerate(extents))]
    np.put_along_axis(within, places, updates, axis)
    for index in (places, np.where(random.random(places.shape) < 0.5, places, places - x.shape[axis])):
        np.testing.assert_array_equal(run("ScatterElements", {"x": x, "i": index, "u": updates}, fed="xiu", axis=axis), expected)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_repeated_places_are_reduced_in_order(reduction: str, dtype: Any) -> None:
    x, random = numbers(dtype, 11), np.random.default_rng(4)
    index, updates = random.integers(-11, 11, 900), random.integers(-1, 2, 900).astype(dtype) * np.array(2 if reduction == "add" else 1, dtype)
    expected = x.copy()
    for place, update in zip(index, updates, strict=True):
        expected[place] = REDUCTIONS[reduction](expected[place], update)
    got = run("ScatterElements", {"x": x, "i": index, "u": updates}, fed="xiu", reduction=reduction)
    np.testing.assert_array_equal(got, expected)
    got = run("ScatterND", {"x": x, "i": index[:, None], "u": updates}, fed="xiu", reduction=reduction)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.int64])
def test_slices_are_scattered(dtype: Any) -> None:
    x = numbers(dtype, 4, 5, 6)
    pairs, updates = np.array([[0, 1], [3, -1], [-2, 0]]), numbers(dtype, 3, 6, seed=5)
    expected = x.copy()
    for (i, k), update in zip(pairs, updates, strict=True):
        expected[i, k] = update
    np.testing.assert_array_equal(run("ScatterND", {"x": x, "i": pairs, "u": updates}, fed="xiu"), expected)
    repeated = np.array([[1, 1], [2, 2], [1, 1]])
    expected = x.copy()
    expected[2, 2], expected[1, 1] = updates[1], updates[2]  # the last update of an element counts
    np.testing.assert_array_equal(run("ScatterND", {"x": x, "i": repeated, "u": updates}, fed="xiu"), expected)


def test_scattering_outside_is_an_error() -> None:
    x = floats(4, 5)
    with pytest.raises(treadle.Error, match='ScatterND node "node" .*: an index is outside of its axis'):
        run("ScatterND", {"x": x, "i": np.array([[1, 5]]), "u": floats(1)}, fed="xiu")
    with pytest.raises(treadle.Error, match='ScatterElements node "node" .*: an index is outside of its axis'):
        run("ScatterElements", {"x": x, "i": np.array([[2**32]]), "u": floats(1, 1)}, fed="xiu")


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_running_sums(axis: int, exclusive: int, reverse: int, dtype: Any) -> None:
    x = np.random.default_rng(6).integers(-3, 4, (3, 600, 2)).astype(dtype)
    wide = np.flip(x, axis) if reverse else x
    sums = np.cumsum(wide.astype(np.float64), axis)
    sums = sums - wide if exclusive else sums
    expected = np.flip(sums, axis) if reverse else sums
    got = run("CumSum", {"x": x, "a": np.array(axis)}, exclusive=exclusive, reverse=reverse)
    np.testing.assert_allclose(got, expected.astype(dtype), rtol=1e-3 if dtype == np.float16 else 1e-6)


@pytest.mark.parametrize("index", [np.int32, np.int64, np.float32, np.uint8])
@pytest.mark.parametrize("dtype", [np.float32, np.bool_, np.int64])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_marks_at_indices(axis: int, dtype: Any, index: Any) -> None:
    places = np.array([[0, 3, 6], [7, 9, 5]] if index == np.uint8 else [[0, 3, -1], [-7, 7, -8]]).astype(index)
    values = np.array([0, 1] if dtype == np.bool_ else [4, -3]).astype(dtype)
    operands = {"x": places, "d": np.array(7), "v": values}
    got = run("OneHot", operands, fed="xv", output=tensor_type(dtype), axis=axis)
    wide = places.astype(np.int64)
    wide = np.where(wide < 0, wide + 7, wide)
    expected = np.moveaxis(np.where(wide[..., None] == np.arange(7), values[1], values[0]), -1, axis)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.int64])
@pytest.mark.parametrize("k", [0, 2, -2, 100, -100])
def test_triangles(k: int, dtype: Any) -> None:
    x = numbers(dtype, 2, 5, 7)
    np.testing.assert_array_equal(run("Trilu", {"x": x, "k": np.array(k)}, upper=1), np.triu(x, k))
    np.testing.assert_array_equal(run("Trilu", {"x": x, "k": np.array(k)}, upper=0), np.tril(x, k))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64])
@pytest.mark.parametrize("divisor", [3, -7, 1])
def test_integers_are_divided_by_constants(divisor: int, dtype: Any) -> None:
    if np.dtype(dtype).kind == "u" and divisor < 0:
        return
    limits = np.iinfo(dtype)
    x = np.concatenate([np.arange(100) - (50 if limits.min < 0 else 0), [limits.min, limits.max]]).astype(dtype)
    by = np.array([divisor], dtype)
    quotient = np.array([abs(int(v)) // abs(divisor) * (-1 if (int(v) < 0) != (divisor < 0) else 1) for v in x]).astype(dtype)
    if divisor != 1:  # the optimiser removes divisions by 1
        np.testing.assert_array_equal(run("Div", {"x": x, "d": by}), quotient)
    np.testing.assert_array_equal(run("Mod", {"x": x, "d": by}), np.mod(x, by))
    np.testing.assert_array_equal(run("Mod", {"x": x, "d": by}, fmod=1), np.fmod(x, by))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.int8, np.uint8, np.int32, np.int64])
@pytest.mark.parametrize("bounds", [(3, 20), (None, 20), (3, None)])
def test_bounds_that_a_run_computes(bounds: tuple[int | None, int | None], dtype: Any) -> None:
    x = np.abs(numbers(dtype, 5, 7))
    low, high = (None if bound is None else np.array(bound, dtype) for bound in bounds)
    np.testing.assert_array_equal(run("Clip", {"x": x, "l": low, "h": high}, fed="xlh"), np.clip(x, low, high))


@pytest.mark.parametrize("op_type", ["Exp", "Log", "Sqrt", "Reciprocal", "Sigmoid", "Tanh", "Softplus", "Relu", "Floor", "Ceil", "Round"])
def test_functions_of_wide_numbers(op_type: str) -> None:
    random = np.random.default_rng(7)
    positive = op_type in ("Log", "Sqrt", "Reciprocal")
    x = np.concatenate([random.uniform(1e-3 if positive else -700, 700, 4000), random.uniform(1e-3 if positive else -2, 2, 4000)])
    functions = {
        "Exp": np.exp, "Log": np.log, "Sqrt": np.sqrt, "Reciprocal": np.reciprocal, "Sigmoid": lambda v: 1 / (1 + np.exp(-v)), "Tanh": np.tanh,
        "Softplus": lambda v: np.logaddexp(0, v), "Relu": lambda v: np.maximum(v, 0), "Floor": np.floor, "Ceil": np.ceil, "Round": np.round,
    }  # fmt: skip
    np.testing.assert_allclose(run(op_type, {"x": x}), functions[op_type](x), rtol=1e-14)


def test_special_wide_numbers() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 710.0, -746.0, -740.0, 0.0])
    np.testing.assert_allclose(run("Exp", {"x": x}), [np.nan, np.inf, 0, np.inf, 0, np.exp(-740.0), 1], rtol=0.02)
    x = np.array([np.nan, np.inf, 0.0, -1.0, 5e-324, 1.0])
    np.testing.assert_allclose(run("Log", {"x": x}), [np.nan, np.inf, -np.inf, np.nan, np.log(5e-324), 0], rtol=1e-14)


def test_rows_of_wide_numbers() -> None:
    x = np.random.default_rng(8).standard_normal((4, 300, 3)) * 30
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(run("Softmax", {"x": x}, axis=1), e / e.sum(1, keepdims=True), rtol=1e-12)
    shifted = x - x.max(1, keepdims=True)
    np.testing.assert_allclose(run("LogSoftmax", {"x": x}, axis=1), shifted - np.log(np.exp(shifted).sum(1, keepdims=True)), rtol=1e-12, atol=1e-14)
    for op_type, expected in (("ReduceSum", x.sum(1)), ("ReduceMax", x.max(1)), ("ReduceL2", np.sqrt((x * x).sum(1)))):
        np.testing.assert_allclose(run(op_type, {"x": x, "a": np.array([1])}, keepdims=0), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("axes", [[0], [1], [2], [0, 2], [0, 1, 2]])
def test_logarithms_of_sums_of_exponentials(axes: list[int], dtype: Any) -> None:
    x = (floats(5, 300, 7) * 200).astype(dtype)
    wide = x.astype(np.float64)
    largest = wide.max(tuple(axes), keepdims=True)
    expected = np.squeeze(largest, tuple(axes)) + np.log(np.exp(wide - largest).sum(tuple(axes)))
    got = run("ReduceLogSumExp", {"x": x, "a": np.array(axes)}, keepdims=0)
    np.testing.assert_allclose(got, expected, rtol=1e-6 if dtype == np.float32 else 1e-13)
    infinite = np.array([[-np.inf, -np.inf], [np.inf, 1], [np.nan, 1]], dtype)
    np.testing.assert_array_equal(run("ReduceLogSumExp", {"x": infinite, "a": np.array([1])}, keepdims=0), [-np.inf, np.inf, np.nan])

"""Compares operators that were experimental before opset 10 with onnxruntime, which still has kernels for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import treadle
from onnx import helper

RNG = np.random.default_rng(0)
X, PICTURE, COLUMN = (RNG.standard_normal(shape).astype(np.float32) for shape in ((3, 4), (2, 3, 6, 7), (5,)))


def ints(*values: int, dtype: type = np.int64) -> np.ndarray:
    return np.array(values, dtype)


CASES: list[tuple[str, list[np.ndarray], dict[str, Any]]] = [
    ("Affine", [X], {"alpha": 2.5, "beta": -1.0}),
    ("Affine", [X], {"alpha": 2.5}),
    ("Crop", [PICTURE], {"border": [1, 2, 3, 1]}),
    ("Crop", [PICTURE], {"border": [0, 0, 0, 0]}),
    ("Crop", [PICTURE], {"border": [2, 1, 0, 0], "scale": [3, 4]}),
    ("DynamicSlice", [X, ints(1, 0), ints(3, 2)], {}),
    ("DynamicSlice", [X, ints(-3), ints(-1), ints(1)], {}),
    ("DynamicSlice", [X, ints(1, dtype=np.int32), ints(1000, dtype=np.int32), ints(0, dtype=np.int32)], {}),
    ("ImageScaler", [PICTURE], {"bias": [1.0, -2.0, 0.5], "scale": 0.25}),
    ("ImageScaler", [PICTURE], {"bias": [1.0, -2.0, 0.5]}),
    ("MeanVarianceNormalization", [PICTURE], {}),
    ("MeanVarianceNormalization", [PICTURE], {"across_channels": 1}),
    ("MeanVarianceNormalization", [PICTURE], {"normalize_variance": 0}),
    ("MeanVarianceNormalization", [PICTURE], {"across_channels": 1, "normalize_variance": 0}),
    ("ParametricSoftplus", [X], {"alpha": 2.0, "beta": 1.5}),
    ("Scale", [COLUMN], {"scale": -3.0}),
    ("ScaledTanh", [X], {"alpha": 3.0, "beta": 0.5}),
    ("ThresholdedRelu", [X], {"alpha": 0.5}),
    ("ThresholdedRelu", [X], {}),
]


def model(op: str, feeds: list[np.ndarray], attributes: dict[str, Any], opset: int, fixed: bool) -> bytes:
    def described(k: int, feed: np.ndarray) -> Any:
        return helper.make_tensor_value_info(f"x{k}", helper.np_dtype_to_tensor_dtype(feed.dtype), list(feed.shape) if fixed else [f"d{k}{a}" for a in range(feed.ndim)])

    node = helper.make_node(op, [f"x{k}" for k in range(len(feeds))], ["y"], **attributes)
    graph = helper.make_graph([node], "case", [described(k, feed) for k, feed in enumerate(feeds)], [helper.make_empty_tensor_value_info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=4).SerializeToString()


@pytest.mark.parametrize("opset", [7, 8])
@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda k: f"{CASES[k][0]}-{k}")
def test_values_are_onnxruntimes(ort: Any, case: int, opset: int) -> None:
    op, feeds, attributes = CASES[case]
    named = {f"x{k}": feed for k, feed in enumerate(feeds)}
    (expected,) = ort.InferenceSession(model(op, feeds, attributes, opset, True), providers=["CPUExecutionProvider"]).run(None, named)
    for fixed in (True, False):
        (actual,) = treadle.InferenceSession(model(op, feeds, attributes, opset, fixed)).run(None, named)
        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("op", "feed", "attributes", "named"),
    [
        ("Crop", PICTURE, {"border": [1, 2]}, "border has 2 elements, not 4"),
        ("Crop", PICTURE, {"border": [1, 0, -1, 0]}, "border has the element -1"),
        ("Crop", PICTURE, {"border": [1, 0, 0, 0], "scale": [2]}, "scale has 1 elements, not 2"),
        ("ImageScaler", PICTURE, {"bias": [1.0]}, "bias has 1 elements for 3 channels"),
        ("ImageScaler", X, {"bias": [1.0]}, "rank 2, not 4"),
    ],
)
def test_wrong_attributes_are_errors(op: str, feed: np.ndarray, attributes: dict[str, Any], named: str) -> None:
    with pytest.raises(treadle.Error, match=named):
        treadle.InferenceSession(model(op, [feed], attributes, 8, True))

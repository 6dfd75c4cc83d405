"""Tests products with constant weights and few or many rows. On processors with AMX, many rows are computed with numbers split in parts."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import treadle

K, N = 160, 200


def weights(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((K, N)).astype(np.float32)


def model(w: np.ndarray, transposed: bool = False, rows: int | str = "rows") -> bytes:
    """Returns y = relu(x W + bias) + x V. The optimiser fuses all nodes that it can."""
    rng = np.random.default_rng(1)
    bias = rng.standard_normal(N).astype(np.float32)
    nodes = [
        helper.make_node("Gemm", ["x", "w", "bias"], ["a"], transB=int(transposed)),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["x", "v"], ["c"]),
        helper.make_node("Add", ["b", "c"], ["y"]),
    ]
    initializers = {"w": w.T.copy() if transposed else w, "v": weights(2), "bias": bias}
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [rows, K])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [rows, N])],
        [numpy_helper.from_array(value, name) for name, value in initializers.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def expected(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    bias = np.random.default_rng(1).standard_normal(N).astype(np.float32)
    with np.errstate(invalid="ignore"):
        return np.maximum(x.astype(np.float64) @ w + bias, 0) + x.astype(np.float64) @ weights(2)


def check(y: np.ndarray, x: np.ndarray, w: np.ndarray) -> None:
    wanted = expected(x, w)
    size = np.abs(np.nan_to_num(x.astype(np.float64), posinf=1, neginf=1)) @ (np.abs(w.astype(np.float64)) + np.abs(weights(2))) + 1
    finite = np.isfinite(wanted)
    assert np.all(np.abs(y[finite] - wanted[finite]) <= 1e-6 * size[finite])
    np.testing.assert_array_equal(y[~finite], wanted[~finite].astype(np.float32))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_any_order_of_rows(transposed: bool, threads: int) -> None:
    options = treadle.SessionOptions()
    options.intra_op_num_threads = threads
    rng = np.random.default_rng(3)
    for sizes in ([1, 300, 4, 300, 64, 1], [300, 1, 700, 2]):  # weights in either form are converted to the other form
        session = treadle.InferenceSession(model(weights(), transposed), options)
        for rows in sizes:
            x = rng.standard_normal((rows, K)).astype(np.float32)
            check(session.run(None, {"x": x})[0], x, weights())


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e30, 1e-39])
def test_numbers_beyond_the_range_of_parts(value: float) -> None:
    rng = np.random.default_rng(4)
    session = treadle.InferenceSession(model(weights()))
    for rows in (1, 300):
        x = rng.standard_normal((rows, K)).astype(np.float32)
        x[rows // 2, 7] = value
        check(session.run(None, {"x": x})[0], x, weights())


@pytest.mark.parametrize("value", [np.inf, np.nan, 1e30])
def test_weights_beyond_the_range_of_parts(value: float) -> None:
    rng = np.random.default_rng(5)
    w = weights()
    w[9, 11] = value
    session = treadle.InferenceSession(model(w))
    for rows in (300, 1, 300):
        x = rng.standard_normal((rows, K)).astype(np.float32)
        check(session.run(None, {"x": x})[0], x, w)


@pytest.mark.parametrize("rows", [300, 2, "rows"])
def test_compiled_models_have_either_form(rows: int | str, tmp_path) -> None:
    options = treadle.SessionOptions()
    options.compiled_model_filepath = str(tmp_path / "m.treadle")
    rng = np.random.default_rng(6)
    session = treadle.InferenceSession(model(weights(), rows=rows), options)
    again = treadle.InferenceSession(str(tmp_path / "m.treadle"))
    for count in [rows] if isinstance(rows, int) else [1, 300, 2]:
        x = rng.standard_normal((count, K)).astype(np.float32)
        y = session.run(None, {"x": x})[0]
        check(y, x, weights())
        np.testing.assert_array_equal(again.run(None, {"x": x})[0], y)

"""Attention whose mask has more batches, heads or rows than the scores, known only during the run: results must be as without fusion."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import treadle
from onnx import TensorProto, helper

MASKS = [(3, 1, 1, 5), (1, 4, 1, 5), (1, 1, 6, 5), (3, 4, 6, 5), (4, 6, 5), (6, 5), (3, 1, 1, 1)]


def attention(mask_rank: int, boolean: bool, turned: bool) -> bytes:
    """Returns softmax(Q K^T + mask) V with symbolic extents, from [batch, length, heads, size] if `turned`."""
    letters = "nthd" if turned else "nhtd"
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [f"{axis}{name if axis == 't' and name == 'q' else ''}" for axis in letters]) for name in "qkv"]
    inputs.append(helper.make_tensor_value_info("mask", TensorProto.BOOL if boolean else TensorProto.FLOAT, [f"m{i}" for i in range(4 - mask_rank, 4)]))
    nodes = [helper.make_node("Transpose", [name], [f"{name}_heads"], perm=[0, 2, 1, 3] if turned else [0, 1, 2, 3]) for name in "qkv"]
    nodes += [helper.make_node("Transpose", ["k_heads"], ["turned"], perm=[0, 1, 3, 2]), helper.make_node("MatMul", ["q_heads", "turned"], ["product"]), helper.make_node("Mul", ["product", "scale"], ["scores"])]
    nodes.append(helper.make_node("Where", ["mask", "scores", "least"], ["masked"]) if boolean else helper.make_node("Add", ["scores", "mask"], ["masked"]))
    nodes += [helper.make_node("Softmax", ["masked"], ["p"], axis=-1), helper.make_node("MatMul", ["p", "v_heads"], ["out"])]
    constants = [helper.make_tensor("scale", TensorProto.FLOAT, [], [0.5]), helper.make_tensor("least", TensorProto.FLOAT, [], [-1e4])]
    graph = helper.make_graph(nodes, "attention", inputs, [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("boolean", [False, True])
@pytest.mark.parametrize("shape", MASKS, ids=str)
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("rows", [1, 6])
def test_a_larger_mask_stretches_the_scores(shape: tuple, boolean: bool, turned: bool, heads: int, rows: int) -> None:
    rng = np.random.default_rng(sum(shape))
    keys = shape[-1]
    feeds = {name: rng.standard_normal((1, heads, length, 8)).astype(np.float32) for name, length in (("q", rows), ("k", keys), ("v", keys))}
    if turned:
        feeds = {name: np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for name, x in feeds.items()}
    feeds["mask"] = rng.integers(0, 2, shape).astype(bool) if boolean else rng.standard_normal(shape).astype(np.float32)
    content = attention(len(shape), boolean, turned)
    session = treadle.InferenceSession(content)
    expected = onnxruntime.InferenceSession(content).run(None, feeds)[0]
    for _ in range(2):
        given = session.run(None, feeds)[0]
        assert given.shape == expected.shape
        np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-5)


def test_such_an_attention_is_written_as_a_function(tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(3)
    feeds = {name: rng.standard_normal((1, 1, length, 8)).astype(np.float32) for name, length in (("q", 1), ("k", 5), ("v", 5))}
    feeds["mask"] = rng.standard_normal((3, 4, 6, 5)).astype(np.float32)
    (tmp_path / "model.onnx").write_bytes(attention(4, False, False))
    subprocess.run([sys.executable, "-m", "treadle", "optimize", tmp_path / "model.onnx", "-o", tmp_path / "optimised.onnx"], check=True, capture_output=True)
    assert onnx.load(tmp_path / "optimised.onnx").functions[0].name.startswith("FusedAttention")
    expected, given = (onnxruntime.InferenceSession(tmp_path / name).run(None, feeds)[0] for name in ("model.onnx", "optimised.onnx"))
    np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-5)

"""Tests scan outputs of a Loop or Scan without iterations: their length is 0, and the other extents are known or declared by the body."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import treadle
from onnx import TensorProto, helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
TRIPS, SCANNED = {"n": np.array(0, np.int64), "c": np.array(True)}, {"s": np.zeros((0, 5, 2), np.float32)}


def value(name: str, dtype: int, shape: list | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def loop(outside: list, inside: list, declared: list) -> bytes:
    """Returns a model with a Loop that returns its state, and stacks the negated state."""
    nodes = [helper.make_node("Identity", ["c"], ["c2"]), helper.make_node("Identity", ["s"], ["s2"]), helper.make_node("Neg", ["s"], ["y"])]
    body = helper.make_graph(nodes, "body", [value("i", INT64, []), value("c", BOOL, []), value("s", FLOAT, inside)], [value("c2", BOOL, []), value("s2", FLOAT, inside), value("y", FLOAT, declared)])
    node = helper.make_node("Loop", ["n", "c", "s"], ["last", "stacked"], body=body)
    graph = helper.make_graph([node], "main", [value("n", INT64, []), value("c", BOOL, []), value("s", FLOAT, outside)], [value("last", FLOAT, None), value("stacked", FLOAT, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


@pytest.mark.parametrize("stopped", ["no trips", "no condition"])
@pytest.mark.parametrize(("outside", "inside", "declared"), [([5, 2], [5, 2], [5, 2]), (["a", "b"], [5, 2], [5, 2]), ([None, None], [5, 2], [5, 2])])
def test_a_loop_gives_the_declared_extents(outside: list, inside: list, declared: list, stopped: str) -> None:
    content = loop(outside, inside, declared)
    feeds = {"n": np.array(0 if stopped == "no trips" else 3, np.int64), "c": np.array(stopped == "no trips"), "s": np.ones((5, 2), np.float32)}
    ours, theirs = treadle.InferenceSession(content).run(None, feeds)[1], onnxruntime.InferenceSession(content).run(None, feeds)[1]
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype) == ((0, 5, 2), np.float32)


def test_an_extent_that_nothing_tells_is_0() -> None:
    nodes = [helper.make_node("Identity", ["c"], ["c2"]), helper.make_node("Concat", ["s", "s"], ["s2"], axis=0), helper.make_node("Neg", ["s"], ["y"])]
    body = helper.make_graph(nodes, "body", [value("i", INT64, []), value("c", BOOL, []), value("s", FLOAT, [None, 2])], [value("c2", BOOL, []), value("s2", FLOAT, [None, 2]), value("y", FLOAT, [None, 2])])
    node = helper.make_node("Loop", ["n", "c", "s"], ["last", "stacked"], body=body)
    graph = helper.make_graph([node], "main", [value("n", INT64, []), value("c", BOOL, []), value("s", FLOAT, [None, 2])], [value("stacked", FLOAT, None)])
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    feeds = TRIPS | {"s": np.ones((5, 2), np.float32)}
    assert treadle.InferenceSession(content).run(None, feeds)[0].shape == onnxruntime.InferenceSession(content).run(None, feeds)[0].shape == (0, 0, 2)


@pytest.mark.parametrize("outside", [[0, 5, 2], ["n", "a", "b"], [None, None, None], None])
def test_a_scan_gives_the_declared_extents(outside: list | None) -> None:
    body = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "body", [value("x", FLOAT, [5, 2])], [value("y", FLOAT, [5, 2])])
    graph = helper.make_graph([helper.make_node("Scan", ["s"], ["stacked"], body=body, num_scan_inputs=1)], "main", [value("s", FLOAT, outside)], [value("stacked", FLOAT, None)])
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    assert treadle.InferenceSession(content).run(None, SCANNED)[0].shape == (0, 5, 2)

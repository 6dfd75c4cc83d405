"""Runs that stop at a Yield or after a node."""

import threading

import numpy as np
import pytest
from onnx import TensorProto, helper

import treadle
from treadle import errors


def model():
    """Returns a model a = x + x; b = Yield(a); y = b * x."""
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["x", "x"], ["a"], name="doubling"),
            helper.make_node("Yield", ["a"], ["b"], name="yield", domain="treadle"),
            helper.make_node("Mul", ["b", "x"], ["y"], name="product"),
        ],
        "yielding",
        [value("x")],
        [value("y")],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("treadle", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


@pytest.fixture
def session():
    return treadle.InferenceSession(model())


X = np.float32([1, 2])


def test_a_run_hands_values_out_and_takes_values_in(session):
    run = session.partial_run({"x": X})
    assert not run.advance()
    assert list(run.yielded) == ["a"]
    np.testing.assert_array_equal(np.from_dlpack(run.yielded["a"]), [2, 4])
    (y,) = run.resume([np.float32([10, 20])])
    np.testing.assert_array_equal(y, [10, 40])
    assert run.finished


def test_inputs_come_later_and_outputs_early():
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])
    nodes = [helper.make_node("Add", ["x", "x"], ["a"]), helper.make_node("Mul", ["a", "w"], ["y"])]
    graph = helper.make_graph(nodes, "late", [value("x"), value("w")], [value("a"), value("y")])
    late = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    run = treadle.InferenceSession(late.SerializeToString()).partial_run({"x": X})
    assert not run.advance()
    np.testing.assert_array_equal(run.fetch(["a"])[0], [2, 4])
    with pytest.raises(errors.InvalidArgument, match='"w": the run has come to what reads it'):
        run.advance()
    assert run.advance(feeds={"w": np.float32([3, 5])})
    np.testing.assert_array_equal(run.outputs()[1], [6, 20])


def test_a_run_is_resumed_by_another_thread(session):
    runs = [session.partial_run({"x": X * i}) for i in range(4)]
    for run in runs:
        run.advance()
    results = {}

    def work(i):
        results[i] = runs[i].resume([X])

    threads = [threading.Thread(target=work, args=(i,)) for i in (3, 1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in (0, 1, 3):
        np.testing.assert_array_equal(results[i][0], X * X * i)


def test_a_run_advances_until_a_node(session):
    run = session.partial_run({"x": X})
    assert not run.advance(until="doubling")
    assert not run.advance()
    assert run.resume([X]) is not None
    with pytest.raises(errors.NotFound):
        run.advance(until="nothing")


def test_a_cached_value_replaces_a_computation(session):
    cache = treadle.ValueCache()
    cache["a"] = None
    run = session.partial_run({"x": X}, cache)
    run.advance()
    np.testing.assert_array_equal(cache["a"], [2, 4])
    other = session.partial_run({"x": X * 100}, cache)
    other.advance()
    np.testing.assert_array_equal(other.yielded["a"].numpy(), [2, 4])
    assert len(other.cache) == 1 and "a" in other.cache and list(other.cache.keys()) == ["a"]
    with pytest.raises(KeyError):
        cache["b"]


def test_an_output_that_is_declared_sparse_is_sparse():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    y = helper.make_sparse_tensor_value_info("y", TensorProto.FLOAT, [4])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    session = treadle.InferenceSession(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())
    run = session.partial_run({"x": np.float32([-1, 2, 0, 3])})
    assert run.advance()
    (value,) = run.outputs()
    assert isinstance(value, treadle.SparseTensor)
    np.testing.assert_array_equal(value.values(), [2, 3])
    np.testing.assert_array_equal(value.as_coo_view().indices(), [1, 3])

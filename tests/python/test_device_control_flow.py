"""Tests If, Loop and Scan on devices: values must equal NumPy's in float64, and nothing may be copied to the host between iterations."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import treadle

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def tensor(name: str, dtype: int, shape: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def floats(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def session(graph: onnx.GraphProto, device: str, memory_limit_bytes: int = 0) -> treadle.InferenceSession:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    options = treadle.SessionOptions()
    options.device = device
    options.memory_limit_bytes = memory_limit_bytes
    try:
        return treadle.InferenceSession(model.SerializeToString(), options)
    except treadle.Error as error:
        if any(reason in str(error) for reason in ("no Vulkan", "has no GPUs", "Vulkan finds none")):
            pytest.skip(str(error))
        raise


def where(of: treadle.InferenceSession) -> set[str]:
    """Returns the devices of all nodes except If, Loop and Scan, including nodes in bodies."""
    lines = [line.split("\t") for line in of.to_text("devices").splitlines()]
    return {device for device, op_type, *_ in lines if op_type not in ("If", "Loop", "Scan")}


def copies_to_host(of: treadle.InferenceSession) -> list[str]:
    """Returns the names of the values that the plan copies to the host, including values in bodies."""
    return re.findall(r"copy %(\S+) on \S+ -> %\S+ on cpu", of.to_text("planned"))


@pytest.fixture(params=["sim", "gpu:0"])
def device(request: pytest.FixtureRequest) -> str:
    return request.param


def counting_loop(body: list[onnx.NodeProto], carried: list[Any], scans: list[Any], weights: dict[str, np.ndarray] | None = None) -> onnx.GraphProto:
    """Makes a loop of m iterations of `body`, which makes the outputs "next" of "h", and "kept" for the stack, as long as "go" is true."""
    inner = helper.make_graph(
        body,
        "body",
        [tensor("i", INT64, []), tensor("c", BOOL, []), tensor("h", FLOAT, carried)],
        [tensor("go", BOOL, []), tensor("next", FLOAT, carried), *(tensor("kept", FLOAT, s) for s in scans)],
    )
    outputs = ["last", *(["all"] if scans else [])]
    return helper.make_graph(
        [
            helper.make_node("Tanh", ["x"], ["first"], "before"),
            helper.make_node("Loop", ["m", "", "first"], outputs, "loop", body=inner),
            helper.make_node("Neg", ["last"], ["y"], "after"),
        ],
        "loop",
        [tensor("m", INT64, []), tensor("x", FLOAT, carried)],
        [tensor("y", FLOAT, None), *(tensor("all", FLOAT, None) for _ in scans)],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )


@pytest.mark.parametrize("rounds", [0, 1, 7])
def test_a_loop_carries_values_on_the_device(device: str, rounds: int) -> None:
    w = floats(8, 8, seed=2) / 3
    body = [
        helper.make_node("MatMul", ["h", "w"], ["p"], "product"),
        helper.make_node("Tanh", ["p"], ["next"], "tanh"),
        helper.make_node("Abs", ["next"], ["kept"], "abs"),
        helper.make_node("Identity", ["c"], ["go"], "condition"),
    ]
    made = session(counting_loop(body, [3, 8], [[3, 8]], {"w": w}), device)
    x = floats(3, 8)
    y, stacked = made.run(None, {"m": np.array(rounds), "x": x})
    h, kept = np.tanh(x.astype(np.float64)), []
    for _ in range(rounds):
        h = np.tanh(h @ w)
        kept.append(np.abs(h))
    np.testing.assert_allclose(y, -h, atol=1e-5)
    np.testing.assert_allclose(stacked, np.array(kept).reshape(rounds, 3, 8), atol=1e-5)
    assert where(made) == {device}


def test_the_host_looks_at_the_condition_only(device: str) -> None:
    body = [
        helper.make_node("Mul", ["h", "half"], ["next"], "half it"),
        helper.make_node("ReduceMax", ["next"], ["most"], "largest", keepdims=0),
        helper.make_node("Greater", ["most", "limit"], ["go"], "compare"),
    ]
    weights = {"half": np.array(0.5, np.float32), "limit": np.array(1, np.float32)}
    made = session(counting_loop(body, [4], [], weights), device)
    x = np.array([0.1, 0.9, 0.5, -3], np.float32)
    (y,) = made.run(None, {"m": np.array(100), "x": 1e3 * x})
    h = np.tanh(1e3 * x.astype(np.float64))
    while True:
        h = h / 2
        if h.max() <= 1:
            break
    np.testing.assert_allclose(y, -h, rtol=1e-6)
    inside = [name for name in copies_to_host(made) if name not in ("y", "all")]
    assert set(inside) <= {"go", "next"}, inside  # "next" is an output of the body, and stays where it is


def test_a_value_that_is_handed_through_a_loop(device: str) -> None:
    """The loop does not change the carried value, which must exist longer than the memory of the loop's input."""
    body = [helper.make_node("Identity", ["c"], ["go"]), helper.make_node("Identity", ["h"], ["next"]), helper.make_node("Exp", ["h"], ["kept"], "exp")]
    made = session(counting_loop(body, [2, 3], [[2, 3]]), device)
    x = floats(2, 3)
    for rounds in (3, 0, 2):
        y, stacked = made.run(None, {"m": np.array(rounds), "x": x})
        h = np.tanh(x.astype(np.float64))
        np.testing.assert_allclose(y, -h, atol=1e-6)
        np.testing.assert_allclose(stacked, np.exp(np.broadcast_to(h, (rounds, 2, 3))), rtol=1e-5)


@pytest.mark.parametrize("taken", [True, False])
def test_a_branch_reads_and_makes_values_on_the_device(device: str, taken: bool) -> None:
    then_branch = helper.make_graph([helper.make_node("Mul", ["a", "a"], ["t"], "square")], "then", [], [tensor("t", FLOAT, [5])])
    # A constant is made on the host, and copied to the device on which the other branch makes its output.
    constant = numpy_helper.from_array(np.arange(5, dtype=np.float32), "e")
    else_branch = helper.make_graph([], "else", [], [tensor("e", FLOAT, [5])], [constant])
    graph = helper.make_graph(
        [
            helper.make_node("Exp", ["x"], ["a"], "exp"),
            helper.make_node("If", ["c"], ["b"], "if", then_branch=then_branch, else_branch=else_branch),
            helper.make_node("Add", ["b", "a"], ["y"], "add"),
        ],
        "if",
        [tensor("c", BOOL, []), tensor("x", FLOAT, [5])],
        [tensor("y", FLOAT, [5])],
    )
    made = session(graph, device)
    x = floats(5)
    (y,) = made.run(None, {"c": np.array(taken), "x": x})
    a = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(y, (a * a if taken else np.arange(5)) + a, rtol=1e-5)
    assert where(made) == {device}
    assert set(copies_to_host(made)) == {"y", "t"}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_a_scan_slices_and_stacks_on_the_device(device: str, axis: int, reverse: int) -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "v"], ["n"], "add"), helper.make_node("Sin", ["n"], ["o"], "sin")],
        "body",
        [tensor("s", FLOAT, [4]), tensor("v", FLOAT, [4])],
        [tensor("n", FLOAT, [4]), tensor("o", FLOAT, [4])],
    )
    attributes = {"scan_input_axes": [axis], "scan_output_axes": [axis], "scan_input_directions": [reverse], "scan_output_directions": [reverse]}
    shape = [6, 4] if axis == 0 else [4, 6]
    graph = helper.make_graph(
        [
            helper.make_node("Tanh", ["x"], ["h"], "tanh"),
            helper.make_node("Scan", ["z", "h"], ["last", "stacked"], "scan", body=body, num_scan_inputs=1, **attributes),
            helper.make_node("Neg", ["stacked"], ["y"], "neg"),
        ],
        "scan",
        [tensor("z", FLOAT, [4]), tensor("x", FLOAT, shape)],
        [tensor("last", FLOAT, [4]), tensor("y", FLOAT, shape)],
    )
    made = session(graph, device)
    x, z = floats(*shape), floats(4, seed=3)
    last, y = made.run(None, {"z": z, "x": x})
    rows = np.moveaxis(np.tanh(x.astype(np.float64)), axis, 0)
    sums = z + np.cumsum(rows[::-1] if reverse else rows, 0)
    expected = np.moveaxis(np.sin(sums[::-1] if reverse else sums), 0, axis)
    np.testing.assert_allclose(last, sums[-1], atol=1e-5)
    np.testing.assert_allclose(y, -expected, atol=1e-5)
    assert where(made) == {device}


def test_a_loop_within_a_branch_grows_a_value(device: str) -> None:
    inner = helper.make_graph(
        [helper.make_node("Concat", ["h", "a"], ["longer"], "concat", axis=0), helper.make_node("Identity", ["c"], ["go"])],
        "body",
        [tensor("i", INT64, []), tensor("c", BOOL, []), tensor("h", FLOAT, ["n"])],
        [tensor("go", BOOL, []), tensor("longer", FLOAT, ["k"])],
    )
    then_branch = helper.make_graph([helper.make_node("Loop", ["m", "", "a"], ["t"], "loop", body=inner)], "then", [], [tensor("t", FLOAT, ["l"])])
    else_branch = helper.make_graph([helper.make_node("Neg", ["a"], ["e"], "neg")], "else", [], [tensor("e", FLOAT, ["l"])])
    graph = helper.make_graph(
        [
            helper.make_node("Exp", ["x"], ["a"], "exp"),
            helper.make_node("If", ["c"], ["b"], "if", then_branch=then_branch, else_branch=else_branch),
            helper.make_node("Identity", ["b"], ["y"]),
        ],
        "nested",
        [tensor("m", INT64, []), tensor("c", BOOL, []), tensor("x", FLOAT, [3])],
        [tensor("y", FLOAT, None)],
    )
    made = session(graph, device)
    x = floats(3)
    a = np.exp(x.astype(np.float64))
    for rounds in (0, 2, 5):
        (y,) = made.run(None, {"m": np.array(rounds), "c": np.array(True), "x": x})
        np.testing.assert_allclose(y, np.tile(a, rounds + 1), rtol=1e-5)
    (y,) = made.run(None, {"m": np.array(1), "c": np.array(False), "x": x})
    np.testing.assert_allclose(y, -a, rtol=1e-5)


def test_a_failing_body_names_its_node_and_the_loop(device: str) -> None:
    body = [
        helper.make_node("Gather", ["table", "i"], ["row"], "look up"),
        helper.make_node("Add", ["h", "row"], ["next"], "add"),
        helper.make_node("Identity", ["c"], ["go"]),
    ]
    made = session(counting_loop(body, [2], [], {"table": floats(4, 2)}), device)
    for _ in range(2):
        with pytest.raises(treadle.Error, match="look up"):
            made.run(None, {"m": np.array(9), "x": floats(2)})
        made.run(None, {"m": np.array(4), "x": floats(2)})


def test_bodies_keep_to_a_limit_of_memory(device: str) -> None:
    """Values of the run around a body make room for the body's; a loop's values are then the same."""
    w = floats(8, 8, seed=2) / 3
    body = [
        helper.make_node("MatMul", ["h", "w"], ["p"], "product"),
        helper.make_node("Tanh", ["p"], ["next"], "tanh"),
        helper.make_node("Identity", ["c"], ["go"]),
    ]
    made = session(counting_loop(body, [3, 8], [], {"w": w}), device, memory_limit_bytes=1 << 10)
    x = floats(3, 8)
    h = np.tanh(x.astype(np.float64))
    for _ in range(4):
        h = np.tanh(h @ w)
    for _ in range(2):
        np.testing.assert_allclose(made.run(None, {"m": np.array(4), "x": x})[0], -h, atol=1e-5)

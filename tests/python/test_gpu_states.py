"""States of a session on a GPU: they stay there, and outputs are made where they are to be. Values are compared with the host's or NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_gpu import on_gpu

import treadle

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def model_of(nodes: list[Any], inputs: dict[str, tuple[int, list[Any]]], outputs: dict[str, int], **constants: np.ndarray) -> bytes:
    graph = helper.make_graph(
        nodes,
        "states",
        [helper.make_tensor_value_info(name, dtype, shape) for name, (dtype, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, dtype, None) for name, dtype in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def on_device(array: np.ndarray) -> treadle.OrtValue:
    return treadle.OrtValue.ortvalue_from_numpy(array, "gpu:0", 0)


# Along axis 0 rows are appended to the state's memory, along axis 1 the whole state is copied. `late` reads the state after the Concat.
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("late", [False, True])
def test_states_that_grow(axis: int, late: bool) -> None:
    node = helper.make_node
    nodes = [
        node("Concat", ["past", "x"], ["present"], axis=axis),
        node("ReduceSum", ["present"], ["sum"], keepdims=0),
        node("ReduceMax", ["past"], ["most"], keepdims=0),
        node("Mul" if late else "Sub", ["sum", "most"] if late else ["sum", "sum"], ["y"]),
        node("Add", ["count", "one"], ["next"]),
    ]
    model = model_of(
        nodes,
        {"past": (FLOAT, ["a", "b"]), "x": (FLOAT, ["c", "d"]), "count": (INT64, [1])},
        {"present": FLOAT, "sum": FLOAT, "y": FLOAT, "next": INT64},
        one=np.array([1], np.int64),
    )
    pairs, start = {"past": "present", "count": "next"}, values(1, 5) if axis == 0 else values(3, 1)
    runs = [session.stateful(pairs, {"past": start}) for session in (on_gpu(model), treadle.InferenceSession(model))]
    parts = [start]
    for step in range(60):
        parts.append(values(1 + step % 3, 5, seed=step) if axis == 0 else values(3, 1 + step % 3, seed=step))
        got, wanted = (run.run(None, {"x": parts[-1]}) for run in runs)
        np.testing.assert_allclose(got[0], wanted[0], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(got[1], wanted[1], rtol=1e-3, atol=1e-4)
        np.testing.assert_array_equal(runs[0].state("past"), np.concatenate(parts, axis))
        assert runs[0].state("count") == [step + 1]
    fork = runs[0].state("past")
    runs[0].run(None, {"x": parts[1]})
    runs[0].set_state("past", fork)
    runs[0].run(None, {"x": parts[2]})
    np.testing.assert_array_equal(runs[0].state("past"), np.concatenate([*parts, parts[2]], axis))


def test_a_failed_run_leaves_the_states() -> None:
    node = helper.make_node
    nodes = [node("Concat", ["past", "x"], ["present"], axis=0), node("Gather", ["present", "i"], ["y"], "look up"), node("Tanh", ["other"], ["changed"])]
    model = model_of(
        nodes,
        {"past": (FLOAT, ["n", 3]), "x": (FLOAT, ["m", 3]), "i": (INT64, ["k"]), "other": (FLOAT, [2, 3])},
        {"present": FLOAT, "y": FLOAT, "changed": FLOAT},
    )
    run = on_gpu(model).stateful({"past": "present", "other": "changed"}, {"past": values(2, 3), "other": values(2, 3)})
    whole, other = values(2, 3), values(2, 3)
    for step in range(8):
        x = values(1, 3, seed=step)
        if step % 2 == 1:
            with pytest.raises(treadle.Error, match="look up"):
                run.run(None, {"x": -x, "i": np.array([len(whole) + 1])})
            np.testing.assert_array_equal(run.state("past"), whole)
            np.testing.assert_allclose(run.state("other"), other, rtol=1e-5, atol=1e-6)
        whole, other = np.concatenate([whole, x]), np.tanh(other)
        np.testing.assert_array_equal(run.run(["y"], {"x": x, "i": np.array([len(whole) - 1])})[0], x)
    np.testing.assert_array_equal(run.state("past"), whole)
    np.testing.assert_allclose(run.state("other"), other, rtol=1e-5, atol=1e-6)


# The output's memory is an input's. It may be written over where nothing reads the input any more, or by a node that works in place.
@pytest.mark.parametrize(
    ("nodes", "result"),
    [
        ([("Tanh", ["s"], ["y"])], lambda s, x: np.tanh(s)),
        ([("Add", ["s", "x"], ["y"]), ("Tanh", ["y"], ["z"])], lambda s, x: s + x),
        ([("Tanh", ["s"], ["t"]), ("Softmax", ["t"], ["u"]), ("Add", ["u", "x"], ["y"])], lambda s, x: np.exp(np.tanh(s)) / np.exp(np.tanh(s)).sum(-1, keepdims=True) + x),
        ([("Transpose", ["s"], ["y"]), ("Add", ["y", "s"], ["z"])], lambda s, x: s.T),
        ([("MatMul", ["x", "s"], ["y"])], lambda s, x: x.astype(np.float64) @ s),
    ],
)
def test_outputs_bound_to_the_memory_of_inputs(nodes: list[Any], result: Any) -> None:
    made = {name for node in nodes for name in node[2]}
    outputs = {name: FLOAT for name in ("y", "z") if name in made}
    model = model_of([helper.make_node(*node) for node in nodes], {"s": (FLOAT, [6, 6]), "x": (FLOAT, [6, 6])}, outputs)
    session = on_gpu(model)
    s = values(6, 6)
    state = on_device(s)
    for step in range(6):
        x = values(6, 6, seed=step + 1)
        binding = session.io_binding()
        binding.bind_ortvalue_input("s", state)
        binding.bind_cpu_input("x", x)
        for name in outputs:
            if name == "y":
                binding.bind_ortvalue_output(name, state)
            else:
                binding.bind_output(name, "cpu")
        session.run_with_iobinding(binding)
        np.testing.assert_allclose(state.numpy(), result(s, x), rtol=1e-4, atol=1e-5)
        s = state.numpy()


def test_two_outputs_bound_to_two_blocks_and_to_larger_ones() -> None:
    model = model_of([helper.make_node("Tanh", ["x"], ["y"]), helper.make_node("Neg", ["y"], ["z"])], {"x": (FLOAT, ["n", 4])}, {"y": FLOAT, "z": FLOAT})
    session = on_gpu(model)
    for step in range(4):
        x = values(3, 4, seed=step)
        y, z = on_device(np.zeros((3, 4), np.float32)), on_device(np.zeros((3, 4), np.float32))
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_ortvalue_output("y", y)
        binding.bind_ortvalue_output("z", z)
        session.run_with_iobinding(binding)
        np.testing.assert_allclose(y.numpy(), np.tanh(x), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(z.numpy(), -np.tanh(x), rtol=1e-5, atol=1e-6)

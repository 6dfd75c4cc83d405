"""Later runs on a GPU submit what an earlier one has recorded. Their values are compared with the host's."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_gpu import on_gpu

import treadle

WIDTH = 24


def network() -> bytes:
    """Returns y = f(x, i) and z = g(x) in 60 nodes of many kinds, for x [n, 24] and i [k], the rows of y."""
    random = np.random.default_rng(1)
    nodes, constants = [], {"zero": np.zeros(1, np.float32), "scale": np.ones(WIDTH, np.float32), "halves": np.array([12, 12])}
    value = "x"
    for layer in range(10):
        w = f"w{layer}"
        constants[w] = (random.standard_normal((WIDTH, WIDTH)) / 5).astype(np.float32)
        nodes += [
            helper.make_node("MatMul", [value, w], [f"m{layer}"]),
            helper.make_node("Split", [f"m{layer}", "halves"], [f"a{layer}", f"b{layer}"], axis=1),
            helper.make_node("Softmax", [f"a{layer}"], [f"s{layer}"], axis=-1),
            helper.make_node("Tanh", [f"b{layer}"], [f"t{layer}"]),
            helper.make_node("Concat", [f"t{layer}", f"s{layer}"], [f"c{layer}"], axis=1),
            helper.make_node("LayerNormalization", [f"c{layer}", "scale"], [f"l{layer}"], axis=-1),
        ]
        value = f"l{layer}"
    nodes += [helper.make_node("Gather", [value, "i"], ["y"], "rows"), helper.make_node("ReduceSum", ["m3"], ["z"], keepdims=0)]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH]), helper.make_tensor_value_info("i", TensorProto.INT64, ["k"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["k", WIDTH]), helper.make_tensor_value_info("z", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()


def feeds_for(rows: int, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {"x": random.standard_normal((rows, WIDTH)).astype(np.float32), "i": random.integers(0, rows, 7)}


def expect_hosts(host: Any, session: Any, feeds: dict[str, np.ndarray], options: Any = None) -> None:
    expected = host.run(None, feeds)
    for got, wanted in zip(session.run(None, feeds, options), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-5)


def test_runs_of_the_same_extents_and_of_extents_that_come_back() -> None:
    session, host = on_gpu(network()), treadle.InferenceSession(network())
    for seed, rows in enumerate([5, 5, 5, 33, 33, 5, 64, 3, 33, 5, 5, 64]):
        expect_hosts(host, session, feeds_for(rows, seed))


def test_an_index_outside_in_a_later_run_is_an_error_that_names_the_node() -> None:
    session, host = on_gpu(network()), treadle.InferenceSession(network())
    for seed in range(6):
        feeds = feeds_for(8, seed)
        if seed % 2 == 1:
            with pytest.raises(treadle.Error, match="rows"):
                session.run(None, feeds | {"i": np.array([0, 1, 2, 8, 0, 0, 0])})
        expect_hosts(host, session, feeds)


def test_an_index_outside_in_a_run_that_also_uploads_constants() -> None:
    """Work that uploads a constant cannot be submitted again. Its record is dropped before the device has done it."""
    nodes = [
        helper.make_node("Gather", ["x", "i"], ["g"], "rows"),
        helper.make_node("Tanh", ["g"], ["t"]),
        helper.make_node("Shape", ["t"], ["extents"]),
        helper.make_node("ConstantOfShape", ["extents"], ["filled"], value=numpy_helper.from_array(np.array([2.5], np.float32))),
        helper.make_node("Concat", ["t", "filled"], ["y"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH]), helper.make_tensor_value_info("i", TensorProto.INT64, ["k"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["k", 2 * WIDTH])],
    )
    session = on_gpu(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString())
    for seed in range(3):
        feeds = feeds_for(8, seed)
        with pytest.raises(treadle.Error, match="rows"):
            session.run(None, feeds | {"i": np.array([0, 8, 1, 2, 3, 4, 5])})
        gathered = np.tanh(feeds["x"][feeds["i"]])
        (y,) = session.run(None, feeds)
        np.testing.assert_allclose(y, np.concatenate([gathered, np.full_like(gathered, 2.5)], axis=1), rtol=1e-5, atol=1e-6)


def test_threads_that_share_a_session() -> None:
    session, host = on_gpu(network()), treadle.InferenceSession(network())
    failed: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for step in range(8):
                expect_hosts(host, session, feeds_for(4 + 13 * (step // 3 % 2), 10 * thread + step))
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=work, args=(t,)) for t in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def test_sessions_that_take_turns_move_each_others_memory() -> None:
    sessions, host = [on_gpu(network()) for _ in range(3)], treadle.InferenceSession(network())
    kept = []
    for step in range(12):
        expect_hosts(host, sessions[step % 3], feeds_for(6, step))
        kept.append(treadle.OrtValue.ortvalue_from_numpy(np.zeros(1000 + step, np.float32), "gpu:0", 0))
        if step % 4 == 3:
            del kept[::2]


def test_random_numbers_differ_from_run_to_run() -> None:
    nodes = [helper.make_node("Tanh", ["x"], ["t"]), helper.make_node("Dropout", ["t", "ratio", "training"], ["d"]), helper.make_node("Softmax", ["d"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "dropout",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 50])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 50])],
        [numpy_helper.from_array(np.array(0.5, np.float32), "ratio"), numpy_helper.from_array(np.array(True), "training")],
    )
    session = on_gpu(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())
    x = np.ones((4, 50), np.float32)
    runs = [session.run(None, {"x": x})[0] for _ in range(4)]
    for later in runs[1:]:
        assert not np.array_equal(runs[0], later)


def test_values_that_stay_on_the_device_and_change_places() -> None:
    random = np.random.default_rng(2)
    w = (random.standard_normal((WIDTH, WIDTH)) / 5).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["s", "w"], ["m"]), helper.make_node("Tanh", ["m"], ["t"]), helper.make_node("Add", ["t", "x"], ["next"])]
    graph = helper.make_graph(
        nodes,
        "step",
        [helper.make_tensor_value_info("s", TensorProto.FLOAT, [3, WIDTH]), helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, WIDTH])],
        [helper.make_tensor_value_info("next", TensorProto.FLOAT, [3, WIDTH])],
        [numpy_helper.from_array(w, "w")],
    )
    session = on_gpu(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString())
    state = np.zeros((3, WIDTH), np.float32)
    on_device = treadle.OrtValue.ortvalue_from_numpy(state, "gpu:0", 0)
    wanted, seen = state.astype(np.float64), []
    for _ in range(25):
        x = random.standard_normal((3, WIDTH)).astype(np.float32)
        wanted = np.tanh(wanted @ w) + x
        binding = session.io_binding()
        binding.bind_ortvalue_input("s", on_device)
        binding.bind_cpu_input("x", x)
        binding.bind_output("next", "gpu:0")
        session.run_with_iobinding(binding)
        (on_device,) = binding.get_outputs()
        seen.append((on_device, wanted))
    for value, expected in seen:  # no run has written over an earlier one's output
        np.testing.assert_allclose(value.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_a_profile_between_runs_has_every_node() -> None:
    session, host = on_gpu(network()), treadle.InferenceSession(network())
    for step in range(6):
        feeds = feeds_for(9, step)
        if step % 2 == 1:
            with treadle.profile(session, peaks=False) as profile:
                session.run(None, feeds)
            assert {node.name: node.calls for node in profile.nodes}["rows"] == 1
        expect_hosts(host, session, feeds)

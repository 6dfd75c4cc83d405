"""Rounds of Loop and Scan on devices: they are issued ahead of each other unless the host reads something of a round, and give the host's values in every way of running."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_gpu_memory import devices, options_on, skipping, values

import treadle

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
ROWS, WIDTH, TRIPS = 6, 16, 9


def info(name: str, dtype: int, shape: list[Any] | None) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def model_of(nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: dict[str, np.ndarray]) -> bytes:
    graph = helper.make_graph(nodes, "loops", inputs, outputs, [numpy_helper.from_array(value, name) for name, value in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()


def loop_model(condition: str) -> bytes:
    """h' = tanh(h w + x[trip]), total' = total + h'; each h' is an output, too. `condition` says where the body's condition comes from."""
    node = helper.make_node
    body = [
        node("Gather", ["xs", "trip"], ["row"]),
        node("MatMul", ["h", "w"], ["product"]),
        node("Add", ["product", "row"], ["sum"]),
        node("Tanh", ["sum"], ["next"]),
        node("Add", ["total", "next"], ["next_total"]),
    ]
    ends = {
        "constant": [node("Constant", [], ["go_on"], value=numpy_helper.from_array(np.array(True)))],
        "passed on": [node("Identity", ["before"], ["go_on"])],
        "of the trips": [node("Less", ["trip", "most"], ["go_on"])],  # the host computes it
        "of the values": [node("ReduceMax", ["next_total"], ["peak"], keepdims=0), node("Less", ["peak", "limit"], ["go_on"])],
    }
    body += ends[condition]
    inner = helper.make_graph(
        body,
        "body",
        [info("trip", INT64, []), info("before", BOOL, []), info("h", FLOAT, [ROWS, WIDTH]), info("total", FLOAT, [ROWS, WIDTH])],
        [info("go_on", BOOL, []), info("next", FLOAT, [ROWS, WIDTH]), info("next_total", FLOAT, [ROWS, WIDTH]), info("next", FLOAT, [ROWS, WIDTH])],
    )
    weights = {"w": values(WIDTH, WIDTH, seed=3) / 4, "most": np.array(TRIPS - 3), "limit": np.array(3, np.float32), "first": np.array(True)}
    nodes = [
        node("Exp", ["start"], ["h0"]),
        node("Mul", ["start", "start"], ["total0"]),
        node("Loop", ["trips", "first", "h0", "total0"], ["h_end", "total_end", "all"], body=inner),
        node("Add", ["h_end", "total_end"], ["y"]),
    ]
    inputs = [info("start", FLOAT, [ROWS, WIDTH]), info("xs", FLOAT, ["n", WIDTH]), info("trips", INT64, [])]
    return model_of(nodes, inputs, [info("y", FLOAT, None), info("all", FLOAT, None)], weights)


def by_numpy(condition: str, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    h, total = np.exp(feeds["start"].astype(np.float64)), feeds["start"].astype(np.float64) ** 2
    w, made = values(WIDTH, WIDTH, seed=3).astype(np.float64) / 4, []
    for trip in range(int(feeds["trips"])):
        h = np.tanh(h @ w + feeds["xs"][trip])
        total = total + h
        made.append(h)
        if (condition == "of the trips" and trip >= TRIPS - 3) or (condition == "of the values" and total.max() >= 3):
            break
    return [h + total, np.array(made).reshape(len(made), ROWS, WIDTH)]


def feeds_of(trips: int, seed: int = 1) -> dict[str, np.ndarray]:
    return {"start": values(ROWS, WIDTH, seed=seed), "xs": values(TRIPS, WIDTH, seed=seed + 1), "trips": np.array(trips)}


CONDITIONS = ["constant", "passed on", "of the trips", "of the values"]


@devices
@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_loop_gives_what_its_rounds_give(condition: str, device: str) -> None:
    session = skipping(lambda: treadle.InferenceSession(loop_model(condition), options_on(device)))
    for trips in (TRIPS, 0, 1, 3, TRIPS):
        feeds = feeds_of(trips, seed=trips)
        for got, expected in zip(session.run(None, feeds), by_numpy(condition, feeds), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@devices
@pytest.mark.parametrize("condition", ["constant", "of the values"])
@pytest.mark.parametrize("way", ["limit", "job", "share", "monitor", "profile", "basic"])
def test_a_loop_in_other_ways_of_running(way: str, condition: str, device: str) -> None:
    options = options_on(device)
    if way == "limit":
        options.memory_limit_bytes = 1 << 14
    elif way in ("job", "share"):
        options.job = treadle.Job("loops-" + way, memory_limit=1 << 14) if way == "job" else treadle.Job("loops-" + way, share=50)
    elif way == "basic":
        options.graph_optimization_level = "basic"
    session = skipping(lambda: treadle.InferenceSession(loop_model(condition), options))
    seen: list[str] = []
    if way == "monitor":
        session.set_monitor(lambda event: seen.append(event.value))
    feeds = feeds_of(TRIPS)
    with treadle.profile(session, peaks=False) if way == "profile" else contextlib.nullcontext():
        for _ in range(2):
            for got, expected in zip(session.run(None, feeds), by_numpy(condition, feeds), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    assert bool(seen) == (way == "monitor")


@devices
def test_values_that_grow_and_loops_within_loops(device: str) -> None:
    """grown' = concat(grown, x * trip); an inner loop without a condition doubles x three times in each round."""
    node = helper.make_node
    inner = helper.make_graph(
        [node("Add", ["v", "v"], ["v2"]), node("Identity", ["c"], ["c2"])],
        "inner",
        [info("i", INT64, []), info("c", BOOL, []), info("v", FLOAT, [2, 3])],
        [info("c2", BOOL, []), info("v2", FLOAT, [2, 3])],
    )
    outer = helper.make_graph(
        [
            node("Loop", ["three", "", "x"], ["x8"], body=inner),
            node("Cast", ["trip"], ["number"], to=FLOAT),
            node("Mul", ["x8", "number"], ["scaled"]),
            node("Concat", ["grown", "scaled"], ["longer"], axis=0),
            node("Identity", ["go"], ["go_on"]),
        ],
        "outer",
        [info("trip", INT64, []), info("go", BOOL, []), info("grown", FLOAT, [None, 3])],
        [info("go_on", BOOL, []), info("longer", FLOAT, [None, 3])],
    )
    nodes = [node("Neg", ["x_in"], ["x"]), node("Loop", ["trips", "", "x"], ["grown_all"], body=outer), node("Abs", ["grown_all"], ["y"])]
    model = model_of(nodes, [info("x_in", FLOAT, [2, 3]), info("trips", INT64, [])], [info("y", FLOAT, None)], {"three": np.array(3)})
    session = skipping(lambda: treadle.InferenceSession(model, options_on(device)))
    x = values(2, 3)
    for trips in (5, 0, 7):
        expected = np.abs(np.concatenate([-x] + [-8 * x * trip for trip in range(trips)]))
        np.testing.assert_allclose(session.run(None, {"x_in": x, "trips": np.array(trips)})[0], expected, rtol=1e-6)


@devices
@pytest.mark.parametrize("axis", [0, 1])
def test_a_scan_gives_what_its_rounds_give(axis: int, device: str) -> None:
    node = helper.make_node
    body = helper.make_graph(
        [node("MatMul", ["s", "w"], ["p"]), node("Add", ["p", "slice"], ["q"]), node("Sigmoid", ["q"], ["s2"]), node("Mul", ["s2", "s2"], ["square"])],
        "body",
        [info("s", FLOAT, [WIDTH]), info("slice", FLOAT, [WIDTH])],
        [info("s2", FLOAT, [WIDTH]), info("square", FLOAT, [WIDTH])],
    )
    shape = [11, WIDTH] if axis == 0 else [WIDTH, 11]
    nodes = [node("Tanh", ["xs_in"], ["xs"]), node("Scan", ["s0", "xs"], ["s_end", "squares"], body=body, num_scan_inputs=1, scan_input_axes=[axis])]
    w = values(WIDTH, WIDTH, seed=3) / 4
    model = model_of(nodes, [info("s0", FLOAT, [WIDTH]), info("xs_in", FLOAT, shape)], [info("s_end", FLOAT, None), info("squares", FLOAT, None)], {"w": w})
    session = skipping(lambda: treadle.InferenceSession(model, options_on(device)))
    feeds = {"s0": values(WIDTH), "xs_in": values(*shape, seed=2)}
    state, squares = feeds["s0"].astype(np.float64), []
    for step in range(11):
        state = 1 / (1 + np.exp(-(state @ w + np.tanh(feeds["xs_in"].take(step, axis)))))
        squares.append(state**2)
    for _ in range(2):
        s_end, made = session.run(None, feeds)
        np.testing.assert_allclose(s_end, state, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(made, squares, rtol=1e-4, atol=1e-5)


@devices
def test_an_error_of_a_round_leaves_the_session_usable(device: str) -> None:
    session = skipping(lambda: treadle.InferenceSession(loop_model("constant"), options_on(device)))
    for _ in range(2):
        feeds = feeds_of(TRIPS + 4)  # reads rows that are not there
        with pytest.raises(treadle.Error, match="Gather"):
            session.run(None, feeds)
        feeds = feeds_of(TRIPS)
        np.testing.assert_allclose(session.run(None, feeds)[0], by_numpy("constant", feeds)[0], rtol=1e-4, atol=1e-4)

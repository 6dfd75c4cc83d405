"""Tests profiles of the thread pool: the states of its threads during runs; links from backward to forward nodes; and the clock of a
recording."""

from __future__ import annotations

import collections
import csv
import json
import pathlib
import subprocess
import time
import typing

import numpy as np
import pytest
from onnx import TensorProto, helper

import treadle
import treadle.train

RUNS, NODES = 8, 4
STATES = ["running", "no ready work", "barrier", "asleep"]
FEEDS = {"x": np.ones((256, 4096), np.float32)}


def chain(threads: int) -> treadle.InferenceSession:
    graph = helper.make_graph(
        [helper.make_node("Erf", [f"v{i}" if i else "x"], [f"v{i + 1}" if i + 1 < NODES else "y"], f"erf{i}") for i in range(NODES)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [256, 4096])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [256, 4096])],
    )
    options = treadle.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return treadle.InferenceSession(made.SerializeToString(), options)


@pytest.fixture(scope="module")
def profile() -> treadle.Profile:
    session = chain(3)
    session.run(None, FEEDS)
    with treadle.profile(session, peaks=False) as made:
        for _ in range(RUNS):
            session.run(None, FEEDS)
    return made


def events_of(profile: treadle.Profile, path: pathlib.Path) -> dict[str, typing.Any]:
    profile.save(path)
    return dict(json.loads(path.read_text()))


def test_states_of_threads_sum_to_the_runs(profile: treadle.Profile) -> None:
    assert profile.pool[0].calls != profile.pool[-1].calls or len(profile.pool) == 1
    assert 1 <= len(profile.pool) <= 3
    assert sum(thread.calls for thread in profile.pool) == 1
    for thread in profile.pool:
        assert thread.running + thread.no_ready_work + thread.barrier + thread.asleep == pytest.approx(1, abs=3e-3)
    assert sum(part["share"] for part in profile.data["where"]) == pytest.approx(1, abs=1e-4)
    runs_ms = sum(thread["ms"] for thread in profile.data["pool"] if thread["calls"])
    of_runs = profile.data["runs"]["ms"]
    assert 0.99 * of_runs["min"] <= runs_ms / RUNS <= 1.01 * of_runs["max"]
    table = profile.table()
    assert "threads during runs" in table and ", calls runs" in table
    assert all(0 <= node.barrier_ms <= node.p90_ms * RUNS for node in profile.nodes)


def test_one_thread_has_no_pool(tmp_path: pathlib.Path) -> None:
    session = chain(1)
    with treadle.profile(session, peaks=False) as made:
        session.run(None, FEEDS)
    assert made.pool == [] and "threads during runs" not in made.table()
    assert not any(event.get("cat") == "thread_pool" for event in events_of(made, tmp_path / "p.trace.json")["traceEvents"])


def test_helpers_are_in_every_kind_of_file(profile: treadle.Profile, tmp_path: pathlib.Path) -> None:
    events = events_of(profile, tmp_path / "p.trace.json")["traceEvents"]
    states = [event for event in events if event.get("cat") == "thread_pool"]
    assert {event["name"] for event in states} <= set(STATES)
    (run_tid,) = {event["tid"] for event in events if event["name"].startswith("ProfilerStep#")}
    helping = collections.Counter(event["tid"] for event in states if event["name"] == "running")
    assert run_tid not in helping
    # Ranges in a row nest properly, so none is moved to a row "overlapping".
    assert not any("overlapping" in event["args"]["name"] for event in events if event["ph"] == "M")
    perfetto = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    profile.save(tmp_path / "p.pftrace")
    trace = perfetto.Trace()
    trace.ParseFromString((tmp_path / "p.pftrace").read_bytes())
    names = {text.name for packet in trace.packet for text in packet.interned_data.event_names}
    assert {event["name"] for event in states} <= names
    waits = {event["name"] for event in states if event["name"] != "running" and event["dur"] > 0}
    profile.save(tmp_path / "p.folded")
    frames = {line.rsplit(" ", 1)[0].split(";")[-1] for line in (tmp_path / "p.folded").read_text().splitlines()}
    assert waits <= frames and "running" not in frames
    speedscope = events_of(profile, tmp_path / "p.speedscope.json")
    opened = {speedscope["shared"]["frames"][e["frame"]]["name"] for row in speedscope["profiles"] for e in row["events"]}
    assert waits <= opened and "running" not in opened
    profile.save(tmp_path / "p.onnxruntime.json")
    kernels = [event for event in json.loads((tmp_path / "p.onnxruntime.json").read_text()) if event["name"].endswith("_kernel_time")]
    assert len(kernels) == RUNS * NODES
    for event in kernels:
        main = event["args"]["thread_scheduling_stats"]["main_thread"]
        assert main["Wait"] >= 0 and abs(main["Run"] + main["Wait"] - event["dur"]) <= 2
    profile.save(tmp_path / "p.html")
    assert "Threads during runs" in (tmp_path / "p.html").read_text()


def test_a_recording_has_them(tmp_path: pathlib.Path) -> None:
    session = chain(2)
    with treadle.profile(session, peaks=False, stream_to=tmp_path / "run.profile") as made:
        for _ in range(RUNS):
            session.run(None, FEEDS)
    read = treadle.Profile.load(tmp_path / "run.profile")
    assert [thread.name for thread in read.pool] == [thread.name for thread in made.pool]
    assert len(read.data["clock"]["pairs"]) >= 1


def test_the_clock_is_held_against_the_wall_clock(tmp_path: pathlib.Path) -> None:
    session = chain(1)
    before = time.time_ns()
    with treadle.profile(session, peaks=False) as made:
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            session.run(None, FEEDS)
    after = time.time_ns()
    pairs = made.data["clock"]["pairs"]
    assert len(pairs) >= 3
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in zip(pairs, pairs[1:], strict=False))
    assert before - 2e9 < pairs[0][1] and pairs[-1][1] <= after + 1e6
    assert abs(made.data["clock"]["set_ms"]) < 1000
    written = events_of(made, tmp_path / "p.trace.json")["treadle"]["clock_pairs"]
    assert [unix for _, unix in written] == [unix for _, unix in pairs]
    perfetto = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    made.save(tmp_path / "p.pftrace")
    trace = perfetto.Trace()
    trace.ParseFromString((tmp_path / "p.pftrace").read_bytes())
    snapshots = [{clock.clock_id: clock.timestamp for clock in packet.clock_snapshot.clocks} for packet in trace.packet if packet.clock_snapshot.clocks]
    assert len(snapshots) >= len(pairs)
    boot, wall = 6, 1
    for a, b in zip(snapshots, snapshots[1:], strict=False):
        assert b[boot] > a[boot]
        assert (b[wall] - a[wall]) == pytest.approx(b[boot] - a[boot], rel=1e-2, abs=5e6)


STEPS = 3


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> treadle.Profile:
    rng = np.random.default_rng(0)
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w0", "b0"], ["h0"], "first"),
            helper.make_node("Tanh", ["h0"], ["h1"], "tanh"),
            helper.make_node("Gemm", ["h1", "w1", "b1"], ["scores"], "second"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 4])],
        [
            helper.make_tensor(name, TensorProto.FLOAT, shape, rng.standard_normal(shape).astype(np.float32).ravel())
            for name, shape in {"w0": [6, 8], "b0": [8], "w1": [8, 4], "b1": [4]}.items()
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = treadle.SessionOptions()
    options.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    trainer = treadle.train.Trainer(made.SerializeToString(), sess_options=options)
    batch, labels = {"x": np.ones((5, 6), np.float32)}, np.zeros(5, np.int64)
    trainer.step(batch, labels)
    with treadle.profile(trainer, peaks=False) as profile:
        for _ in range(STEPS):
            trainer.step(batch, labels)
    return profile


def arrows_of(profile: treadle.Profile) -> list[tuple[str, str]]:
    return [(forward, node.name) for node in profile.nodes for forward in node.forward]


def test_backward_nodes_know_their_forward_nodes(trained: treadle.Profile, tmp_path: pathlib.Path) -> None:
    nodes = {node.name: node for node in trained.nodes}
    forward = [node for node in trained.nodes if node.phase == "forward"]
    assert [node.sequence for node in forward] == list(range(len(forward)))
    for name in ("first", "tanh", "second"):
        assert nodes[name].phase == "forward" and nodes[name].forward == ()
        gradients = [node for node in trained.nodes if node.phase == "backward" and name in node.forward]
        assert gradients, name
        assert all(name in node.sources for node in gradients)
    for node in trained.nodes:
        if node.phase == "backward":
            assert node.sequence == (max(nodes[f].sequence or 0 for f in node.forward) if node.forward else None)
        if node.phase == "optimizer":
            assert node.forward == () and node.sequence is None
    trained.save(tmp_path / "p.csv")
    rows = {row["node"]: row for row in csv.DictReader((tmp_path / "p.csv").open())}
    assert {name: row["forward"].split() for name, row in rows.items()} == {name: list(node.forward) for name, node in nodes.items()}
    assert {name: row["phase"] for name, row in rows.items()} == {name: node.phase or "" for name, node in nodes.items()}


def test_arrows_lead_from_forward_to_backward_nodes(trained: treadle.Profile, tmp_path: pathlib.Path) -> None:
    expected = collections.Counter(arrows_of(trained) * STEPS)
    events = events_of(trained, tmp_path / "p.trace.json")["traceEvents"]
    ends: dict[int, dict[str, typing.Any]] = collections.defaultdict(dict)
    for event in events:
        if event.get("cat") == "fwdbwd":
            ends[event["id"]][event["ph"]] = event
    steps = [event for event in events if event["name"].startswith("ProfilerStep#")]
    found: collections.Counter[tuple[str, str]] = collections.Counter()
    operators = [event for event in events if event.get("cat") == "cpu_op"]
    name_of = {event["name"]: node.name for event in operators for node in trained.nodes if event["name"] == f"{node.op_type} {node.name}"}
    for pair in ends.values():
        at = [next(o for o in operators if (o["ts"], o["tid"]) == (pair[p]["ts"], pair[p]["tid"])) for p in "sf"]
        found[(name_of[at[0]["name"]], name_of[at[1]["name"]])] += 1
        step = [next(i for i, s in enumerate(steps) if s["ts"] <= o["ts"] <= s["ts"] + s["dur"]) for o in at]
        assert step[0] == step[1], "an arrow stays in its step"
        assert at[1]["args"]["Sequence number"] >= at[0]["args"]["Sequence number"]
        assert at[1]["args"]["Fwd thread id"] == at[0]["tid"]
    assert found == expected
    perfetto = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    trained.save(tmp_path / "p.pftrace")
    trace = perfetto.Trace()
    trace.ParseFromString((tmp_path / "p.pftrace").read_bytes())
    begins = [number for packet in trace.packet for number in packet.track_event.flow_ids]
    finals = [number for packet in trace.packet for number in packet.track_event.terminating_flow_ids]
    assert sorted(begins) == sorted(finals) == list(range(1, sum(expected.values()) + 1))


def test_a_recording_keeps_the_links(trained: treadle.Profile, tmp_path: pathlib.Path) -> None:
    saved = tmp_path / "p.json"
    trained.save(saved)
    assert arrows_of(treadle.Profile.load(saved)) == arrows_of(trained)
    assert "gradient of" in (trained.save(tmp_path / "p.html"), (tmp_path / "p.html").read_text())[1]


@pytest.mark.skipif(subprocess.run(["nproc"], capture_output=True, text=True).stdout.strip() == "1", reason="one CPU")
def test_nodes_at_once_have_states_too() -> None:
    graph = helper.make_graph(
        [helper.make_node("Erf", ["x"], [f"b{i}"], f"branch{i}") for i in range(4)] + [helper.make_node("Sum", [f"b{i}" for i in range(4)], ["y"], "sum")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [256, 4096])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [256, 4096])],
    )
    options = treadle.SessionOptions()
    options.execution_mode = treadle.ExecutionMode.ORT_PARALLEL
    options.inter_op_num_threads = options.intra_op_num_threads = 2
    options.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = treadle.InferenceSession(made.SerializeToString(), options)
    with treadle.profile(session, peaks=False) as profile:
        for _ in range(RUNS):
            session.run(None, FEEDS)
    for thread in profile.pool:
        assert thread.running + thread.no_ready_work + thread.barrier + thread.asleep == pytest.approx(1, abs=3e-3)
    assert sum(part["share"] for part in profile.data["where"]) == pytest.approx(1, abs=1e-4)

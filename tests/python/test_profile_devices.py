"""Profiles of runs on devices: kernels and copies on a simulated device, the calls that launched them, and tools for traces of accelerators."""

from __future__ import annotations

import collections
import json
import pathlib
import subprocess
import typing

import numpy as np
import pytest
from onnx import TensorProto, helper

import treadle
from conftest import REPOSITORY

RUNS = 6
FEEDS = {"x": np.ones((5, 8), np.float32)}
NODES = ["Exp exp", "MatMul product", "Relu relu"]
COPIES = ["Memcpy x: cpu to sim", "Memcpy y: sim to cpu"]


@pytest.fixture(scope="module")
def session() -> treadle.InferenceSession:
    graph = helper.make_graph(
        [
            helper.make_node("Exp", ["x"], ["e"], "exp"),
            helper.make_node("MatMul", ["e", "w"], ["p"], "product"),
            helper.make_node("Relu", ["p"], ["y"], "relu"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor("w", TensorProto.FLOAT, [8, 3], np.ones(24, np.float32))],
    )
    options = treadle.SessionOptions()
    options.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.device = "sim"
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return treadle.InferenceSession(made.SerializeToString(), options)


@pytest.fixture(scope="module")
def profile(session: treadle.InferenceSession) -> treadle.Profile:
    session.run(None, FEEDS)
    with treadle.profile(session, peaks=False) as made:
        for _ in range(RUNS):
            session.run(None, FEEDS)
    return made


def test_copies_are_nodes_of_their_own(profile: treadle.Profile) -> None:
    assert profile.data["runs"]["recorded"] == RUNS
    found = {f"{node.op_type} {node.name}": node for node in profile.nodes}
    assert sorted(found) == sorted(NODES + COPIES)
    assert all(node.calls == 1 for node in found.values())
    assert found[COPIES[0]].bytes == 2 * 5 * 8 * 4
    assert found[COPIES[1]].bytes == 2 * 5 * 3 * 4
    assert sum(part["share"] for part in profile.data["where"]) == pytest.approx(1, abs=1e-4)
    assert "moves" in (parts := {part["id"] for part in profile.data["where"]}) and "control_flow" not in parts
    # The run, its nodes and copies, and a launch for each of these.
    assert profile.data["profiler"]["events_per_run"] == 1 + 2 * len(found)
    assert all(name.split(" ", 1)[1] in profile.table(top=0) for name in found)


def events_of(profile: treadle.Profile, folder: pathlib.Path) -> list[dict[str, typing.Any]]:
    profile.save(folder / "p.trace.json")
    return [event for event in json.loads((folder / "p.trace.json").read_text())["traceEvents"] if event["ph"] != "M"]


def test_traces_lead_from_launches_to_what_came_of_them(profile: treadle.Profile, tmp_path: pathlib.Path) -> None:
    events = events_of(profile, tmp_path)
    on_device = {event["args"]["correlation"]: event for event in events if event.get("cat") in ("kernel", "gpu_memcpy")}
    launches = {event["args"]["correlation"]: event for event in events if event.get("cat") == "cuda_runtime"}
    assert on_device.keys() == launches.keys()
    assert collections.Counter(event["name"] for event in on_device.values()) == dict.fromkeys(NODES + COPIES, RUNS)
    assert collections.Counter(event["name"] for event in launches.values()) == {"cudaLaunchKernel": len(NODES) * RUNS, "cudaMemcpyAsync": len(COPIES) * RUNS}
    for number, launch in launches.items():
        assert launch["ts"] <= on_device[number]["ts"]
        assert launch["tid"] != on_device[number]["tid"]
        (operator,) = [e for e in events if e.get("cat") == "cpu_op" and e["args"].get("External id") == launch["args"]["External id"]]
        assert operator["name"] == on_device[number]["name"]
    arrows = {phase: sorted(event["id"] for event in events if event["ph"] == phase and event["cat"] == "ac2g") for phase in "sf"}
    assert arrows["s"] == arrows["f"] == sorted(launches)


def test_perfetto_has_the_same_arrows(profile: treadle.Profile, tmp_path: pathlib.Path) -> None:
    perfetto = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    profile.save(tmp_path / "p.pftrace")
    trace = perfetto.Trace()
    trace.ParseFromString((tmp_path / "p.pftrace").read_bytes())
    begins = [number for packet in trace.packet for number in packet.track_event.flow_ids]
    ends = [number for packet in trace.packet for number in packet.track_event.terminating_flow_ids]
    assert sorted(begins) == sorted(ends) == list(range(1, RUNS * len(NODES + COPIES) + 1))


def test_stacks_have_no_launches(profile: treadle.Profile, tmp_path: pathlib.Path) -> None:
    profile.save(tmp_path / "p.folded")
    lines = [line.rsplit(" ", 1)[0] for line in (tmp_path / "p.folded").read_text().splitlines()]
    assert sorted(line.split(";")[-1] for line in lines) == sorted(["run", *NODES, *COPIES])


def test_a_recording_is_read_with_its_copies(session: treadle.InferenceSession, tmp_path: pathlib.Path) -> None:
    with treadle.profile(session, peaks=False, stream_to=tmp_path / "run.profile"):
        for _ in range(RUNS):
            session.run(None, FEEDS)
    read = treadle.Profile.load(tmp_path / "run.profile")
    assert sorted(f"{node.op_type} {node.name}" for node in read.nodes if node.calls == 1) == sorted(NODES + COPIES)
    on_device = [event for event in events_of(read, tmp_path) if event.get("cat") in ("kernel", "gpu_memcpy")]
    assert len(on_device) == RUNS * len(NODES + COPIES)


TRACE_TOOLS = REPOSITORY / ".venv-traces/bin/python"
ANALYSIS = """
import json, sys
from hta.trace_analysis import TraceAnalysis

folder, file = sys.argv[1:]
analysis = TraceAnalysis(trace_files={0: file}, trace_dir=folder)
temporal = analysis.get_temporal_breakdown(visualize=False)
idle = analysis.get_idle_time_breakdown(ranks=[0], visualize=False)[0]
kinds, kernels = analysis.get_gpu_kernel_breakdown(visualize=False)
launches = analysis.get_cuda_kernel_launch_stats(visualize=False)[0]
graph, found = analysis.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=1)
print("RESULT" + json.dumps({
    "busy": float(temporal["kernel_time(us)"][0] - temporal["idle_time(us)"][0]), "idle": len(idle),
    "kernels": sorted(kernels["name"]), "kinds": sorted(kinds["kernel_type"]),
    "launches": sorted(launches["correlation"].astype(int).tolist()), "path": bool(found) and len(graph.critical_path_nodes),
}))
"""


@pytest.mark.skipif(not TRACE_TOOLS.exists(), reason="scripts/setup --traces was not run")
def test_holistic_trace_analysis_reads_them(session: treadle.InferenceSession, tmp_path: pathlib.Path) -> None:
    feeds = {"x": np.ones((50_000, 8), np.float32)}  # large, as the trace tool reads times in whole microseconds
    session.run(None, feeds)
    with treadle.profile(session, peaks=False) as profile:
        for _ in range(RUNS):
            session.run(None, feeds)
    profile.save(tmp_path / "p.trace.json.gz")
    run = subprocess.run([TRACE_TOOLS, "-c", ANALYSIS, tmp_path, "p.trace.json.gz"], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.split("RESULT")[1])
    events = events_of(profile, tmp_path)
    assert set(found["kernels"]) == set(NODES + COPIES)
    # The tool leaves out the last step.
    last = max(event["ts"] for event in events if event["name"].startswith("ProfilerStep#"))
    launches = [event["args"]["correlation"] for event in events if event.get("cat") == "cuda_runtime" and event["ts"] < last]
    assert found["launches"] == sorted(launches) and len(launches) == (RUNS - 1) * len(NODES + COPIES)
    assert 0 < found["busy"] <= sum(event["dur"] for event in events if event.get("cat") in ("kernel", "gpu_memcpy")) + 1
    assert found["path"] > 0

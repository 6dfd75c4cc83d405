"""Tests profiles of runs on devices: kernels and copies on a simulated device and on a GPU, the calls that launched them, and tools for
traces of accelerators."""

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


def copies(device: str) -> list[str]:
    return [f"Memcpy x: cpu to {device}", f"Memcpy y: {device} to cpu"]


COPIES = copies("sim")


def session_on(device: str, **options: typing.Any) -> treadle.InferenceSession:
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
    of_session = treadle.SessionOptions()
    of_session.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    of_session.device = device
    for name, value in options.items():
        setattr(of_session, name, value)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    try:
        return treadle.InferenceSession(made.SerializeToString(), of_session)
    except treadle.Error as error:
        if device.startswith("gpu") and any(reason in str(error) for reason in ("no Vulkan", "has no GPUs", "Vulkan finds none")):
            pytest.skip(str(error))
        raise


@pytest.fixture(scope="module")
def session() -> treadle.InferenceSession:
    return session_on("sim")


@pytest.fixture(scope="module")
def profile(session: treadle.InferenceSession) -> treadle.Profile:
    return profile_of(session)


def profile_of(session: treadle.InferenceSession) -> treadle.Profile:
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
    # The events are the run, its nodes and copies, and a launch for each of these.
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


def rows_of(profile: treadle.Profile, folder: pathlib.Path) -> dict[int, str]:
    profile.save(folder / "p.trace.json")
    events = json.loads((folder / "p.trace.json").read_text())["traceEvents"]
    return {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "thread_name"}


@pytest.mark.parametrize("device", ["sim", "gpu:0"])
def test_work_has_the_devices_times_on_the_rows_of_its_streams(device: str, tmp_path: pathlib.Path) -> None:
    profile = profile_of(session_on(device))
    names = rows_of(profile, tmp_path)
    events = events_of(profile, tmp_path)
    on_device = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy")]
    launches = {event["args"]["correlation"]: event for event in events if event.get("cat") == "cuda_runtime"}
    assert collections.Counter(event["name"] for event in on_device) == dict.fromkeys(NODES + copies(device), RUNS)
    for event in on_device:
        queue = "compute" if event["cat"] == "kernel" else "copy-in" if event["name"].startswith("Memcpy x") else "copy-out"
        assert names[event["tid"]].startswith(f"{device} {queue} ")
        launch = launches[event["args"]["correlation"]]
        assert launch["ts"] <= event["ts"]
        assert not names[launch["tid"]].startswith(device)
    # In a run, one waits for the other. Of work that was timed by the host, only the calls would be.
    order = [copies(device)[0], *NODES, copies(device)[1]]
    runs = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event["name"].startswith("ProfilerStep#"))
    for begin, end in runs:
        (*_,) = work = sorted((event for event in on_device if begin <= event["ts"] < end), key=lambda event: event["ts"])
        assert [event["name"] for event in work] == order
        for before, after in zip(work, work[1:], strict=False):
            assert before["ts"] + before["dur"] <= after["ts"] + 0.001
        assert work[-1]["ts"] + work[-1]["dur"] <= end
    assert "times of launches" not in profile.table()
    assert sum(part["share"] for part in profile.data["where"]) == pytest.approx(1, abs=1e-4)


def test_kernels_of_a_gpu_end_after_they_were_launched(tmp_path: pathlib.Path) -> None:
    """The host launches a whole bulk before the device begins it, so that times of calls would end before the last launch."""
    profile = profile_of(session_on("gpu:0"))
    events = events_of(profile, tmp_path)
    launches = {event["args"]["correlation"]: event for event in events if event.get("cat") == "cuda_runtime"}
    kernels = [event for event in events if event.get("cat") == "kernel"]
    assert kernels
    for kernel in kernels:
        launch = launches[kernel["args"]["correlation"]]
        assert kernel["ts"] + kernel["dur"] >= launch["ts"] + launch["dur"]


def test_counters_have_the_devices_times() -> None:
    session = session_on("gpu:0", node_counters=True)
    for _ in range(RUNS):
        session.run(None, FEEDS)
    counted = {f"{c.op_type} {c.name}": c.calls for c in session.node_counters()}
    assert counted == dict.fromkeys(NODES, RUNS)


@pytest.mark.parametrize(("device", "provider"), [("sim", "sim"), ("gpu:0", "VulkanExecutionProvider")])
def test_onnxruntimes_trace_names_the_provider_of_a_node(device: str, provider: str, tmp_path: pathlib.Path) -> None:
    profile = profile_of(session_on(device))
    profile.save(tmp_path / "p.onnxruntime.json")
    events = json.loads((tmp_path / "p.onnxruntime.json").read_text())
    providers = {event["args"]["op_name"]: event["args"]["provider"] for event in events if "provider" in event["args"]}
    assert providers == dict.fromkeys(["Exp", "MatMul", "Relu", "Memcpy"], provider)


def test_a_recording_of_a_gpu_has_the_rows_of_its_streams(tmp_path: pathlib.Path) -> None:
    session = session_on("gpu:0")
    with treadle.profile(session, peaks=False, stream_to=tmp_path / "run.profile"):
        for _ in range(RUNS):
            session.run(None, FEEDS)
    read = treadle.Profile.load(tmp_path / "run.profile")
    rows = [name for name in rows_of(read, tmp_path).values() if name.startswith("gpu:0")]
    assert sorted(name.split(" ")[1] for name in rows) == ["compute", "copy-in", "copy-out"]


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


def bandwidth(points: list[dict[str, float]], touched: float) -> float:
    """The rate of copies between measured sizes: linear over the size's logarithm."""
    sizes, rates = [np.log(point["bytes"]) for point in points], [point["gb_per_s"] for point in points]
    return float(np.interp(np.log(touched), sizes, rates))


def test_nodes_on_a_gpu_are_judged_by_its_peaks(tmp_path: pathlib.Path) -> None:
    session = session_on("gpu:0")
    feeds = {"x": np.ones((50_000, 8), np.float32)}
    session.run(None, feeds)
    with treadle.profile(session) as profile:
        for _ in range(RUNS):
            session.run(None, feeds)
    (peaks,) = profile.data["device_peaks"]
    assert peaks["device"] == "gpu:0" and peaks["gflops"] > 0
    assert [point["bytes"] for point in peaks["bandwidth"]] == sorted(point["bytes"] for point in peaks["bandwidth"])
    nodes = {node["name"]: node for node in profile.data["nodes"] if not node.get("between_devices")}
    assert {node["device"] for node in nodes.values()} == {"gpu:0"}
    for node in nodes.values():
        least_ms = max(node["flops"] / peaks["gflops"], node["bytes"] / bandwidth(peaks["bandwidth"], node["bytes"])) / 1e6
        if "bound_ms" in node:  # absent where the values were in the processor's caches
            assert node["bound_ms"] == pytest.approx(least_ms, rel=0.02, abs=2e-4)
    assert any("bound_ms" in node for node in nodes.values())
    profile.save(tmp_path / "page.html")
    assert "gpu:0 reaches" in profile.table()


def test_nodes_on_a_device_without_measured_peaks_are_not_judged(session: treadle.InferenceSession) -> None:
    session.run(None, FEEDS)
    with treadle.profile(session) as profile:
        session.run(None, FEEDS)
    nodes = [node for node in profile.data["nodes"] if not node.get("between_devices")]
    assert {node["device"] for node in nodes} == {"sim"} and not any("of_peak" in node for node in nodes)


@pytest.mark.skipif(not TRACE_TOOLS.exists(), reason="scripts/setup --traces was not run")
def test_holistic_trace_analysis_reads_them(session: treadle.InferenceSession, tmp_path: pathlib.Path) -> None:
    feeds = {"x": np.ones((50_000, 8), np.float32)}  # the feed is large, because the trace tool reads times in whole microseconds
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

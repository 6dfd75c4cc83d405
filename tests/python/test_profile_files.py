"""Reads the files of profiles by the programs for which they are written, or by a reader of their format."""

from __future__ import annotations

import collections
import csv
import gzip
import json
import pathlib
import subprocess
import typing

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import treadle
import treadle.train

RUNS = 7
NAMES = ["product", "über;relu", 'sum "of" rows']


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Saves a model of three nodes with names that formats must escape."""
    weights = np.random.default_rng(0).standard_normal((64, 48), dtype=np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], NAMES[0]),
        helper.make_node("Relu", ["p"], ["r"], NAMES[1]),
        helper.make_node("ReduceSum", ["r"], ["y"], NAMES[2]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    path = tmp_path_factory.mktemp("files") / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def as_written(**changes: typing.Any) -> treadle.SessionOptions:
    options = treadle.SessionOptions()
    options.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name, value in changes.items():
        setattr(options, name, value)
    return options


@pytest.fixture(scope="module")
def profile(model: pathlib.Path) -> treadle.Profile:
    session = treadle.InferenceSession(str(model), as_written())
    with treadle.profile(session, peaks=False) as made:
        for _ in range(RUNS):
            session.run(None, {"x": np.ones((5, 64), np.float32)})
    return made


def names_of(profile: treadle.Profile) -> list[str]:
    """Returns the nodes' names as traces show them, with the operator."""
    return [f"{node.op_type} {node.name}" for node in profile.nodes]


def chrome_ranges(path: pathlib.Path) -> list[dict[str, typing.Any]]:
    """Returns the ranges without those of loading, which have a separate row."""
    events = json.loads(path.read_text())["traceEvents"]
    titles = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
    assert [title for title in titles.values() if title.startswith("load ")]
    return [event for event in events if event["ph"] == "X" and not titles[event["tid"]].startswith("load ")]


def test_chrome_traces_speak_as_pytorch(profile: treadle.Profile, tmp_path: pathlib.Path) -> None:
    profile.save(tmp_path / "p.trace.json")
    profile.save(tmp_path / "p.trace.json.gz")
    assert gzip.decompress((tmp_path / "p.trace.json.gz").read_bytes()) == (tmp_path / "p.trace.json").read_bytes()
    ranges = chrome_ranges(tmp_path / "p.trace.json")
    steps = [event for event in ranges if event["cat"] == "user_annotation"]
    nodes = [event for event in ranges if event["cat"] == "cpu_op"]
    assert [event["name"] for event in steps] == [f"ProfilerStep#{i}" for i in range(RUNS)]
    assert collections.Counter(event["name"] for event in nodes) == dict.fromkeys(names_of(profile), RUNS)
    product = next(event for event in nodes if event["name"].endswith(NAMES[0]))
    assert product["args"]["Input Dims"] == [[5, 64], [64, 48]]
    assert product["args"]["Input type"] == ["float", "float"]
    for node in nodes:
        assert any(s["ts"] <= node["ts"] and node["ts"] + node["dur"] <= s["ts"] + s["dur"] + 1e-6 for s in steps)


def test_pytorch_finds_no_fault_in_them(profile: treadle.Profile, tmp_path: pathlib.Path) -> None:
    validator = pytest.importorskip("torch.profiler._trace_validator")
    profile.save(tmp_path / "p.trace.json.gz")
    assert validator.validate_trace(str(tmp_path / "p.trace.json.gz")) == (True, [])


def slices_of(path: pathlib.Path) -> list[tuple[str, int, dict[str, str]]]:
    """Returns name, duration in nanoseconds and arguments of every slice, as Perfetto's classes read them."""
    perfetto = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    trace = perfetto.Trace()
    trace.ParseFromString(path.read_bytes())
    names: dict[int, dict[int, str]] = collections.defaultdict(dict)
    keys: dict[int, dict[int, str]] = collections.defaultdict(dict)
    texts: dict[int, dict[int, str]] = collections.defaultdict(dict)
    open_slices: dict[int, list[tuple[str, int, dict[str, str]]]] = collections.defaultdict(list)
    last: dict[int, int] = collections.defaultdict(int)
    slices = []
    for packet in trace.packet:
        sequence = packet.trusted_packet_sequence_id
        for entry in packet.interned_data.event_names:
            names[sequence][entry.iid] = entry.name
        for entry in packet.interned_data.debug_annotation_names:
            keys[sequence][entry.iid] = entry.name
        for entry in packet.interned_data.debug_annotation_string_values:
            texts[sequence][entry.iid] = entry.str.decode()
        if not packet.HasField("track_event"):
            continue
        assert packet.timestamp >= last[sequence], "packets of a sequence stand in the order of time"
        last[sequence] = packet.timestamp
        event = packet.track_event
        if event.type == event.TYPE_SLICE_BEGIN:
            arguments = {keys[sequence][a.name_iid]: texts[sequence].get(a.string_value_iid, "") for a in event.debug_annotations}
            open_slices[sequence].append((names[sequence][event.name_iid], packet.timestamp, arguments))
        elif event.type == event.TYPE_SLICE_END:
            name, begin, arguments = open_slices[sequence].pop()
            slices.append((name, packet.timestamp - begin, arguments))
    assert not any(open_slices.values())
    return slices


def test_perfetto_reads_the_same_ranges(profile: treadle.Profile, tmp_path: pathlib.Path) -> None:
    profile.save(tmp_path / "p.pftrace")
    profile.save(tmp_path / "p.trace.json")
    phases = {phase.name for phase in profile.load_phases}
    found = slices_of(tmp_path / "p.pftrace")
    assert {name for name, _, _ in found} >= phases
    slices = [item for item in found if item[0] not in phases]
    assert collections.Counter(name for name, _, _ in slices) == dict.fromkeys(["run", *names_of(profile)], RUNS)
    of_chrome = sorted(round(event["dur"] * 1000) for event in chrome_ranges(tmp_path / "p.trace.json"))
    assert sorted(duration for _, duration, _ in slices) == of_chrome
    arguments = next(arguments for name, _, arguments in slices if name.endswith(NAMES[0]))
    assert arguments["op"] == "MatMul"
    assert arguments["inputs"] == "float32[5,64], float32[64,48]"
    assert arguments["outputs"] == "float32[5,48]"


def test_collapsed_stacks_and_speedscope_have_all_the_time(profile: treadle.Profile, tmp_path: pathlib.Path) -> None:
    for name in ("p.folded", "p.speedscope.json", "p.trace.json"):
        profile.save(tmp_path / name)
    lines = (tmp_path / "p.folded").read_text().splitlines()
    stacks = {line.rsplit(" ", 1)[0].split(";")[-1]: int(line.rsplit(" ", 1)[1]) for line in lines}
    ranges = chrome_ranges(tmp_path / "p.trace.json")
    assert sum(stacks.values()) == sum(round(event["dur"] * 1000) for event in ranges if event["cat"] == "user_annotation")
    assert set(stacks) - {"run"} == {name.replace(";", ",") for name in names_of(profile)}

    data = json.loads((tmp_path / "p.speedscope.json").read_text())
    frames = [frame["name"] for frame in data["shared"]["frames"]]
    spent: dict[str, int] = collections.defaultdict(int)
    for part in data["profiles"]:
        assert part["type"] == "evented"
        stack: list[tuple[int, int]] = []
        at = part["startValue"]
        for event in part["events"]:
            if stack:
                spent[frames[stack[-1][0]].replace(";", ",")] += event["at"] - at
            assert event["at"] >= at
            at = event["at"]
            if event["type"] == "O":
                stack.append((event["frame"], at))
            else:
                assert stack.pop()[0] == event["frame"]
        assert not stack
        assert at == part["endValue"]
    assert spent == stacks


def test_tables_have_a_line_for_each_node(profile: treadle.Profile, tmp_path: pathlib.Path) -> None:
    profile.save(tmp_path / "p.csv")
    with open(tmp_path / "p.csv", newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["node"] for line in lines] == NAMES
    assert [float(line["median_ms"]) for line in lines] == [node.median_ms for node in profile.nodes]
    assert float(lines[0]["flops"]) == 2 * 5 * 64 * 48
    assert lines[0]["shapes"] == "5x64 -> 5x48"


def test_onnxruntimes_profile_has_its_words(ort: typing.Any, model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    feeds = {"x": np.ones((5, 64), np.float32)}
    session = treadle.InferenceSession(str(model), as_written(enable_profiling=True, profile_file_prefix=str(tmp_path / "ours_")))
    session.run(None, feeds)
    ours = json.loads(pathlib.Path(session.end_profiling()).read_text())
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "theirs_")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    other = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    other.run(None, feeds)
    theirs = json.loads(pathlib.Path(other.end_profiling()).read_text())

    def kernels(events: list[dict[str, typing.Any]]) -> dict[str, dict[str, typing.Any]]:
        return {event["name"]: event["args"] for event in events if event["name"].endswith("_kernel_time")}

    assert list(kernels(ours)) == list(kernels(theirs)) == [f"{name}_kernel_time" for name in NAMES]
    for name, arguments in kernels(ours).items():
        expected = kernels(theirs)[name]
        for key in ("op_name", "provider", "activation_size", "output_size", "output_type_shape"):
            assert arguments[key] == expected[key], (name, key)
        assert {"graph_index", "exec_plan_index", "parameter_size", "thread_scheduling_stats"} <= set(arguments)
    assert kernels(ours)["product_kernel_time"]["parameter_size"] == str(64 * 48 * 4)
    names = [event["name"] for event in ours]
    assert {"session_initialization", "model_run", "product_fence_before", "product_fence_after"} <= set(names)


def test_onnxruntimes_trace_counts_the_parts_of_helping_threads(tmp_path: pathlib.Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [512, 512]) for name in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    session = treadle.InferenceSession(model, as_written(intra_op_num_threads=2))
    with treadle.profile(session, kernel_phases=True, peaks=False) as profile:
        for _ in range(50):  # on a busy machine, a helper may come too late for a run
            session.run(None, {"x": np.ones((512, 512), np.float32)})
    profile.save(tmp_path / "p.onnxruntime.json")
    events = json.loads((tmp_path / "p.onnxruntime.json").read_text())
    calls = [event["args"]["thread_scheduling_stats"] for event in events if event["name"].endswith("_kernel_time")]
    assert len(calls) == 50
    helpers = {thread for call in calls for thread in call["sub_threads"]}
    assert len(helpers) == 1
    assert helpers.isdisjoint(call["main_thread"]["thread_id"] for call in calls)
    assert all(part["num_run"] >= 1 for call in calls for part in call["sub_threads"].values())


def test_nodes_without_a_name_have_onnxruntimes(ort: typing.Any, tmp_path: pathlib.Path) -> None:
    def value(name: str, dtype: int = TensorProto.FLOAT, shape: typing.Any = (2,)) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, dtype, shape)

    then, other = (helper.make_graph([helper.make_node("Neg", ["x"], [f"{op}_in"]), helper.make_node(op, [f"{op}_in"], [f"{op}_out"], name)], op, [], [value(f"{op}_out")])
                   for op, name in (("Exp", ""), ("Abs", "inner")))
    nodes = [helper.make_node("Relu", ["c"], ["y"]), helper.make_node("Constant", [], ["two"], value_float=2.0), helper.make_node("If", ["cond"], ["a"], then_branch=then, else_branch=other),
             helper.make_node("Mul", ["a", "two"], ["b"], "b"), helper.make_node("Softmax", ["b"], ["c"])]
    graph = helper.make_graph(nodes, "g", [value("x"), value("cond", TensorProto.BOOL, ())], [value("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    told = []
    for library in (treadle, ort):
        options = library.SessionOptions()
        options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / library.__name__)
        options.graph_optimization_level = library.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        session = library.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        for cond in (True, False):
            session.run(None, {"x": np.ones(2, np.float32), "cond": np.array(cond)})
        events = json.loads(pathlib.Path(session.end_profiling()).read_text())
        assigned = [(of.ep_name, [(node.name, node.domain, node.op_type) for node in of.get_nodes()]) for of in session.get_provider_graph_assignment_info()]
        told.append((sorted(event["name"] for event in events if event["name"].endswith("_kernel_time")), assigned))
    assert told[0] == told[1]
    assert {"Relu_0_kernel_time", "If_1_kernel_time", "b_kernel_time", "Softmax_3_kernel_time", "Exp_1_kernel_time", "inner_kernel_time"} <= set(told[0][0])


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC"])
def test_saved_models_name_only_what_their_model_names(ort: typing.Any, tmp_path: pathlib.Path, level: str) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    names = ["", "same", "", "b"]
    nodes = [helper.make_node(op, [read], [made], name) for op, read, made, name in zip(["Relu", "Exp", "Softmax", "Neg"], ["x", "a", "same", "c"], ["a", "same", "c", "y"], names, strict=True)]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for library in (treadle, ort):
        options = library.SessionOptions()
        options.graph_optimization_level = getattr(library.GraphOptimizationLevel, level)
        options.optimized_model_filepath = str(tmp_path / f"{library.__name__}.onnx")
        library.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        assert [node.name for node in onnx.load(options.optimized_model_filepath).graph.node] == names


def test_onnxruntimes_tools_read_it(profile: treadle.Profile, tmp_path: pathlib.Path) -> None:
    tools = pytest.importorskip("onnxruntime.transformers.profile_result_processor")
    profile.save(tmp_path / "p.onnxruntime.json")
    events = json.loads((tmp_path / "p.onnxruntime.json").read_text())
    grouped = "\n".join(tools.group_node_results(events))
    listed = "\n".join(tools.parse_node_results(events))
    for node in profile.nodes:
        assert node.op_type in grouped
        assert node.name in listed


def test_the_program_writes_them(program: str, model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for name in ("p.pftrace", "p.json.gz", "p.csv", "p.folded", "p.speedscope.json", "p.trace.json.gz"):
        command = [program, "profile", str(model), "--dim", "n=5", "--runs", "11", "--no-remedies", "-o", str(tmp_path / name)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        assert (tmp_path / name).stat().st_size > 0
    shown = subprocess.run([program, "profile", str(tmp_path / "p.json.gz")], check=True, capture_output=True, text=True, timeout=60)
    assert "11 recorded runs" in shown.stdout
    assert treadle.Profile.load(tmp_path / "p.json.gz").data["runs"]["recorded"] == 11
    command = [program, "profile", str(tmp_path / "p.json.gz"), "-o", str(tmp_path / "again.pftrace")]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1
    assert "no single events" in refused.stderr
    assert not (tmp_path / "again.pftrace").exists()


def linear_model() -> bytes:
    """Saves a model y = x w + b."""
    weights = [
        onnx.numpy_helper.from_array(np.ones((8, 3), np.float32), "w"),
        onnx.numpy_helper.from_array(np.zeros(3, np.float32), "b"),
    ]
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], "linear")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def test_trainers_are_profiled_by_phase(tmp_path: pathlib.Path) -> None:
    trainer = treadle.train.Trainer(linear_model(), loss="mean_squared_error")
    feeds = {"x": np.ones((4, 8), np.float32)}
    labels = np.ones((4, 3), np.float32)
    trainer.step(feeds, labels)
    with treadle.profile(trainer, peaks=False) as p:
        for _ in range(9):
            trainer.step(feeds, labels)
    assert p.data["runs"]["recorded"] == 9
    assert [phase["phase"] for phase in p.data["phases"]] == ["forward", "backward", "optimizer"]
    phases = [node.phase for node in p.nodes]
    assert phases == sorted(phases, key=["forward", "backward", "optimizer"].index), "nodes run phase by phase"
    assert "optimizer" in p.table()
    assert sum(part["share"] for part in p.data["where"]) == pytest.approx(1, abs=1e-4)
    p.save(tmp_path / "p.trace.json")
    steps = [event for event in chrome_ranges(tmp_path / "p.trace.json") if event["name"].startswith("ProfilerStep#")]
    assert len(steps) == 9


def test_joint_modules_are_profiled_by_phase() -> None:
    module = treadle.train.JointModule(linear_model(), outputs=["y"], parameters=["w", "b"])
    with treadle.profile(module, peaks=False) as p:
        for _ in range(5):
            run = module.forward({"x": np.ones((4, 8), np.float32)})
            run.backward([np.ones((4, 3), np.float32)])
    assert p.data["runs"]["recorded"] == 10, "a forward and a backward part each"
    assert {node.phase for node in p.nodes if node.calls} == {"forward", "backward"}


def test_what_is_no_client_is_refused() -> None:
    with pytest.raises(treadle.errors.InvalidArgument, match="a session, a trainer, a joint module, an executor or a treadle.torch.Module is expected, not int"):
        treadle.profile(typing.cast(typing.Any, 3)).__enter__()


def test_the_arena_is_shown_over_the_run(profile: treadle.Profile, tmp_path: pathlib.Path) -> None:
    memory = profile.memory()
    assert memory.nodes == tuple(NAMES)
    buffers = profile.data["memory"]["buffers"]
    alive = [sum(b["bytes"] for b in buffers if b["first"] <= step <= b["last"]) for step in range(len(NAMES))]
    assert [a + s for a, s in zip(memory.activation_bytes, memory.scratch_bytes, strict=True)] == alive
    assert memory.peak_bytes == max(alive) == sum(memory.at_peak.values())
    assert memory.peak_bytes <= memory.lower_bound_bytes <= memory.arena_bytes
    assert memory.activation_bytes[0] >= 5 * 48 * 4, "the product's result is alive"
    table = profile.table(memory=True)
    assert f"alive at {memory.nodes[memory.peak_step]}" in table
    assert "alive over the run" in table


def test_a_schedule_says_which_steps_are_recorded(model: pathlib.Path) -> None:
    session = treadle.InferenceSession(str(model), as_written())
    feeds = {"x": np.ones((5, 64), np.float32)}
    schedule = treadle.ProfileSchedule(wait=1, warmup=1, active=2, repeat=2)
    with treadle.profile(session, peaks=False, schedule=schedule) as p:
        for _ in range(12):
            session.run(None, feeds)
            p.step()
    torch = pytest.importorskip("torch")
    theirs = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2)
    recording = (torch.profiler.ProfilerAction.RECORD, torch.profiler.ProfilerAction.RECORD_AND_SAVE)
    expected = [theirs(step) in recording for step in range(12)]
    assert [schedule.records(step) for step in range(12)] == expected
    assert p.data["runs"]["recorded"] == sum(expected) == 4
    with pytest.raises(treadle.errors.InvalidArgument, match="active is at least 1"):
        treadle.ProfileSchedule(active=0)
    with pytest.raises(treadle.errors.InvalidArgument, match="has no schedule"):
        treadle.profile(session).step()

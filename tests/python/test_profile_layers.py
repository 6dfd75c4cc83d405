"""Tests the model's layers in profiles: as ranges of every trace, as a tree, and on the page."""

from __future__ import annotations

import collections
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
from test_profile import browser, seen_in
from test_profile_files import slices_of

RUNS = 3
PARTS = ["stem", "layer1", "layer1.0", "layer1.0.conv1", "layer1.0.bn1", "layer1.0.conv2", "layer1.1", "layer1.1.conv1", "layer1.1.bn1", "layer1.1.conv2", "head"]


def network() -> typing.Any:
    torch = pytest.importorskip("torch")

    class Block(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.bn1, self.conv2 = torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x: typing.Any) -> typing.Any:
            return torch.relu(self.conv2(torch.relu(self.bn1(self.conv1(x)))) + x)

    class Network(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.layer1, self.head = torch.nn.Conv2d(3, 8, 3), torch.nn.Sequential(Block(), Block()), torch.nn.Linear(8, 4)

        def forward(self, x: typing.Any) -> typing.Any:
            return self.head(self.layer1(self.stem(x)).mean((2, 3)))

    network = Network()
    assert [name for name, _ in network.named_modules() if name] == PARTS
    return network


@pytest.fixture(scope="module")
def trained() -> treadle.Profile:
    torch = pytest.importorskip("torch")
    import treadle.torch

    module = treadle.torch.Module(network())
    x = torch.ones(2, 3, 12, 12)
    module(x).sum().backward()
    with treadle.profile(module, peaks=False) as profile:
        for _ in range(RUNS):
            module(x).sum().backward()
    return profile


def nests(parts: list[str]) -> bool:
    """Checks that each layer of a stack is a child, by its path, of the layer around it."""
    return all(inner.startswith(outer + ".") for outer, inner in zip(parts, parts[1:]))


def layers_of_stacks(path: pathlib.Path) -> dict[tuple[str, ...], set[str]]:
    """Reads a file of collapsed stacks. Returns, by stack of layers, the nodes at its end."""
    found: dict[tuple[str, ...], set[str]] = collections.defaultdict(set)
    for line in path.read_text().splitlines():
        stack = line.rpartition(" ")[0].split(";")[1:]
        if len(stack) > 1 and stack[0] == "run" and stack[-1] not in PARTS:
            found[tuple(part for part in stack[1:-1] if part in PARTS)].add(stack[-1])
    return found


def test_modules_are_around_what_ran_for_them(trained: treadle.Profile, tmp_path: pathlib.Path) -> None:
    trained.save(tmp_path / "p.folded")
    stacks = layers_of_stacks(tmp_path / "p.folded")
    assert {layer for stack in stacks for layer in stack} == set(PARTS), "every module with an operator"
    assert all(nests(list(stack)) for stack in stacks), stacks
    of_conv1 = stacks["layer1", "layer1.0", "layer1.0.conv1"]
    assert {name.split(" ")[0] for name in of_conv1} >= {"NhwcConv", "NhwcConvGradWeights", "NhwcConvGradInput"}, "forward and backward"
    assert any(name.startswith("Gemm ") for name in stacks["head",]) and any("_grad/" in name for name in stacks["head",])
    assert any(name.startswith("FusedElementwise ") and "relu" in name for name in stacks["layer1", "layer1.0"]), "a function is of the module that calls it"
    # The nodes report the same layers.
    by_name = {f"{node.op_type} {node.name}": node.layers for node in trained.nodes}
    for stack, names in stacks.items():
        for name in names & by_name.keys():
            assert by_name[name] in (stack, ()), name


def test_backward_nodes_are_in_the_layers_of_their_forward_nodes(trained: treadle.Profile) -> None:
    layers = {node.name: node.layers for node in trained.nodes}
    backward = [node for node in trained.nodes if node.phase == "backward" and node.forward]
    assert len(backward) > 15
    assert all(node.layers in [layers[name] for name in node.forward] for node in backward)


def test_traces_have_each_module_once_a_part_of_a_step(trained: treadle.Profile, tmp_path: pathlib.Path) -> None:
    trained.save(tmp_path / "p.trace.json")
    events = json.loads((tmp_path / "p.trace.json").read_text())["traceEvents"]
    ranges = [event for event in events if event["ph"] == "X" and event["cat"] == "layer"]
    assert {event["name"] for event in ranges} == set(PARTS)
    runs = [event for event in events if event["ph"] == "X" and event["name"].startswith("ProfilerStep#")]
    assert len(runs) == trained.data["runs"]["recorded"]
    inside = lambda inner, outer: outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1e-6  # noqa: E731
    assert all(any(inside(event, run) for run in runs) for event in ranges)
    # Forward, conv1 is one operator; backward, its gradients are adjacent. So each run has two ranges.
    assert sum(event["name"] == "layer1.0.conv1" for event in ranges) == 2 * RUNS
    gradients = [event for event in events if event["ph"] == "X" and event["name"].startswith("NhwcConvGradWeights node_conv2d_1_")]
    assert len(gradients) == RUNS
    assert all(any(inside(event, layer) for layer in ranges if layer["name"] == "layer1.0.conv1") for event in gradients)


def test_perfetto_and_speedscope_have_them(trained: treadle.Profile, tmp_path: pathlib.Path) -> None:
    trained.save(tmp_path / "p.pftrace")
    slices = [name for name, *_ in slices_of(tmp_path / "p.pftrace")]
    assert set(PARTS) <= set(slices)
    trained.save(tmp_path / "p.trace.json")
    chrome = [event["name"] for event in json.loads((tmp_path / "p.trace.json").read_text())["traceEvents"] if event["ph"] == "X" and event["cat"] == "layer"]
    assert {name: slices.count(name) for name in PARTS} == {name: chrome.count(name) for name in PARTS}
    trained.save(tmp_path / "p.speedscope.json")
    document = json.loads((tmp_path / "p.speedscope.json").read_text())
    frames = [frame["name"] for frame in document["shared"]["frames"]]
    opened = [frames[event["frame"]] for row in document["profiles"] for event in row["events"] if event["type"] == "O"]
    assert {name: opened.count(name) for name in PARTS} == {name: chrome.count(name) for name in PARTS}
    trained.save(tmp_path / "p.onnxruntime.json")
    assert not set(PARTS) & {event["name"] for event in json.loads((tmp_path / "p.onnxruntime.json").read_text())}, "it has no word for them"


def test_layers_and_the_tree_sum_to_the_nodes(trained: treadle.Profile, tmp_path: pathlib.Path) -> None:
    means = {phase: sum(n["mean_ms"] for n in trained.data["nodes"] if n["phase"] == phase and n.get("layers")) for phase in ("forward", "backward")}
    for phase, mean in means.items():
        layers = [layer for layer in trained.layers if layer.phase == phase]
        assert {layer.name for layer in layers} == set(PARTS)
        assert sum(layer.self_ms for layer in layers) == pytest.approx(mean, abs=1e-5)
        assert sum(layer.mean_ms for layer in layers if len(layer.path) == 1) == pytest.approx(mean, abs=1e-5)
        assert next(layer for layer in layers if layer.name == "layer1.1.conv2").path == ("layer1", "layer1.1", "layer1.1.conv2")
    lines = trained.tree().splitlines()
    indent = {line.strip().split("  ")[0]: len(line) - len(line.lstrip()) for line in lines if line.strip()}
    assert indent["run"] < indent["forward"] < indent["layer1"] < indent["layer1.1"] < indent["layer1.1.conv2"]
    assert sum(line.split()[0] == "NhwcConv" for line in lines if line.strip()) == 5
    assert "layer1.0 " not in trained.tree(depth=2) and "layer1 " in trained.tree(depth=2)
    assert "NhwcConv" not in trained.tree(nodes=False) and "layer1.0.conv1" in trained.tree(nodes=False)
    trained.save(tmp_path / "p.json")
    assert treadle.Profile.load(tmp_path / "p.json").tree() == trained.tree()
    trained.save(tmp_path / "p.csv")
    assert ",layer1.0.conv1," in (tmp_path / "p.csv").read_bytes().decode()


def path_model() -> bytes:
    """Saves a model with a loop, whose nodes have paths as names, as TorchScript's exporter and TensorFlow's converter write them."""
    body = helper.make_graph(
        [helper.make_node("Mul", ["s", "half"], ["t"], "/decoder/step/Mul"), helper.make_node("Identity", ["c"], ["go"], "/decoder/step/Identity")],
        "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("c", TensorProto.BOOL, []), helper.make_tensor_value_info("s", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("go", TensorProto.BOOL, []), helper.make_tensor_value_info("t", TensorProto.FLOAT, ["n", 4])],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], "/encoder/dense/MatMul"),
        helper.make_node("Softmax", ["p"], ["q"], "/encoder/Softmax"),
        helper.make_node("Loop", ["trips", "", "q"], ["y"], "/decoder/Loop", body=body),
    ]
    constants = [onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"), onnx.numpy_helper.from_array(np.float32(0.5), "half"), onnx.numpy_helper.from_array(np.int64(3), "trips")]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])], [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])], constants)
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())


@pytest.mark.parametrize("streams", [False, True])
def test_paths_of_names_are_layers_too(tmp_path: pathlib.Path, streams: bool) -> None:
    options = treadle.SessionOptions()
    options.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = treadle.InferenceSession(path_model(), options)
    with treadle.profile(session, peaks=False, stream_to=tmp_path / "p.profile" if streams else None) as profile:
        for _ in range(RUNS):
            session.run(None, {"x": np.ones((2, 4), np.float32)})
    if streams:
        profile = treadle.Profile.load(tmp_path / "p.profile")
    layers = {node.name: node.layers for node in profile.nodes}
    assert layers["/encoder/dense/MatMul"] == ("encoder", "encoder/dense")
    assert layers["/encoder/Softmax"] == ("encoder",)
    profile.save(tmp_path / "p.folded")
    stacks = {line.rpartition(" ")[0].split(";", 1)[1] for line in (tmp_path / "p.folded").read_text().splitlines()}
    assert "run;encoder;encoder/dense;MatMul /encoder/dense/MatMul" in stacks
    assert "run;encoder;Softmax /encoder/Softmax" in stacks
    # Nodes of the loop's body are shown within the loop, without the layers that the loop already shows.
    assert "run;decoder;Loop /decoder/Loop;decoder/step;Mul /decoder/step/Mul" in stacks
    tree = profile.tree()
    assert tree.index("encoder/dense") < tree.index("MatMul /encoder/dense/MatMul") < tree.index("Loop /decoder/Loop") < tree.index("Mul /decoder/step/Mul")


def test_models_of_pytorchs_exporters_have_their_modules(tmp_path: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(1, 3, 12, 12)
    torch.onnx.export(torch.export.export(network().eval(), (x,)), dynamo=True, verbose=False).save(tmp_path / "dynamo.onnx")
    torch.onnx.export(network().eval(), (x,), tmp_path / "script.onnx", dynamo=False)
    for name, inner in (("dynamo", ("layer1", "layer1.0", "layer1.0.conv2")), ("script", ("layer1", "layer1/layer1.0", "layer1/layer1.0/conv2"))):
        session = treadle.InferenceSession(str(tmp_path / f"{name}.onnx"))
        with treadle.profile(session, peaks=False) as profile:
            session.run(None, {session.get_inputs()[0].name: x.numpy()})
        # conv2 is fused with the block's sum and activation, but belongs to the layer of its first node.
        assert [node.layers for node in profile.nodes if "Conv" in node.op_type].count(inner) == 1, name
        tree = profile.tree(nodes=False)
        assert all(f" {layer} " in tree for layer in inner), tree


def test_a_trainers_steps_have_layers() -> None:
    trainer = treadle.train.Trainer(linear(), loss="mean_squared_error")
    with treadle.profile(trainer, peaks=False) as profile:
        trainer.step({"x": np.ones((4, 8), np.float32)}, np.zeros((4, 2), np.float32))
    assert {(layer.name, layer.phase) for layer in profile.layers} >= {("model/first", "forward"), ("model/last", "backward")}


def linear() -> bytes:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], "/model/first/MatMul"), helper.make_node("Tanh", ["h"], ["r"], "/model/Tanh"), helper.make_node("MatMul", ["r", "v"], ["y"], "/model/last/MatMul")]
    rng = np.random.default_rng(0)
    weights = [onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name) for name, shape in (("w", (8, 6)), ("v", (6, 2)))]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])], [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])], weights)
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())


def test_the_program_prints_the_tree(program: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "m.onnx").write_bytes(path_model())
    command = [program, "profile", "m.onnx", "--runs", "3", "--no-remedies", "--depth", "2"]
    run = subprocess.run([*command, "--tree"], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "tree of a run" in run.stdout and "encoder" in run.stdout and "nodes by" not in run.stdout
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode != 0 and "--tree" in run.stderr, "it would be ignored"


@pytest.mark.skipif(browser() is None, reason="no Chromium here")
def test_the_pages_timeline_has_them(program: str, trained: treadle.Profile, tmp_path: pathlib.Path) -> None:
    trained.save(tmp_path / "p.json")
    script = """
    const shown = [...Array(timeView.events.count).keys()].filter((i) => layerAt(i) !== undefined), of = timeView.events;
    seen.push(shown.map((i) => [titleOf(i), of.start[i], of.end[i]]));
    seen.push(describe(shown[0]), $('time-legend').textContent, $('group').textContent, timeView.lanes.map((l) => l.rows.filter((row) => !row.every(stateOf)).length));  // a node may wait at a barrier
    seen.push([...Array(of.count).keys()].filter((i) => nodeOf(i) && phaseOf(i) === undefined).map((i) => [nodeOf(i).layers, of.start[i], of.end[i]]));
    """
    layers, first, legend, groups, rows, nodes = seen_in(program, tmp_path / "p.json", script, tmp_path)
    assert {name for name, _, _ in layers} <= set(PARTS) and len(layers) >= 5
    assert first.split("\n")[0] == f"layer {layers[0][0]}"
    assert "layer" in legend and "layer" in groups
    assert max(rows) == 4, "three layers, and the node: what was rounded is not around its neighbour"
    for path, start, end in nodes:
        for layer in path:
            assert any(name == layer and a <= start and end <= b for name, a, b in layers), layer

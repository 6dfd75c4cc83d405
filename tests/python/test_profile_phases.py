"""Tests phases within a node, as kernels report them: of products, convolutions and attention, in every kind of file."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import typing

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import treadle
import treadle.train

RUNS = 5
F32, U8, I8 = TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT8
Array = np.ndarray[typing.Any, typing.Any]


def model_of(
    nodes: list[onnx.NodeProto], inputs: dict[str, Array], constants: dict[str, Array], output_type: int = F32, opset: int = 23
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for name, a in inputs.items()],
        [helper.make_tensor_value_info("y", output_type, None)],
        [onnx.numpy_helper.from_array(a, name) for name, a in constants.items()],
    )
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10).SerializeToString())


def random(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def recurrent(op: str) -> bytes:
    gates, hidden = {"RNN": 1, "GRU": 3, "LSTM": 4}[op], 16
    weights = {"w": random(1, gates * hidden, 12), "r": random(1, gates * hidden, hidden)}
    return model_of([helper.make_node(op, ["x", "w", "r"], ["y"], hidden_size=hidden)], {"x": random(5, 3, 12)}, weights, opset=22)


def cases() -> dict[str, tuple[bytes, dict[str, Array], set[str]]]:
    """For each case: the model, its inputs, and the phases of its largest node on one thread."""
    node = helper.make_node
    a, b = random(96, 64), random(64, 80)
    image, weights = random(1, 32, 20, 20), random(32, 32, 3, 3)
    doubles, q = image.astype(float), random(2, 4, 24, 16)
    byte_image = (np.abs(image) * 50).astype(np.uint8)
    u8 = {"xs": np.float32(0.02), "xz": np.uint8(3), "ws": np.float32(0.01), "wz": np.int8(0), "ys": np.float32(0.05), "yz": np.uint8(5)}
    scalars: dict[str, Array] = {name: np.array(value) for name, value in u8.items()}
    byte_weights = np.clip(weights * 40, -127, 127).astype(np.int8)
    gelu = [node("MatMul", ["a", "b"], ["p"]), node("Gelu", ["p"], ["y"])]
    return {
        "product": (model_of([node("MatMul", ["a", "b"], ["y"])], {"a": a, "b": b}, {}), {"a": a, "b": b}, {"pack", "compute"}),
        "packed product": (model_of([node("MatMul", ["a", "b"], ["y"])], {"a": a}, {"b": b}), {"a": a}, {"compute"}),
        "activation": (model_of(gelu, {"a": a}, {"b": b}), {"a": a}, {"compute", "epilogue"}),
        "convolution": (
            model_of([node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1], strides=[2, 2])], {"x": image}, {"w": weights}),
            {"x": image},
            {"borders", "compute"},
        ),
        "convolution of doubles": (
            model_of([node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])], {"x": doubles}, {"w": weights.astype(float)}, TensorProto.DOUBLE),
            {"x": doubles},
            {"compute"},
        ),
        **{op: (recurrent(op), {"x": random(5, 3, 12)}, {"compute", "epilogue"}) for op in ("RNN", "GRU", "LSTM")},
        "attention": (
            model_of([node("Attention", ["q", "q", "q"], ["y"])], {"q": q}, {}),
            {"q": q},
            {"pack", "scores", "softmax", "values", "epilogue"},
        ),
        "product of bytes": (
            model_of([node("MatMulInteger", ["a", "b"], ["y"])], {"a": (a * 9).astype(np.int8), "b": (b * 9).astype(np.int8)}, {}, TensorProto.INT32),
            {"a": (a * 9).astype(np.int8), "b": (b * 9).astype(np.int8)},
            {"pack", "compute"},
        ),
        "convolution of bytes": (
            model_of(
                [node("QLinearConv", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["y"], pads=[1, 1, 1, 1])],
                {"x": byte_image},
                {"w": byte_weights, **scalars},
                U8,
            ),
            {"x": byte_image},
            {"windows", "compute"},
        ),
    }


def profile_of(model: bytes, feeds: dict[str, Array], threads: int = 1, **options: typing.Any) -> treadle.Profile:
    session_options = treadle.SessionOptions()
    session_options.intra_op_num_threads = threads
    session = treadle.InferenceSession(model, session_options)
    with treadle.profile(session, peaks=False, **options) as made:
        for _ in range(RUNS):
            session.run(None, feeds)
    return made


def marked(profile: treadle.Profile) -> list[treadle.profiling.ProfiledNode]:
    """Returns nodes with phases, except those that only move data, which the optimiser may add."""
    return [n for n in profile.nodes if {p.name for p in n.kernel_phases} - {"move"}]


@pytest.mark.parametrize("name", cases())
def test_kernels_mark_their_phases(name: str) -> None:
    model, feeds, expected = cases()[name]
    profile = profile_of(model, feeds, kernel_phases=True)
    (node,) = marked(profile)
    assert {phase.name for phase in node.kernel_phases} == expected
    assert sum(phase.share for phase in node.kernel_phases) == pytest.approx(1, abs=1e-3)
    assert all(phase.calls >= 1 for phase in node.kernel_phases)
    assert "within kernels" in profile.table()
    without = profile_of(model, feeds)
    assert not any(n.kernel_phases for n in without.nodes) and "within kernels" not in without.table()


MOVEMENTS = {
    "Transpose": ({"perm": [2, 0, 1]}, {}),
    "Concat": ({"axis": 0}, {"b": random(3, 20, 30)}),
    "Gather": ({"axis": 1}, {"i": np.array([3, 1, 1, 0])}),
    "Pad": ({}, {"p": np.array([0, 1, 2, 0, 1, 2])}),
    "Tile": ({}, {"r": np.array([2, 1, 2])}),
}


@pytest.mark.parametrize("op", MOVEMENTS)
def test_a_node_that_only_moves_data_is_one_phase(op: str) -> None:
    attributes, constants = MOVEMENTS[op]
    x = random(4, 20, 30)
    model = model_of([helper.make_node(op, ["x", *constants], ["y"], **attributes)], {"x": x}, constants)
    (node,) = [n for n in profile_of(model, {"x": x}, kernel_phases=True).nodes if n.op_type == op]
    (phase,) = node.kernel_phases
    assert (phase.name, phase.calls, phase.share) == ("move", 1, 1)
    assert 0 < phase.median_ms <= node.p90_ms


def test_attention_has_its_phases_for_each_head() -> None:
    model, feeds, _ = cases()["attention"]  # 2 batches and 4 heads; the 24 queries of each are one tile
    (node,) = marked(profile_of(model, feeds, kernel_phases=True))
    assert {phase.name: phase.calls for phase in node.kernel_phases} == {"pack": 16, "scores": 8, "softmax": 8, "values": 8, "epilogue": 8}


def test_phases_are_in_every_kind_of_file(tmp_path: pathlib.Path) -> None:
    model, feeds, _ = cases()["product"]
    profile = profile_of(model, feeds, kernel_phases=True)
    (node,) = marked(profile)
    profile.save(tmp_path / "p.json")
    assert treadle.Profile.load(tmp_path / "p.json").nodes[0].kernel_phases == profile.nodes[0].kernel_phases

    profile.save(tmp_path / "p.trace.json")
    events = [e for e in json.loads((tmp_path / "p.trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    phases = [e for e in events if e["cat"] == "kernel_phase"]
    assert sorted(e["name"] for e in phases) == ["compute"] * RUNS + ["pack"] * RUNS
    parents = [e for e in events if e["name"].endswith(node.name)]
    for phase in phases:
        within = [p for p in parents if p["tid"] == phase["tid"] and p["ts"] <= phase["ts"] and phase["ts"] + phase["dur"] <= p["ts"] + p["dur"] + 1e-9]
        assert len(within) == 1

    profile.save(tmp_path / "p.folded")
    stacks = [line.rsplit(" ", 1)[0].split(";") for line in (tmp_path / "p.folded").read_text().splitlines()]
    assert {s[-1] for s in stacks if s[-2].endswith(node.name)} == {"pack", "compute"}

    profile.save(tmp_path / "p.speedscope.json")
    frames = json.loads((tmp_path / "p.speedscope.json").read_text())["shared"]["frames"]
    assert {"pack", "compute"} <= {f["name"] for f in frames}

    profile.save(tmp_path / "p.pftrace")
    contents = (tmp_path / "p.pftrace").read_bytes()
    assert b"pack" in contents and b"compute" in contents and b"phase" in contents

    profile.save(tmp_path / "p.onnxruntime.json")  # this format contains only whole nodes
    names = [e["name"] for e in json.loads((tmp_path / "p.onnxruntime.json").read_text())]
    assert not [n for n in names if n in ("pack", "compute")]
    assert len([n for n in names if n.endswith("_kernel_time")]) == RUNS * len(profile.nodes)

    profile.save(tmp_path / "p.html")
    assert "kernel_phases" in (tmp_path / "p.html").read_text()


def test_several_threads_have_phases_of_their_own(tmp_path: pathlib.Path) -> None:
    a, b = random(1500, 256), random(256, 512)
    model = model_of([helper.make_node("MatMul", ["a", "b"], ["y"])], {"a": a, "b": b}, {})
    profile = profile_of(model, {"a": a, "b": b}, threads=3, kernel_phases=True)
    profile.save(tmp_path / "p.trace.json")
    events = [e for e in json.loads((tmp_path / "p.trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    phases = [e for e in events if e["cat"] == "kernel_phase"]
    whole = [e for e in events if e["name"].startswith("MatMul ")]
    for phase in phases:  # each phase lies within the node, or within a helper's part of it, on the same thread
        assert [w for w in whole if w["tid"] == phase["tid"] and w["ts"] <= phase["ts"] + 1e-9 and phase["ts"] + phase["dur"] <= w["ts"] + w["dur"] + 1e-9]
    (node,) = profile.nodes
    assert {phase.name for phase in node.kernel_phases} == {"pack", "compute"}
    assert node.calls == 1


def test_trainers_and_command(tmp_path: pathlib.Path) -> None:
    model, _, _ = cases()["product"]
    path = tmp_path / "m.onnx"
    path.write_bytes(model)
    command = [sys.executable, "-m", "treadle", "profile", str(path), "--runs", "4", "--no-remedies", "--threads", "1", "--json"]
    made = json.loads(subprocess.run([*command, "--kernel-phases"], check=True, capture_output=True, text=True).stdout)
    assert [phase["phase"] for phase in made["nodes"][0]["kernel_phases"]] == ["pack", "compute"]
    assert [phase["calls"] for phase in made["nodes"][0]["kernel_phases"]] == [1, 1]
    made = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert "kernel_phases" not in made["nodes"][0]

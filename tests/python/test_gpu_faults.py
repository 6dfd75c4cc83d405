"""Tests GPUs that fail or lack something. A layer of Vulkan makes the driver behave so (tests/device/vulkan_faults.cpp)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from test_gpu_device import gpus, session_on_gpu

import treadle

ROOT = Path(__file__).resolve().parents[2]
PROLOGUE = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import numpy as np, treadle
from test_gpu_faults import X, add, layers
def on_gpu(model, **options):
    made = treadle.SessionOptions()
    made.device = "gpu:0"
    for name, value in options.items():
        setattr(made, name, value)
    return treadle.InferenceSession(model, made)
def error_of(act):
    try:
        act()
    except treadle.Error as error:
        return error
    raise AssertionError("it did not fail")
"""
X = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)


def add(dtype: int = TensorProto.FLOAT) -> bytes:
    values = [helper.make_tensor_value_info(name, dtype, [2, 3]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"], "sum")], "one", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()


def layers(size: int, count: int) -> bytes:
    """Makes the model y = x w ... w, in which w is a unit matrix."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size, size]) for name in ("v0", "w", f"v{count}")]
    nodes = [helper.make_node("MatMul", [f"v{i}", "w"], [f"v{i + 1}"], f"product {i}") for i in range(count)]
    graph = helper.make_graph(nodes, "layers", values[:2], values[2:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not gpus():
        pytest.skip("no Vulkan")
    folder = tmp_path_factory.mktemp("layer")
    library = folder / "libfaults.so"
    built = subprocess.run(["c++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", str(ROOT / "tests/device/vulkan_faults.cpp"), "-o", str(library)],
                           capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    of_layer = {"name": "VK_LAYER_TREADLE_faults", "type": "GLOBAL", "library_path": str(library), "api_version": "1.3.0", "implementation_version": "1",
                "description": "a driver that fails"}
    (folder / "faults.json").write_text(json.dumps({"file_format_version": "1.2.0", "layer": of_layer}))
    return folder


def run_with(layer: Path, fault: str, code: str) -> str:
    environment = os.environ | {"VK_LAYER_PATH": str(layer), "VK_INSTANCE_LAYERS": "VK_LAYER_TREADLE_faults", "TREADLE_TEST_FAULT": fault}
    done = subprocess.run([sys.executable, "-c", PROLOGUE + code], capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_driver_without_a_needed_feature_is_refused_by_name(layer: Path) -> None:
    run_with(layer, "features", """
error = error_of(lambda: on_gpu(add()))
assert error.code == "not_found" and "it lacks the feature bufferDeviceAddress" in str(error), error
np.testing.assert_array_equal(treadle.InferenceSession(add()).run(None, {"x": X})[0], 2 * X)
""")


def test_types_that_a_driver_lacks_are_named_and_others_go_on(layer: Path) -> None:
    run_with(layer, "16bit", """
half = on_gpu(add(10))
error = error_of(lambda: half.run(None, {"x": X.astype(np.float16)}))
assert error.code == "not_implemented" and "16" in str(error) and "sum" in str(error), error
np.testing.assert_array_equal(on_gpu(add()).run(None, {"x": X})[0], 2 * X)
""")


@pytest.mark.parametrize("allocations", range(4))
def test_out_of_memory_anywhere_is_an_error_that_says_what_is_held(layer: Path, allocations: int) -> None:
    said = run_with(layer, f"memory:{allocations}", """
size = 1100  # more than a block of the heap's
try:
    session = on_gpu(layers(size, 6))
    y = session.run(None, {"v0": np.ones((size, size), np.float32), "w": np.eye(size, dtype=np.float32)})[0]
    assert (y == 1).all()
    print("enough")
except treadle.Error as error:
    assert error.code == "resource_exhausted", error
    print(error)
np.testing.assert_array_equal(treadle.InferenceSession(add()).run(None, {"x": X})[0], 2 * X)
""")
    # What the heaps hold, or where memory for copies failed what the session has on the device.
    assert said.strip() == "enough" or "are held for values" in said or "gpu:0: arena" in said, said


@pytest.mark.parametrize("submission", [1, 2, 3])
def test_a_lost_device_is_told_and_opened_anew(layer: Path, submission: int) -> None:
    run_with(layer, f"lost:{submission}", """
sessions = [on_gpu(layers(20, 100)), on_gpu(add())]
feeds = {"v0": np.ones((20, 20), np.float32), "w": np.eye(20, dtype=np.float32)}
failed = error_of(lambda: [sessions[0].run(None, feeds) for _ in range(5)])
assert failed.code == "io_error" and "given the device up" in str(failed), failed
np.testing.assert_array_equal(on_gpu(add()).run(None, {"x": X})[0], 2 * X)
np.testing.assert_array_equal(on_gpu(layers(20, 100)).run(None, feeds)[0], 1)
""")


def test_profiles_without_time_stamps_say_so(layer: Path) -> None:
    code = """
session = on_gpu(add())
session.run(None, {"x": X})
with treadle.profile(session, peaks=False) as profile:
    for _ in range(3):
        session.run(None, {"x": X})
assert {node.name: node.calls for node in profile.nodes}["sum"] == 1
print(profile.table())
"""
    assert "gpu:0 compute 1 (times of launches): the device does not tell its own" in run_with(layer, "stamps", code)
    for fault in ("none", "calibration"):  # if the driver does not compare the clocks (calibration), submissions with time stamps do
        assert "times of launches" not in run_with(layer, fault, code)


def test_the_caller_of_a_run_goes_on_at_its_deadline() -> None:
    size, count = 512, 4
    session = session_on_gpu(layers(size, count))
    feeds = {"v0": np.ones((size, size), np.float32), "w": np.eye(size, dtype=np.float32)}
    run_options = treadle.RunOptions()
    run_options.deadline_ms = 1
    with pytest.raises(treadle.Error) as error:
        session.run(None, feeds, run_options)
    assert error.value.code == "timed_out"
    other = session_on_gpu(add())
    np.testing.assert_array_equal(other.run(None, {"x": X})[0], 2 * X)
    while session.runs_in_flight:
        time.sleep(0.01)  # a device on the CPU needs this time
    np.testing.assert_array_equal(session.run(None, feeds)[0], 1)


def test_processes_share_a_gpu_and_a_cache(tmp_path: Path) -> None:
    if not gpus():
        pytest.skip("no Vulkan")
    code = PROLOGUE + f"""
for _ in range(5):
    session = on_gpu(layers(64, 20), cache_dir={str(tmp_path / "cache")!r})
    for _ in range(20):
        y = session.run(None, {{"v0": np.full((64, 64), 3, np.float32), "w": np.eye(64, dtype=np.float32)}})[0]
        assert (y == 3).all()
"""
    running = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in running:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
    assert [file.suffix for file in (tmp_path / "cache").iterdir()].count(".pipelines") == 1
    assert not list((tmp_path / "cache").glob("*tmp*"))

"""Tests the GPU as a device: execution providers, memory, compiled pipelines, processes. A Vulkan driver on the CPU may serve as one."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from ctypes import POINTER, byref, c_char_p, c_int32, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxruntime_c import LIBRARY, Api, strings

import treadle

VULKAN, CPU = "VulkanExecutionProvider", "CPUExecutionProvider"
X = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)


def on_host_and_gpu() -> bytes:
    """Returns y = relu(x), computed on the GPU, and n, the indices of y's nonzero elements, computed on the host."""
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], "on the gpu"), helper.make_node("NonZero", ["y"], ["n"], "on the host")],
        "two",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3]), helper.make_tensor_value_info("n", TensorProto.INT64, [2, "k"])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()


def one_function(op_type: str, **attributes: Any) -> bytes:
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x"], ["y"], **attributes)],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()


def run_python(code: str, **environment: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ | environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def gpus() -> list[str]:
    """Returns the ids of all Vulkan devices, those on the CPU included."""
    code = "import json, treadle.onnxruntime as ort; print(json.dumps([device.ep_options['device_id'] for device in ort.get_ep_devices()[1:]]))"
    return json.loads(run_python(code, TREADLE_SOFTWARE_GPU="1"))


def session_on_gpu(model: bytes, options: treadle.SessionOptions | None = None) -> treadle.InferenceSession:
    """Makes a session on the first GPU, real or simulated; skips the test if there is none."""
    try:
        return treadle.InferenceSession(model, options, providers=[(VULKAN, {"device_id": 0}), CPU])
    except treadle.Error as error:
        if any(reason in str(error) for reason in ("no Vulkan", "has no GPUs", "Vulkan finds none")):
            pytest.skip(str(error))
        raise


def test_a_provider_and_its_option_choose_the_gpu() -> None:
    session = session_on_gpu(on_host_and_gpu())
    assert session.get_providers() == [VULKAN, CPU]
    assert session.get_provider_options() == {VULKAN: {"device_id": "0"}, CPU: {}}
    y, n = session.run(None, {"x": X})
    np.testing.assert_array_equal(y, np.maximum(X, 0))
    np.testing.assert_array_equal(n, np.array(np.nonzero(np.maximum(X, 0))))


def test_a_session_says_which_nodes_run_where_and_why() -> None:
    options = treadle.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = session_on_gpu(on_host_and_gpu(), options)
    assigned = {node.name: of.ep_name for of in session.get_provider_graph_assignment_info() for node in of.get_nodes()}
    lines = {fields[2]: fields for fields in (line.split("\t") for line in session.to_text("devices").splitlines())}
    assert lines["on the gpu"][:2] == ["gpu:0", "Relu"]
    assert lines["on the gpu"][4] == ""
    for name, (device, *_, why) in lines.items():
        assert assigned[name] == (VULKAN if device == "gpu:0" else CPU)
        assert (why == "") == (device == "gpu:0")


def test_names_with_tabs_and_line_ends_are_one_field() -> None:
    name = "y\tz\nw"
    values = [helper.make_tensor_value_info(each, TensorProto.FLOAT, [2]) for each in ("x", name)]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], [name], name="a\tb\nc")], "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    options = treadle.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = session_on_gpu(model.SerializeToString(), options)
    assert session.to_text("devices") == "gpu:0\tRelu\ta\\x09b\\x0ac\ty\\x09z\\x0aw\t\n"
    (assigned,) = session.get_provider_graph_assignment_info()
    assert (assigned.ep_name, [node.name for node in assigned.get_nodes()]) == (VULKAN, ["a\tb\nc"])


def test_the_provider_that_options_were_given_first_has_the_nodes() -> None:
    session_on_gpu(on_host_and_gpu())
    for providers, first in (([CPU, VULKAN], "cpu"), ([VULKAN, CPU], "gpu:0")):
        options = treadle.SessionOptions()
        for provider in providers:
            options.add_provider(provider, {"device_id": "0"} if provider == VULKAN else {})
        session = treadle.InferenceSession(on_host_and_gpu(), options)
        assert session.to_text("devices").startswith(f"{first}\t")


def test_the_cpu_first_leaves_the_gpu_alone() -> None:
    session = treadle.InferenceSession(on_host_and_gpu(), providers=[CPU, VULKAN])
    assert all(line.startswith("cpu\t") for line in session.to_text("devices").splitlines())


@pytest.mark.parametrize(
    ("options", "text"),
    [({"device_id": "1000"}, "gpu:1000"), ({"device_id": "first"}, "first"), ({"device_id": ""}, "device_id"), ({"memory": "1"}, "memory")],
)
def test_what_no_gpu_can_be_is_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(treadle.Error, match=text):
        treadle.InferenceSession(on_host_and_gpu(), providers=[(VULKAN, options), CPU])


def test_another_device_beside_the_provider_is_refused() -> None:
    options = treadle.SessionOptions()
    options.device = "sim"
    with pytest.raises(treadle.errors.InvalidArgument, match="sim"):
        treadle.InferenceSession(on_host_and_gpu(), options, providers=[VULKAN])


def test_without_a_driver_nothing_falls_to_the_cpu() -> None:
    code = f"""
import treadle
assert treadle.get_available_providers() == ["{CPU}"]
try:
    treadle.InferenceSession({on_host_and_gpu()!r}, providers=["{VULKAN}", "{CPU}"])
except treadle.Error as error:
    print(error)
"""
    nowhere = {"VK_ICD_FILENAMES": "/nowhere.json", "VK_DRIVER_FILES": "/nowhere.json"}
    said = run_python(code, **nowhere)
    assert "Vulkan" in said or "no GPUs" in said, said


def test_an_implementation_on_the_cpu_is_offered_only_on_request() -> None:
    numbers = gpus()
    if not numbers:
        pytest.skip("no Vulkan")
    code = """
import json, treadle
from treadle import onnxruntime as ort
devices = ort.get_ep_devices()
print(json.dumps([[d.ep_name, int(d.device.type), d.device.vendor_id, d.ep_options, d.device.metadata] for d in devices] + [ort.get_available_providers()]))
"""
    *devices, providers = json.loads(run_python(code, TREADLE_SOFTWARE_GPU="1"))
    assert providers == [VULKAN, CPU]
    assert devices[0][:2] == [CPU, 0]
    assert [device[3]["device_id"] for device in devices[1:]] == numbers
    for name, kind, vendor, _, metadata in devices[1:]:
        assert (name, kind) == (VULKAN, 1)
        assert vendor != 0
        assert metadata["Description"]
    *plain, providers = json.loads(run_python(code, TREADLE_SOFTWARE_GPU="0"))
    assert len(plain) <= len(devices)
    assert (VULKAN in providers) == (len(plain) > 1)


C_PROGRAM = """
import ctypes, sys
sys.path.insert(0, {tests!r})
import test_gpu_device
test_gpu_device.use_the_c_interface()
"""


def use_the_c_interface() -> None:
    api = Api(str(LIBRARY))
    devices, count = POINTER(c_void_p)(), c_size_t()
    api.call("GetEpDevices", api.env, byref(devices), byref(count))
    gpu = c_void_p(devices[1])
    assert api.call("EpDevice_EpName", gpu, result=c_char_p) == VULKAN.encode()
    hardware = c_void_p(api.call("EpDevice_Device", gpu, result=c_void_p))
    assert api.call("HardwareDevice_Type", hardware, result=c_int32) == 1
    assert api.call("HardwareDevice_VendorId", hardware, result=c_uint32) != 0
    assert api.number("GetNumHardwareDevices", api.env) == count.value
    by_device, by_name = api.options(), api.options()
    api.call("SessionOptionsAppendExecutionProvider_V2", by_device, api.env, (c_void_p * 1)(gpu.value), c_size_t(1), strings(), strings(), c_size_t(0))
    api.call("SessionOptionsAppendExecutionProvider", by_name, b"Vulkan", strings(b"device_id"), strings(b"0"), c_size_t(1))
    for options in (by_device, by_name):
        api.call("AddSessionConfigEntry", options, b"session.record_ep_graph_assignment_info", b"1")
        session = api.session(on_host_and_gpu(), options)
        subgraphs, number = POINTER(c_void_p)(), c_size_t()
        api.call("Session_GetEpGraphAssignmentInfo", session, byref(subgraphs), byref(number))
        names = set()
        for i in range(number.value):
            name = c_char_p()
            api.call("EpAssignedSubgraph_GetEpName", c_void_p(subgraphs[i]), byref(name))
            names.add(name.value)
        assert VULKAN.encode() in names
        inputs = (c_void_p * 1)()
        api.call("SessionGetEpDeviceForInputs", session, inputs, c_size_t(1))
        assert inputs[0] == gpu.value
    mixed = (c_void_p * 2)(gpu.value, devices[0])
    try:
        api.call("SessionOptionsAppendExecutionProvider_V2", api.options(), api.env, mixed, c_size_t(2), strings(), strings(), c_size_t(0))
    except Exception as error:  # noqa: BLE001
        assert "must have the same execution provider" in str(error)
    else:
        raise AssertionError("devices of two providers")


def test_the_c_interface_has_the_provider() -> None:
    if not LIBRARY.exists() or not gpus():
        pytest.skip("no libonnxruntime.so.1, or no Vulkan")
    run_python(C_PROGRAM.format(tests=str(Path(__file__).parent)), TREADLE_SOFTWARE_GPU="1")


def test_parameters_of_functions_are_no_part_of_shaders() -> None:
    """The parameter is not compiled into the shader: one shader serves all values."""
    for alpha in (0.0, 0.01, 0.5, -2.0):
        session = session_on_gpu(one_function("LeakyRelu", alpha=alpha))
        np.testing.assert_allclose(session.run(None, {"x": X})[0], np.where(X < 0, np.float32(alpha) * X, X), rtol=1e-6)
        session = session_on_gpu(one_function("Elu", alpha=alpha))
        np.testing.assert_allclose(session.run(None, {"x": X})[0], np.where(X < 0, alpha * np.expm1(X.astype(np.float64)), X), rtol=2e-6)


def test_out_of_memory_says_what_is_held() -> None:
    graph = helper.make_graph(
        [helper.make_node("Expand", ["x", "shape"], ["y"])],
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1 << 24, 1 << 24])],
        [onnx.numpy_helper.from_array(np.array([1 << 24, 1 << 24], np.int64), "shape")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()
    with pytest.raises(treadle.Error, match="elements|bytes"):
        session_on_gpu(made).run(None, {"x": np.ones(1, np.float32)})


def test_pipelines_are_kept_and_damaged_files_made_anew(tmp_path: Path) -> None:
    def run() -> None:
        """Runs a session in another process, which opens the device."""
        code = f"""
import numpy as np, treadle
options = treadle.SessionOptions()
options.cache_dir = {str(tmp_path / "cache")!r}
session = treadle.InferenceSession({one_function("Relu")!r}, options, providers=[("{VULKAN}", {{"device_id": 0}})])
x = np.array({X.tolist()}, np.float32)
np.testing.assert_array_equal(session.run(None, {{"x": x}})[0], np.maximum(x, 0))
"""
        run_python(code)

    if not gpus():
        pytest.skip("no Vulkan")
    run()
    (file,) = (tmp_path / "cache").glob("*.pipelines")
    whole = file.read_bytes()
    for damaged in (b"", whole[:10], whole[: len(whole) // 2], whole[:-1] + bytes([whole[-1] ^ 1]), b"another program's", whole + b"more"):
        file.write_bytes(damaged)
        run()
        assert file.read_bytes()[:8] == whole[:8]
        assert len(file.read_bytes()) >= len(whole)
    assert [found.name for found in (tmp_path / "cache").iterdir()] == [file.name], "a temporary file is left"


def test_a_forked_child_is_refused_and_the_parent_goes_on() -> None:
    code = f"""
import os, numpy as np, treadle
x = np.array({X.tolist()}, np.float32)
make = lambda: treadle.InferenceSession({one_function("Relu")!r}, providers=[("{VULKAN}", {{"device_id": 0}})])
session = make()
session.run(None, {{"x": x}})
child = os.fork()
if child == 0:
    said = []
    for use in (lambda: session.run(None, {{"x": x}}), make):
        try:
            use()
        except treadle.Error as error:
            said.append("forked" in str(error))
    treadle.InferenceSession({one_function("Relu")!r}).run(None, {{"x": x}})
    os._exit(0 if said == [True, True] else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
np.testing.assert_array_equal(session.run(None, {{"x": x}})[0], np.maximum(x, 0))
"""
    if not gpus():
        pytest.skip("no Vulkan")
    run_python(code)

"""A device from a library of its own (examples/device/tin.cpp): its memory is where the host finds nothing, and it has kernels for four operators."""

from __future__ import annotations

import ctypes
import gc
import importlib
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case import node as cases
from onnx.backend.test.case.test_case import TestCase

import treadle

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tin(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = tmp_path_factory.mktemp("tin") / "libtin.so"
    subprocess.run(["c++", "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{ROOT / 'include'}", str(ROOT / "examples/device/tin.cpp"),
                    "-o", str(library), "-pthread"], check=True)
    treadle.load_plugin(str(library))
    loaded = ctypes.CDLL(str(library))
    loaded.tin_launches.restype = loaded.tin_allocated_bytes.restype = loaded.tin_copied_bytes.restype = ctypes.c_int64
    return loaded


def on(device: str, **entries: str) -> treadle.SessionOptions:
    options = treadle.SessionOptions()
    options.add_session_config_entry("treadle.device", device)
    for key, value in entries.items():
        options.add_session_config_entry(f"treadle.{key}", value)
    return options


def model_of(nodes: list[onnx.NodeProto], inputs: dict[str, list[int | str]], outputs: list[str], **constants: np.ndarray) -> bytes:
    graph = helper.make_graph(
        nodes, "test",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def network() -> bytes:
    """Convolutions and products for the device, with what only the host has between them."""
    node = helper.make_node
    return model_of(
        [node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]), node("Relu", ["c1"], ["r1"]),
         node("Conv", ["r1", "w2"], ["c2"], strides=[2, 2], group=2), node("Sigmoid", ["c2"], ["s2"]), node("Mul", ["c2", "s2"], ["m2"]),
         node("GlobalAveragePool", ["m2"], ["pooled"]), node("Flatten", ["pooled"], ["flat"]), node("MatMul", ["flat", "w3"], ["product"]),
         node("Add", ["product", "b3"], ["y"])],
        {"x": ["n", 3, "h", 9]}, ["y", "r1"], w1=values(8, 3, 3, 3), b1=values(8), w2=values(8, 4, 3, 3), w3=values(8, 5), b3=values(5))


def expected(model: bytes, feeds: dict[str, np.ndarray], outputs: list[str] | None = None) -> list[np.ndarray]:
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(outputs, feeds)


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_ALL"])
def test_a_network_runs_on_the_device_and_the_rest_on_the_host(tin: ctypes.CDLL, level: str) -> None:
    options = on("tin")
    options.graph_optimization_level = getattr(treadle.GraphOptimizationLevel, level)
    session = treadle.InferenceSession(network(), options)
    for shape in [(1, 3, 9, 9), (3, 3, 12, 9), (1, 3, 9, 9)]:
        before = tin.tin_launches()
        feeds = {"x": values(*shape)}
        for got, want in zip(session.run(None, feeds), expected(network(), feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
        assert tin.tin_launches() - before == 5, "two convolutions, a Relu, a product and a sum"


def test_inner_values_monitors_and_partial_runs(tin: ctypes.CDLL) -> None:
    session = treadle.InferenceSession(network(), on("tin"))
    feeds = {"x": values(2, 3, 9, 9)}
    reference = onnx.load_from_string(network())
    reference.graph.output.extend([helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("c2", "m2")])
    want = dict(zip(["c2", "m2"], expected(reference.SerializeToString(), feeds, ["c2", "m2"]), strict=True))
    for name, value in zip(want, session.run(list(want), feeds), strict=True):
        np.testing.assert_allclose(value, want[name], rtol=2e-5, atol=2e-5)
    run = session.partial_run(feeds)
    assert run.advance()
    np.testing.assert_allclose(run.outputs()[0], expected(network(), feeds)[0], rtol=2e-5, atol=2e-5)


def test_nodes_of_a_group_go_to_the_device(tin: ctypes.CDLL) -> None:
    model = onnx.load_from_string(network())
    for node in model.graph.node:
        if node.op_type == "Conv":
            node.metadata_props.add(key="ctx_group", value="convolutions")
    options = treadle.SessionOptions()
    options.add_session_config_entry("treadle.group2ctx", "convolutions=tin:0")
    before = tin.tin_launches()
    feeds = {"x": values(1, 3, 9, 9)}
    got = treadle.InferenceSession(model.SerializeToString(), options).run(None, feeds)
    np.testing.assert_allclose(got[0], expected(network(), feeds)[0], rtol=2e-5, atol=2e-5)
    assert tin.tin_launches() - before >= 2


@pytest.mark.parametrize("entries", [{"device": "tin", "argument_devices": "x=cpu"}, {"device": "tin", "group2ctx": "first=cpu"},
                                     {"device": "tin", "group2ctx": "first=tin:other"}, {"device": "cpu", "argument_devices": "x=tin"}])
def test_nodes_run_where_their_kernels_are_wherever_operands_lie(tin: ctypes.CDLL, entries: dict[str, str]) -> None:
    model = onnx.load_from_string(network())
    model.graph.node[0].metadata_props.add(key="ctx_group", value="first")
    feeds = {"x": values(2, 3, 9, 9)}
    got = treadle.InferenceSession(model.SerializeToString(), on(**entries)).run(None, feeds)
    for one, want in zip(got, expected(network(), feeds), strict=True):
        np.testing.assert_allclose(one, want, rtol=2e-5, atol=2e-5)


def test_each_name_is_a_device_of_its_own_with_the_sessions_entries(tin: ctypes.CDLL) -> None:
    feeds = {"x": values(2, 3, 9, 9)}
    options = on("tin:small")
    options.add_session_config_entry("tin.memory", "4000")
    with pytest.raises(Exception, match="cannot allocate [0-9]+ bytes on tin:small"):
        treadle.InferenceSession(network(), options).run(None, feeds)
    options = on("tin:large")
    options.add_session_config_entry("tin.memory", "400000")
    got = treadle.InferenceSession(network(), options).run(None, feeds)
    np.testing.assert_allclose(got[0], expected(network(), feeds)[0], rtol=2e-5, atol=2e-5)
    options = on("tin")
    options.add_session_config_entry("tin.memory", "none")
    with pytest.raises(Exception, match="there is no device tin: tin.memory is a number of bytes above 0"):
        treadle.InferenceSession(network(), options)


def test_what_only_a_run_tells_stays_on_the_host(tin: ctypes.CDLL) -> None:
    node = helper.make_node
    model = model_of([node("NonZero", ["x"], ["found"]), node("Cast", ["found"], ["floats"], to=TensorProto.FLOAT), node("Relu", ["floats"], ["y"]),
                      node("Relu", ["x"], ["z"])], {"x": [4, 5]}, ["y", "z"])
    feeds = {"x": np.maximum(values(4, 5), 0)}
    for got, want in zip(treadle.InferenceSession(model, on("tin")).run(None, feeds), expected(model, feeds), strict=True):
        np.testing.assert_array_equal(got, want)


def test_bodies_stay_on_the_host(tin: ctypes.CDLL) -> None:
    node, info = helper.make_node, helper.make_tensor_value_info
    body = helper.make_graph(
        [node("Relu", ["state"], ["positive"]), node("Add", ["positive", "positive"], ["next"]), node("Identity", ["go"], ["go_on"])], "body",
        [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("state", TensorProto.FLOAT, [3])],
        [info("go_on", TensorProto.BOOL, []), info("next", TensorProto.FLOAT, [3])])
    model = model_of([node("Add", ["x", "x"], ["twice"]), node("Loop", ["count", "", "twice"], ["last"], body=body), node("Relu", ["last"], ["y"])],
                     {"x": [3]}, ["y"], count=np.array(3, np.int64))
    feeds = {"x": values(3)}
    np.testing.assert_allclose(treadle.InferenceSession(model, on("tin")).run(None, feeds)[0], np.maximum(feeds["x"], 0) * 16, rtol=1e-6)


OPERATORS = {"MatMul", "Add", "Relu", "Conv"}
for operator in OPERATORS:
    importlib.import_module(f"onnx.backend.test.case.node.{operator.lower()}")  # makes its cases
CASES = [case for case in cases._NodeTestCases if {node.op_type for node in case.model.graph.node} <= OPERATORS]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_cases_of_onnx(tin: ctypes.CDLL, case: TestCase) -> None:
    session = treadle.InferenceSession(case.model.SerializeToString(), on("tin"))
    before, launched = tin.tin_launches(), 0
    for inputs, outputs in case.data_sets:
        feeds = dict(zip([info.name for info in session.get_inputs()], inputs, strict=True))
        for got, want in zip(session.run(None, feeds), outputs, strict=True):
            np.testing.assert_allclose(got, want, rtol=case.rtol, atol=case.atol)
        launched += all(value.dtype == np.float32 for value in inputs) and "auto" not in case.name and "1d" not in case.name
    assert tin.tin_launches() - before >= launched


def array_of(value: object) -> object:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def assert_equal(got: object, want: object) -> None:
    if isinstance(want, list):
        assert isinstance(got, list) and len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            assert_equal(one, other)
    elif isinstance(want, np.ndarray) and want.dtype.kind not in "OUSb":
        got = np.asarray(got)
        assert got.dtype == want.dtype
        wide = np.complex128 if want.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(got.astype(wide), want.astype(wide), rtol=1e-4, atol=1e-5)
    else:
        np.testing.assert_array_equal(got, want)


def test_all_cases_of_onnx_fall_back_where_the_device_has_no_kernel(tin: ctypes.CDLL) -> None:
    """Against the host at the level that a device's graphs have: above it, 16-bit floats are computed in float32."""
    results = []
    for case in cases.collect_testcases(None):
        model = case.model.SerializeToString()
        for inputs, _ in case.data_sets:
            found = []
            for device in ("cpu", "tin"):
                options = on(device)
                options.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_ENABLE_BASIC
                session = treadle.InferenceSession(model, options)
                feeds = dict(zip([info.name for info in session.get_inputs()], map(array_of, inputs), strict=True))
                try:
                    found.append(session.run(None, feeds))
                except Exception as error:  # NumPy has no such dtype
                    found.append([type(error)])
            assert_equal(found[1], found[0])
            results.append(found[0])
    assert len(results) > 1800
    assert sum(isinstance(outputs[0], type) for outputs in results) < 100


def test_memory_comes_back(tin: ctypes.CDLL) -> None:
    gc.collect()
    before = tin.tin_allocated_bytes()
    session = treadle.InferenceSession(network(), on("tin"))
    session.run(None, {"x": values(2, 3, 9, 9)})
    assert tin.tin_allocated_bytes() > before
    del session
    gc.collect()
    assert tin.tin_allocated_bytes() == before


@pytest.mark.parametrize(("make", "message"), [
    (lambda: treadle.InferenceSession(network(), on("tine")), r'there is no device "tine"; the devices are: cpu, .*tin'),
    (lambda: treadle.InferenceSession(network(), on("tin", argument_devices="x=sim")), "devices of the types"),
])
def test_what_cannot_be_is_refused(tin: ctypes.CDLL, make: Callable[[], object], message: str) -> None:
    with pytest.raises(Exception, match=message):
        make()


def test_a_memory_limit_is_refused(tin: ctypes.CDLL) -> None:
    options = on("tin")
    options.memory_limit_bytes = 1 << 20
    with pytest.raises(Exception, match='"tin": a device without a bus has no memory_limit_bytes'):
        treadle.InferenceSession(network(), options)


def test_an_allocator_is_refused(tin: ctypes.CDLL) -> None:
    options = on("tin")
    options.allocator = "guard"
    with pytest.raises(Exception, match='"tin": a device with memory of its own has no allocator'):
        treadle.InferenceSession(network(), options)


def test_training_on_the_device(tin: ctypes.CDLL) -> None:
    from treadle.train import Trainer

    node = helper.make_node
    model = model_of([node("MatMul", ["x", "w1"], ["h"]), node("Add", ["h", "b1"], ["a"]), node("Relu", ["a"], ["r"]), node("MatMul", ["r", "w2"], ["y"])],
                     {"x": ["n", 6]}, ["y"], w1=values(6, 8), b1=values(8), w2=values(8, 3))
    labels = np.array([0, 2, 1, 1])
    options = on("tin")
    trainers = [Trainer(model, learning_rate=0.1), Trainer(model, learning_rate=0.1, sess_options=options)]
    before = tin.tin_launches()
    for _ in range(3):
        losses = [trainer.step({"x": values(4, 6)}, labels) for trainer in trainers]
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert tin.tin_launches() > before
    for name, value in trainers[0].parameters.items():
        np.testing.assert_allclose(value, trainers[1].parameters[name], rtol=1e-4, atol=1e-6)


def layer(rows: int | str = 4) -> bytes:
    """y = max(x @ w + b, 0)"""
    node = helper.make_node
    return model_of([node("MatMul", ["x", "w"], ["product"]), node("Add", ["product", "b"], ["sum"]), node("Relu", ["sum"], ["y"])],
                    {"x": [rows, 16]}, ["y"], w=values(16, 16), b=values(16))


def of_layer(x: np.ndarray) -> np.ndarray:
    return np.maximum(x @ values(16, 16) + values(16), 0)


def over_the_bus(tin: ctypes.CDLL) -> int:
    return tin.tin_copied_bytes(0) + tin.tin_copied_bytes(1)


@pytest.mark.parametrize("rows", [4, "n"])
def test_bound_values_stay_on_the_device(tin: ctypes.CDLL, rows: int | str) -> None:
    session = treadle.InferenceSession(layer(rows), on("tin"))
    x = values(4, 16)
    session.run(None, {"x": x})  # weights are on the device from here on
    held = tin.tin_allocated_bytes()
    value = treadle.OrtValue.ortvalue_from_numpy(x, "tin", 0)
    assert value.device_name() == "tin"
    assert tin.tin_allocated_bytes() == held + x.nbytes
    binding = session.io_binding()
    binding.bind_output("y", "tin")
    before = over_the_bus(tin)
    want = x
    for _ in range(5):
        binding.bind_ortvalue_input("x", value)
        session.run_with_iobinding(binding)
        value = binding.get_outputs()[0]
        want = of_layer(want)
    assert over_the_bus(tin) == before, "neither the feed nor the output came to the host"
    assert value.device_name() == "tin"
    np.testing.assert_allclose(value.numpy(), want, rtol=1e-4, atol=1e-4)
    assert over_the_bus(tin) == before + want.nbytes
    np.testing.assert_allclose(np.from_dlpack(value), want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], want, rtol=1e-4, atol=1e-4)
    del binding, value
    gc.collect()
    assert tin.tin_allocated_bytes() == held


def test_a_bound_value_of_the_device_is_written_in_place(tin: ctypes.CDLL) -> None:
    session = treadle.InferenceSession(layer(), on("tin"))
    source, target = (treadle.OrtValue.ortvalue_from_numpy(a, "tin", 0) for a in (values(4, 16), np.zeros((4, 16), np.float32)))
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", source)
    binding.bind_ortvalue_output("y", target)
    session.run_with_iobinding(binding)
    before = over_the_bus(tin)
    session.run_with_iobinding(binding)
    assert over_the_bus(tin) == before
    np.testing.assert_allclose(target.numpy(), of_layer(values(4, 16)), rtol=1e-5, atol=1e-5)
    source.update_inplace(-values(4, 16))
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(target.numpy(), of_layer(-values(4, 16)), rtol=1e-5, atol=1e-5)
    binding.bind_ortvalue_output("y", source)  # the feed's own memory
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(source.numpy(), of_layer(-values(4, 16)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", ["tin", "sim", "sim:a"])
@pytest.mark.parametrize("where", ["device", "cpu"])
def test_values_of_a_device_go_through_any_session(tin: ctypes.CDLL, device: str, where: str) -> None:
    """Also through what the host computes: a feed that it reads, an output that it makes or reads, and one that is the feed itself."""
    node = helper.make_node
    model = model_of(
        [node("Sigmoid", ["x"], ["s"]), node("Add", ["x", "s"], ["sum"]), node("Relu", ["sum"], ["r"]), node("Sin", ["r"], ["of_host"]),
         node("Identity", ["x"], ["same"]), node("Reshape", ["r", "shape"], ["flat"])],
        {"x": ["n", 16]}, ["s", "sum", "r", "of_host", "same", "flat"], shape=np.array([-1], np.int64))
    session = treadle.InferenceSession(model, on(device if where == "device" else "cpu"))
    names = [output.name for output in session.get_outputs()]
    for rows in (3, 5):
        x = values(rows, 16)
        feeds = {"x": treadle.OrtValue.ortvalue_from_numpy(x, device, 0)}
        options = treadle.RunOptions()
        options.output_devices = dict.fromkeys(names, device)
        for wanted in (treadle.RunOptions(), options):
            found = session.run_with_ort_values(names, feeds, wanted)
            assert [v.device_name() for v in found] == [device if wanted is options else "cpu"] * len(names)
            for value, want in zip(found, expected(model, {"x": x}), strict=True):
                np.testing.assert_allclose(value.numpy(), want, rtol=1e-5, atol=1e-5)
        for got, want in zip(session.run(None, feeds, options), expected(model, {"x": x}), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_states_stay_on_the_device(tin: ctypes.CDLL) -> None:
    node = helper.make_node
    model = model_of([node("MatMul", ["state", "w"], ["turned"]), node("Add", ["turned", "x"], ["next"]), node("Relu", ["next"], ["y"])],
                     {"x": [2, 16], "state": [2, 16]}, ["y", "next"], w=values(16, 16) / 4)
    run = treadle.InferenceSession(model, on("tin")).stateful({"state": "next"})
    run.run(None, {"x": values(2, 16)})
    state = run.state("state")
    for step in range(4):
        x = values(2, 16) * step
        before = over_the_bus(tin)
        (y,) = run.run(None, {"x": x})
        assert over_the_bus(tin) == before + x.nbytes + y.nbytes, "the input and the output, not the state"
        state = state @ (values(16, 16) / 4) + x
        np.testing.assert_allclose(y, np.maximum(state, 0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(run.state("state"), state, rtol=1e-4, atol=1e-4)


def test_what_cannot_lie_on_a_device(tin: ctypes.CDLL) -> None:
    with pytest.raises(treadle.Error, match='there is no device "lead"; the devices are: cpu, '):
        treadle.OrtValue.ortvalue_from_numpy(values(2), "lead", 0)
    with pytest.raises(treadle.Error, match="strings stay on the host"):
        treadle.OrtValue.ortvalue_from_numpy(np.array(["a"]), "tin", 0)
    session = treadle.InferenceSession(layer(), on("tin"))
    with pytest.raises(treadle.Error, match='there is no device "lead"'):
        session.io_binding().bind_output("y", "lead")
    options = treadle.RunOptions()
    options.output_devices = {"y": "tin"}
    options.output_allocators = {"y": treadle.memory.Allocator(lambda size: 0, lambda address, size: None)}
    with pytest.raises(treadle.Error, match='the output "y" has an allocator and a device'):
        session.run(None, {"x": values(4, 16)}, options)
    with pytest.raises(treadle.Error, match=r'input "x": axis 1 is 3, not 16'):
        session.run_with_ort_values(["y"], {"x": treadle.OrtValue.ortvalue_from_numpy(values(4, 3), "tin", 0)})

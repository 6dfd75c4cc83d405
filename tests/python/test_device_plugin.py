"""Tests a device in a separate library (examples/device/tin.cpp) with kernels for four operators. The host cannot read its memory."""

from __future__ import annotations

import ctypes
import gc
import importlib
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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


def load(source: Path, library: Path) -> ctypes.CDLL:
    subprocess.run(["c++", "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{ROOT / 'include'}", str(source), "-o", str(library), "-pthread"],
                   check=True)
    treadle.load_plugin(str(library))
    loaded = ctypes.CDLL(str(library))
    for function in (loaded.tin_launches, loaded.tin_allocated_bytes, loaded.tin_peak_bytes, loaded.tin_copied_bytes, loaded.tin_moved_bytes):
        function.restype = ctypes.c_int64
    return loaded


@pytest.fixture(scope="module")
def tin(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return load(ROOT / "examples/device/tin.cpp", tmp_path_factory.mktemp("tin") / "libtin.so")


@pytest.fixture(scope="module")
def zinc(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Loads the device of tin.cpp as a plugin of version 5, without a bus."""
    folder = tmp_path_factory.mktemp("zinc")
    (folder / "zinc.cpp").write_text(f"""
        #define treadle_plugin_main tin_main
        #include "{ROOT / "examples/device/tin.cpp"}"
        #undef treadle_plugin_main
        static const treadle_host* library;
        extern "C" __attribute__((visibility("default"))) int treadle_plugin_main(const treadle_host* host) {{
          library = host;
          static treadle_host changed = *host;
          changed.register_device = [](const treadle_device* device) {{
            treadle_device older = *device;
            older.size = offsetof(treadle_device, allocate_anywhere);
            older.name = "zinc";
            return library->register_device(&older);
          }};
          return tin_main(&changed);
        }}""")
    return load(folder / "zinc.cpp", folder / "libzinc.so")


@pytest.fixture(scope="module")
def brass(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Loads the device of tin.cpp with an additional kernel for chains of Add and Relu."""
    folder = tmp_path_factory.mktemp("brass")
    (folder / "brass.cpp").write_text(f"""
        #define treadle_plugin_main tin_main
        #include "{ROOT / "examples/device/tin.cpp"}"
        #undef treadle_plugin_main
        #include <sstream>
        static const treadle_host* library;
        struct Step {{ std::string op; std::vector<size_t> operands; }};
        static std::vector<Step> steps_of(const treadle_host* host, const treadle_node* node) {{
          const char* text = nullptr;
          size_t length = 0;
          std::vector<Step> steps;
          if (!host->node_attribute_string(node, "steps", &text, &length)) return steps;
          std::istringstream lines(std::string(text, length));
          for (std::string line; std::getline(lines, line);) {{
            std::istringstream words(line);
            steps.emplace_back();
            words >> steps.back().op;
            for (size_t operand; words >> operand;) steps.back().operands.push_back(operand);
          }}
          return steps;
        }}
        static int takes_chain(void*, const treadle_host* host, const treadle_node* node) {{
          const std::vector<Step> steps = steps_of(host, node);
          for (const Step& step : steps)
            if (step.op != "Add" && step.op != "Relu") return 0;
          return steps.empty() ? 0 : 1;
        }}
        static int launch_chain(void*, void* stream, const treadle_host* host, const treadle_device_call* call) {{
          const std::vector<Step> steps = steps_of(host, call->node);
          std::vector<View> inputs;
          for (size_t i = 0; i < call->num_inputs; ++i) inputs.emplace_back(call->inputs[i]);
          const View y(call->outputs[0]);
          return enqueue(stream, [=] {{
            std::vector<std::vector<float>> rows;
            for (const View& x : inputs) {{
              rows.emplace_back();
              for_broadcast(y.dims, x.steps_in(y.dims), x.steps_in(y.dims), [&](int64_t, int64_t at, int64_t) {{ rows.back().push_back(x.data[at]); }});
            }}
            for (const Step& step : steps) {{
              std::vector<float> row = rows[step.operands[0]];
              for (size_t i = 0; i < row.size(); ++i) row[i] = step.op == "Add" ? row[i] + rows[step.operands[1]][i] : row[i] < 0 ? 0 : row[i];
              rows.push_back(row);
            }}
            std::copy(rows.back().begin(), rows.back().end(), y.data);
          }});
        }}
        extern "C" __attribute__((visibility("default"))) int treadle_plugin_main(const treadle_host* host) {{
          library = host;
          static treadle_host changed = *host;
          changed.register_device = [](const treadle_device* device) {{
            static std::vector<treadle_device_kernel> kernels(device->kernels, device->kernels + device->num_kernels);
            kernels.push_back({{"FusedElementwise", "treadle", TREADLE_FLOAT32, takes_chain, launch_chain}});
            treadle_device more = *device;
            more.name = "brass", more.kernels = kernels.data(), more.num_kernels = kernels.size();
            return library->register_device(&more);
          }};
          return tin_main(&changed);
        }}""")
    return load(folder / "brass.cpp", folder / "libbrass.so")


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
    """Returns a network of convolutions and products, which the device computes, and operators in between that only the host has."""
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


# A chain is made if the device accepts it. A chain with a step that the device does not know stays separate nodes.
def test_a_device_that_has_a_kernel_for_chains_gets_them(brass: ctypes.CDLL) -> None:
    node = helper.make_node
    model = model_of(
        [node("Add", ["x", "row"], ["a"]), node("Relu", ["a"], ["b"]), node("Add", ["b", "x"], ["y"]), node("Add", ["y", "row"], ["c"]), node("Tanh", ["c"], ["d"]), node("Relu", ["d"], ["z"])],
        {"x": ["n", 5]}, ["y", "z"], row=values(5))  # fmt: skip
    session = treadle.InferenceSession(model, on("brass"))
    assert sorted(line.split("\t")[1] for line in session.to_text("devices").splitlines() if line.startswith("brass")) == ["Add", "FusedElementwise", "Relu"]
    assert "FusedElementwise" not in treadle.InferenceSession(model, on("brass", graph_optimization_level="basic")).to_text("devices")
    feeds = {"x": values(3, 5)}
    before = brass.tin_launches()
    for got, want in zip(session.run(None, feeds), expected(model, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    assert brass.tin_launches() - before == 3


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


def test_each_name_is_a_device_of_its_own_with_the_sessions_entries(tin: ctypes.CDLL, zinc: ctypes.CDLL) -> None:
    feeds = {"x": values(2, 3, 9, 9)}
    options = on("zinc:small")
    options.add_session_config_entry("tin.memory", "4000")
    with pytest.raises(treadle.errors.OutOfMemory, match="cannot allocate [0-9]+ bytes on zinc:small"):
        treadle.InferenceSession(network(), options).run(None, feeds)
    options = on("zinc:large")
    options.add_session_config_entry("tin.memory", "400000")
    got = treadle.InferenceSession(network(), options).run(None, feeds)
    np.testing.assert_allclose(got[0], expected(network(), feeds)[0], rtol=2e-5, atol=2e-5)
    options = on("tin")
    options.add_session_config_entry("tin.memory", "none")
    with pytest.raises(Exception, match="there is no device tin: tin.memory is a number of bytes above 0"):
        treadle.InferenceSession(network(), options)


def test_extents_that_only_a_run_tells(tin: ctypes.CDLL) -> None:
    node = helper.make_node
    model = model_of([node("NonZero", ["x"], ["found"]), node("Cast", ["found"], ["floats"], to=TensorProto.FLOAT), node("Relu", ["floats"], ["y"]),
                      node("Relu", ["x"], ["z"])], {"x": [4, 5]}, ["y", "z"])
    feeds = {"x": np.maximum(values(4, 5), 0)}
    before = tin.tin_launches()
    for got, want in zip(treadle.InferenceSession(model, on("tin")).run(None, feeds), expected(model, feeds), strict=True):
        np.testing.assert_array_equal(got, want)
    assert tin.tin_launches() == before + 2


@pytest.mark.parametrize("limit", [None, 10**6])
def test_bodies_run_on_the_device(tin: ctypes.CDLL, limit: int | None) -> None:
    node, info = helper.make_node, helper.make_tensor_value_info
    body = helper.make_graph(
        [node("Relu", ["state"], ["positive"]), node("Add", ["positive", "positive"], ["next"]), node("Identity", ["go"], ["go_on"])], "body",
        [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("state", TensorProto.FLOAT, [3])],
        [info("go_on", TensorProto.BOOL, []), info("next", TensorProto.FLOAT, [3])])
    model = model_of([node("Add", ["x", "x"], ["twice"]), node("Loop", ["count", "", "twice"], ["last"], body=body), node("Relu", ["last"], ["y"])],
                     {"x": [3]}, ["y"], count=np.array(3, np.int64))
    feeds, options = {"x": values(3)}, on("tin")
    if limit:
        options.memory_limit_bytes = limit
    before = tin.tin_launches()
    np.testing.assert_allclose(treadle.InferenceSession(model, options).run(None, feeds)[0], np.maximum(feeds["x"], 0) * 16, rtol=1e-6)
    assert tin.tin_launches() == before + 2 + 3 * 2


OPERATORS = {"MatMul", "Add", "Relu", "Conv"}
for operator in sorted(OPERATORS):
    importlib.import_module(f"onnx.backend.test.case.node.{operator.lower()}")  # this import makes the operator's cases
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
    """Compares with the host at the optimisation level of a device's graphs: above it, the host computes 16-bit floats in float32."""
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


def test_a_memory_limit_is_refused_without_a_bus(zinc: ctypes.CDLL) -> None:
    options = on("zinc")
    options.memory_limit_bytes = 1 << 20
    with pytest.raises(Exception, match='"zinc": a device without a bus has no memory_limit_bytes'):
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


LINKS, WIDTH, ROWS = 6, 32, 48
VALUE, WEIGHT = 4 * ROWS * WIDTH, 4 * WIDTH * WIDTH  # bytes of an activation and of a weight


def deep() -> bytes:
    """Returns layers whose results are added up in reverse order, so that each result is read again after all have been computed."""
    node = helper.make_node
    nodes, constants, last = [], {}, "x"
    for k in range(LINKS):
        constants |= {f"w{k}": np.roll(values(WIDTH, WIDTH), k) / 6, f"b{k}": np.roll(values(WIDTH), k)}
        nodes += [node("MatMul", [last, f"w{k}"], [f"p{k}"]), node("Add", [f"p{k}", f"b{k}"], [f"a{k}"]), node("Relu", [f"a{k}"], [f"h{k}"])]
        last = f"h{k}"
    for k in reversed(range(LINKS - 1)):
        nodes.append(node("Add", [last, f"h{k}"], [f"s{k}"]))
        last = f"s{k}"
    nodes.append(node("Relu", [last], ["y"]))
    return model_of(nodes, {"x": ["n", WIDTH]}, ["y"], **constants)


def of_deep(x: np.ndarray) -> np.ndarray:
    return expected(deep(), {"x": x})[0]


def small(memory_bytes: int, device: str = "tin") -> treadle.SessionOptions:
    options = on(device)
    options.add_session_config_entry("tin.memory", str(memory_bytes))
    return options


# Sizes of the device's memory. There is room for nothing; for the values of one node; for some values; for all but some; for all.
ROOMS = [1, 3 * VALUE + WEIGHT, 5 * VALUE, LINKS * (VALUE + WEIGHT), 1 << 20]


@pytest.mark.parametrize("memory_bytes", ROOMS)
@pytest.mark.parametrize("way", ["whole", "partial", "steps", "inner"])
def test_what_does_not_fit_stays_with_the_host(tin: ctypes.CDLL, memory_bytes: int, way: str) -> None:
    gc.collect()
    held, _, moved = tin.tin_allocated_bytes(), tin.tin_peak_bytes(), tin.tin_moved_bytes(1)
    options = small(memory_bytes)
    if way == "inner":
        options.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = treadle.InferenceSession(deep(), options)
    for rows in (ROWS, 7, ROWS + 1, ROWS):
        feeds = {"x": values(rows, WIDTH)}
        if way == "whole":
            got = session.run(None, feeds)
        elif way == "inner":
            inner, *got = session.run(["h2", "y"], feeds)
            assert inner.shape == (rows, WIDTH) and (inner >= 0).all()
        else:
            run = session.partial_run(feeds)
            while way == "steps" and run.step(3) > 0:
                pass
            assert run.advance()
            got = run.outputs()
        np.testing.assert_allclose(got[0], of_deep(feeds["x"]), rtol=1e-4, atol=1e-4)
    assert tin.tin_peak_bytes() <= memory_bytes
    if 3 * VALUE <= memory_bytes <= 5 * VALUE:
        assert tin.tin_moved_bytes(1) > moved, "values that are read again later went to the host"
    session = run = None
    gc.collect()
    assert tin.tin_allocated_bytes() == held


def test_weights_of_runs_that_fit_make_room_for_one_that_does_not(tin: ctypes.CDLL) -> None:
    session = treadle.InferenceSession(deep(), small(LINKS * (WEIGHT + 4 * WIDTH) + 4096))
    before = tin.tin_moved_bytes(1)
    for rows in (1, ROWS):
        x = values(rows, WIDTH)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], of_deep(x), rtol=1e-4, atol=1e-4)
        assert (tin.tin_moved_bytes(1) > before) == (rows == ROWS), "values were in the device's memory and went to the host"


@pytest.mark.parametrize("memory_bytes", ROOMS)
def test_over_two_devices_what_does_not_fit_stays_with_the_host(tin: ctypes.CDLL, memory_bytes: int) -> None:
    tin.tin_peak_bytes()
    model = onnx.load_from_string(deep())
    for k, node in enumerate(model.graph.node):
        node.metadata_props.add(key="ctx_group", value="even" if k % 4 < 2 else "odd")
    options = small(memory_bytes, "tin:0")
    options.add_session_config_entry("treadle.group2ctx", "even=tin:0;odd=tin:1")
    session = treadle.InferenceSession(model.SerializeToString(), options)
    for _ in range(3):
        x = values(ROWS, WIDTH)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], of_deep(x), rtol=1e-4, atol=1e-4)
    assert tin.tin_peak_bytes() <= memory_bytes


def test_a_memory_limit_holds_also_if_it_shrinks(tin: ctypes.CDLL) -> None:
    x = values(ROWS, WIDTH)
    options = on("tin")
    options.memory_limit_bytes = LINKS * (VALUE + WEIGHT)
    session = treadle.InferenceSession(deep(), options)
    for limit in (LINKS * (VALUE + WEIGHT), 4 * VALUE, 3 * VALUE, LINKS * VALUE, 1 << 20):
        session.set_memory_limit(limit)
        for _ in range(2):
            tin.tin_peak_bytes()
            np.testing.assert_allclose(session.run(None, {"x": x})[0], of_deep(x), rtol=1e-4, atol=1e-4)
            assert tin.tin_peak_bytes() <= limit
    run = session.partial_run({"x": x})
    run.step(2 * LINKS)
    session.set_memory_limit(3 * VALUE)
    tin.tin_peak_bytes()
    while run.step(2) > 0:
        assert tin.tin_peak_bytes() <= 3 * VALUE
    assert run.advance()
    np.testing.assert_allclose(run.outputs()[0], of_deep(x), rtol=1e-4, atol=1e-4)
    session.set_memory_limit(100)
    with pytest.raises(treadle.errors.OutOfMemory, match="too low: this run needs at least .* on tin"):
        session.run(None, {"x": x})


def test_a_job_limits_the_device_and_the_host_behind_it(tin: ctypes.CDLL) -> None:
    x = values(ROWS, WIDTH)
    job = treadle.Job("on-tin", memory_limit=4 * VALUE)
    options = small(5 * VALUE)
    options.job = job
    session = treadle.InferenceSession(deep(), options)
    tin.tin_peak_bytes()
    for device_limit, host_limit in [(4 * VALUE, 0), (1, 0), (2 * VALUE, 12 * VALUE), (0, 0), (3 * VALUE, 0)]:
        job.memory_limit, job.host_limit = device_limit, host_limit
        before = job.status().moved_bytes
        np.testing.assert_allclose(session.run(None, {"x": x})[0], of_deep(x), rtol=1e-4, atol=1e-4)
        status = job.status()
        assert status.moved_bytes > before
        assert status.device_bytes <= (device_limit or 5 * VALUE)
        assert tin.tin_peak_bytes() <= 5 * VALUE


def test_data_dependent_values_that_do_not_fit(tin: ctypes.CDLL) -> None:
    """The sizes are only known during the run. Later values with known shapes are computed on the device again."""
    node = helper.make_node
    model = model_of(
        [node("Relu", ["x"], ["r"]), node("NonZero", ["r"], ["found"]), node("Cast", ["found"], ["floats"], to=TensorProto.FLOAT),
         node("Reshape", ["floats", "shape"], ["shaped"]), node("MatMul", ["shaped", "w"], ["p"]), node("Add", ["p", "shaped"], ["a"]), node("Relu", ["a"], ["y"])],
        {"x": [ROWS, WIDTH]}, ["y", "floats"], w=values(WIDTH, WIDTH), shape=np.array([ROWS, WIDTH], np.int64))
    x = values(ROWS, WIDTH)
    x[np.unravel_index(np.argsort(x, axis=None)[:ROWS * WIDTH // 2], x.shape)] = -1
    x[x >= 0] += 1  # half of the elements are positive, and NonZero gives two indices for each
    assert (x > 0).sum() == ROWS * WIDTH // 2
    for memory_bytes in (1, 2 * VALUE, 4 * VALUE):
        tin.tin_peak_bytes()
        launched = tin.tin_launches()
        session = treadle.InferenceSession(model, small(memory_bytes))
        for _ in range(2):
            for got, want in zip(session.run(None, {"x": x}), expected(model, {"x": x}), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        assert tin.tin_peak_bytes() <= memory_bytes
        assert tin.tin_launches() >= launched + 2 * 4


@pytest.mark.parametrize("memory_bytes", ROOMS)
@pytest.mark.parametrize("limited", [False, True])
def test_training_that_does_not_fit(tin: ctypes.CDLL, memory_bytes: int, limited: bool) -> None:
    from treadle.train import Trainer

    if limited and memory_bytes < 3 * VALUE:
        return
    options = small(memory_bytes)
    if limited:
        options.memory_limit_bytes = memory_bytes
    labels = np.arange(ROWS) % WIDTH
    trainers = [Trainer(deep(), learning_rate=0.01, momentum=0.9, sess_options=o) for o in (treadle.SessionOptions(), options)]
    tin.tin_peak_bytes()
    for _ in range(4):
        losses = [trainer.step({"x": values(ROWS, WIDTH)}, labels) for trainer in trainers]
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    assert tin.tin_peak_bytes() <= memory_bytes
    for name, value in trainers[0].parameters.items():
        np.testing.assert_allclose(value, trainers[1].parameters[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("memory_bytes", ROOMS)
def test_joint_modules_that_do_not_fit(tin: ctypes.CDLL, memory_bytes: int) -> None:
    from treadle.train import JointModule

    x, ones = values(ROWS, WIDTH), np.ones((ROWS, WIDTH), np.float32)
    modules = [JointModule(deep(), sess_options=options) for options in (treadle.SessionOptions(), small(memory_bytes))]
    tin.tin_peak_bytes()
    for _ in range(2):
        runs = [module.forward({"x": x}) for module in modules]
        np.testing.assert_allclose(runs[1].outputs[0], of_deep(x), rtol=1e-4, atol=1e-4)
        want, got = (run.backward([ones]) for run in runs)
        for name in want:
            np.testing.assert_allclose(got[name], want[name], rtol=1e-3, atol=1e-3)
    assert tin.tin_peak_bytes() <= memory_bytes


@pytest.mark.parametrize("memory_bytes", ROOMS)
def test_several_streams_and_threads_of_a_session_that_does_not_fit(tin: ctypes.CDLL, memory_bytes: int) -> None:
    options = small(memory_bytes)
    options.add_session_config_entry("treadle.compute_streams", "3")
    session = treadle.InferenceSession(deep(), options)
    tin.tin_peak_bytes()
    inputs = [values(rows, WIDTH) for rows in (3, ROWS, ROWS, 20)]
    with ThreadPoolExecutor() as threads:
        for x, got in zip(inputs * 4, threads.map(lambda x: session.run(None, {"x": x})[0], inputs * 4), strict=True):
            np.testing.assert_allclose(got, of_deep(x), rtol=1e-4, atol=1e-4)
    assert tin.tin_peak_bytes() <= memory_bytes


def test_a_monitor_sees_what_lies_on_either_side_of_the_bus(tin: ctypes.CDLL) -> None:
    session = treadle.InferenceSession(deep(), small(4 * VALUE))
    seen: dict[str, np.ndarray] = {}
    session.set_monitor(lambda event: seen.update({event.value: np.array(event.array)}), "h*")
    x = want = values(ROWS, WIDTH)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], of_deep(x), rtol=1e-4, atol=1e-4)
    for k in range(LINKS):
        want = np.maximum(want @ (np.roll(values(WIDTH, WIDTH), k) / 6) + np.roll(values(WIDTH), k), 0)
        np.testing.assert_allclose(seen[f"h{k}"], want, rtol=1e-4, atol=1e-4)


def test_without_a_bus_a_run_that_does_not_fit_fails(zinc: ctypes.CDLL) -> None:
    session = treadle.InferenceSession(deep(), small(3 * VALUE + WEIGHT, "zinc"))
    for _ in range(2):
        with pytest.raises(treadle.errors.OutOfMemory, match="cannot allocate [0-9]+ bytes on zinc"):
            session.run(None, {"x": values(ROWS, WIDTH)})
    x = values(1, WIDTH)
    with pytest.raises(treadle.errors.OutOfMemory, match="cannot allocate [0-9]+ bytes on zinc"):
        treadle.InferenceSession(deep(), small(WEIGHT, "zinc")).run(None, {"x": x})
    large = treadle.InferenceSession(deep(), small(1 << 20, "zinc"))
    np.testing.assert_allclose(large.run(None, {"x": x})[0], of_deep(x), rtol=1e-4, atol=1e-4)


def layer(rows: int | str = 4) -> bytes:
    """Returns y = max(x @ w + b, 0)."""
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
    session.run(None, {"x": x})  # from now on, the weights are on the device
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
    binding.bind_ortvalue_output("y", source)  # the output is bound to the memory of the feed
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(source.numpy(), of_layer(-values(4, 16)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", ["tin", "sim", "sim:a"])
@pytest.mark.parametrize("where", ["device", "cpu"])
def test_values_of_a_device_go_through_any_session(tin: ctypes.CDLL, device: str, where: str) -> None:
    """Also through nodes of the host: a feed that it reads, outputs that it writes or reads, and an output that is the feed itself."""
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

"""Tests details of onnxruntime's Python package that programs rely on: errors of files, settings as entries, libraries."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import textwrap

import pytest
from onnxruntime_c import PLACES
from test_onnxruntime_shim import on_both

pytest.importorskip("onnxruntime")

MODEL = """
    import json, os, sys
    import numpy as np
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper
    os.chdir({folder!r})
    ort.set_default_logger_severity(4)
    W = np.arange(4, dtype=np.float32)
    said = []

    def model():
        graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "graph", [helper.make_tensor_value_info("x", 1, [4])], [helper.make_tensor_value_info("y", 1, [4])],
                                  [numpy_helper.from_array(W, "w")])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def attempt(make):
        try:
            said.append([float(number) for number in make().run(None, {{"x": W}})[0]])
        except Exception as error:
            said.append(type(error).__name__)
"""

FILES = """
    os.makedirs("sub", exist_ok=True)
    open("w.bin", "wb").write(W.tobytes()), open("short.bin", "wb").write(W.tobytes()[:8])
    for name in ("garbage.onnx", "garbage.ort"):
        open(name, "wb").write(b"garbage")
    for name in ("empty.onnx", "empty.ort"):
        open(name, "wb").close()
    for name in ("absent.onnx", "absent.ort", "absent/absent.ort", "garbage.onnx", "garbage.ort", "empty.onnx", "empty.ort", b"garbage", b"", b"\\x08\\x08", model().SerializeToString()[2:]):
        attempt(lambda: ort.InferenceSession(name, providers=["CPUExecutionProvider"]))
    for number, keys in enumerate([{{}}, {{"location": "absent.bin"}}, {{"location": "short.bin"}}, {{"offset": "100"}}, {{"offset": "-4"}}, {{"offset": "abc"}}, {{"length": "8"}}, {{"length": "100"}}, {{"length": "-1"}},
                                   {{"location": "/tmp/w.bin"}}, {{"location": "../w.bin"}}, {{"location": "sub/../w.bin"}}, {{"location": "sub/../../w.bin"}}, {{"location": ""}}, {{"location": None}}]):
        made = model()
        w = made.graph.initializer[0]
        w.ClearField("raw_data")
        w.data_location = TensorProto.EXTERNAL
        for key, value in {{"location": "w.bin", **keys}}.items():
            if value is not None:
                w.external_data.add(key=key, value=value)
        open(f"{{number}}.onnx", "wb").write(made.SerializeToString())
        attempt(lambda: ort.InferenceSession(f"{{number}}.onnx", providers=["CPUExecutionProvider"]))
    print(json.dumps(said))
"""


def test_files_that_are_none_or_damaged_have_their_exceptions(tmp_path):
    ours, theirs = on_both(textwrap.dedent(MODEL + FILES).format(folder=str(tmp_path)))
    assert ours == theirs


BINDINGS = """
    session = ort.InferenceSession(model().SerializeToString(), providers=["CPUExecutionProvider"])

    def bound(value, name="x", output="y"):
        binding = session.io_binding()
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(value))
        binding.bind_output(output)
        session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()[0].tolist()

    def nothing_bound():
        binding = session.io_binding()
        binding.bind_output("y")
        session.run_with_iobinding(binding)

    attempts = [lambda: bound(W), lambda: bound(W, name="q"), lambda: bound(W, output="q"), lambda: bound(W.astype(np.float64)), lambda: bound(W[:3]), lambda: bound(W[None]), nothing_bound,
                lambda: session.io_binding().bind_cpu_input("q", W), lambda: session.io_binding().bind_input("q", "cpu", 0, np.float32, W.shape, W.ctypes.data)]
    for attempted in attempts:
        try:
            said.append(attempted())
        except RuntimeError:
            said.append("a RuntimeError")
        except Exception as error:
            said.append(type(error).__name__)
    print(json.dumps(said))
"""


def test_what_goes_wrong_with_bound_values_is_a_runtime_error(tmp_path):
    ours, theirs = on_both(textwrap.dedent(MODEL + BINDINGS).format(folder=str(tmp_path)))
    assert ours == theirs


PLACES_OF_OPERANDS = """
    session = ort.InferenceSession(model().SerializeToString(), providers=["CPUExecutionProvider"])
    infos = session.get_input_memory_infos() + session.get_output_memory_infos()
    said += [[info.name, str(info.allocator_type), str(info.mem_type), info.device_id] for info in infos] + [device.ep_name for device in session.get_input_epdevices()]
    open("no library", "w").close()
    for path in ("/nowhere/library.so", "no library", "libm.so.6"):
        attempt(lambda: ort.SessionOptions().register_custom_ops_library(path))
    compiler = ort.ModelCompiler(ort.SessionOptions(), model().SerializeToString())
    for folder, name in (("", "name"), ({folder!r} + "/", ""), ("/nowhere", "name"), ({folder!r} + "/", "name")):
        try:
            said.append(compiler.set_ep_context_binary_information(folder, name))
        except Exception as error:
            said.append(type(error).__name__)
    print(json.dumps(said))
"""


def test_operands_lie_where_onnxruntime_says_and_libraries_are_refused_alike(tmp_path):
    ours, theirs = on_both(textwrap.dedent(MODEL + PLACES_OF_OPERANDS).format(folder=str(tmp_path)))
    assert ours == theirs


ENTRIES = """
    options = ort.SessionOptions()
    for key, value in (("intra_op_num_threads", "3"), ("inter_op_num_threads", "2"), ("log_severity_level", "3"), ("enable_mem_pattern", "0"), ("nosuch", "x")):
        options.add_session_config_entry("session." + key, value)
        said.append(options.get_session_config_entry("session." + key))
    attempt(lambda: ort.InferenceSession(model().SerializeToString(), options, providers=["CPUExecutionProvider"]))
    for key, value in (("", "1"), ("k" * 1025, "1"), ("k", "v" * 8193), ("k", "v" * 8192)):
        try:
            said.append(options.add_session_config_entry(key, value))
        except RuntimeError:
            said.append("refused")
    for affinities in ("1", "1;1", "x", ""):
        options = ort.SessionOptions()
        options.intra_op_num_threads = 3
        options.add_session_config_entry("session.intra_op_thread_affinities", affinities)
        try:
            said.append(ort.InferenceSession(model().SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, {{"x": W}})[0].tolist())
        except Exception:
            said.append("refused")
    print(json.dumps(said))
"""


def test_settings_as_entries_are_kept(tmp_path):
    ours, theirs = on_both(textwrap.dedent(MODEL + ENTRIES).format(folder=str(tmp_path)))
    assert ours == theirs


CONFIG = """
    for asked in ("0", "1"):
        for config in ({{"intra_op_num_threads": 3, "inter_op_num_threads": 2, "execution_mode": 1, "graph_optimization_level": 1}}, {{"intra_op_num_threads": "many"}}, {{"graph_optimization_level": 17}}):
            os.environ["ORT_LOAD_CONFIG_FROM_MODEL"] = asked
            made = model()
            helper.set_model_props(made, {{"ort_config": json.dumps({{"session_options": config}})}})
            try:
                options = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"]).get_session_options()
                said.append([options.intra_op_num_threads, options.inter_op_num_threads, str(options.execution_mode), str(options.graph_optimization_level)])
            except Exception as error:
                said.append(type(error).__name__)
    print(json.dumps(said))
"""


def test_models_bring_along_settings(tmp_path):
    ours, theirs = on_both(textwrap.dedent(MODEL + CONFIG).format(folder=str(tmp_path)))
    assert ours == theirs


def test_settings_as_entries_are_settings():
    import treadle

    options = treadle.SessionOptions()
    for key, value in (("intra_op_num_threads", "3"), ("log_severity_level", "3"), ("enable_mem_pattern", "0"), ("log_id", "here"), ("execution_mode", "parallel")):
        options.add_session_config_entry(f"session.{key}", value)
    assert (options.intra_op_num_threads, options.log_severity_level, options.enable_mem_pattern, options.logid) == (3, 3, False, "here")
    assert options.execution_mode == treadle.ExecutionMode.ORT_PARALLEL
    with pytest.raises(treadle.errors.InvalidArgument, match="many"):
        options.add_session_config_entry("session.intra_op_num_threads", "many")
    assert options.intra_op_num_threads == 3


LIBRARY = r"""
#include <stddef.h>
#include <stdint.h>

typedef struct {
  uint32_t version;
  void* (*create)(const void*, const void*, const void*);
  const char* (*name)(const void*);
  const char* (*provider)(const void*);
  int (*input_type)(const void*, size_t);
  size_t (*inputs)(const void*);
  int (*output_type)(const void*, size_t);
  size_t (*outputs)(const void*);
  void (*compute)(void*, void*);
  void (*destroy)(void*);
  int (*input_kind)(const void*, size_t);
  int (*output_kind)(const void*, size_t);
} Operator;

static void* (*const* api)();

static void* create(const void* op, const void* given, const void* info) { return (void*)op; }
static const char* name(const void* op) { return "Relu"; }
static const char* provider(const void* op) { return NULL; }
static int type(const void* op, size_t index) { return 1; }
static size_t one(const void* op) { return 1; }
static int required(const void* op, size_t index) { return 0; }
static void destroy(void* kernel) {}

static void compute(void* kernel, void* context) {
  const void* given = NULL;
  void* made = NULL;
  float *from = NULL, *to = NULL;
  const int64_t extents[1] = {3};
  api[GET_INPUT](context, (size_t)0, &given);
  api[GET_OUTPUT](context, (size_t)0, extents, (size_t)1, &made);
  api[GET_DATA](given, &from);
  api[GET_DATA](made, &to);
  for (int i = 0; i < 3; ++i) to[i] = 10 * from[i];
}

static const Operator relu = {10, create, name, provider, type, one, type, one, compute, destroy, required, required};

void* RegisterCustomOps(void* options, const void* const* base) {
  api = ((const void* (*)(uint32_t))base[0])(10);
  static void* domain = NULL;
  if (domain == NULL) {
    api[CREATE_DOMAIN]("", &domain);
    api[ADD_OPERATOR](domain, &relu);
  }
  return api[ADD_DOMAIN](options, domain);
}
"""

REPLACED = """
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", [helper.make_tensor_value_info("x", 1, [3])], [helper.make_tensor_value_info("y", 1, [3])])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    options = ort.SessionOptions()
    options.register_custom_ops_library({library!r})
    for with_options in (None, options, None):
        session = ort.InferenceSession(data, with_options, providers=["CPUExecutionProvider"])
        said.append(session.run(None, {{"x": np.array([-1, 0, 2], np.float32)}})[0].tolist())
    print(json.dumps(said))
"""


def test_a_library_replaces_operators_in_the_sessions_that_register_it(tmp_path: pathlib.Path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("there is no C compiler")
    source, library = tmp_path / "library.c", tmp_path / "library.so"
    source.write_text(LIBRARY)
    names = {"GET_INPUT": "KernelContext_GetInput", "GET_OUTPUT": "KernelContext_GetOutput", "GET_DATA": "GetTensorMutableData", "CREATE_DOMAIN": "CreateCustomOpDomain",
             "ADD_OPERATOR": "CustomOpDomain_Add", "ADD_DOMAIN": "AddCustomOpDomain"}
    subprocess.run([compiler, "-std=c11", "-w", "-shared", "-fPIC", *(f"-D{name}={PLACES[function]}" for name, function in names.items()), str(source), "-o", str(library)], check=True)
    ours, theirs = on_both(textwrap.dedent(MODEL + REPLACED).format(folder=str(tmp_path), library=str(library)))
    assert ours == theirs == [[0, 0, 2], [-10, 0, 20], [0, 0, 2]]


EXAMPLES = """
    from onnxruntime.datasets import get_example
    for name in ("sigmoid.onnx", "mul_1.onnx", "logreg_iris.onnx"):
        session = ort.InferenceSession(get_example(name), providers=["CPUExecutionProvider"])
        given = session.get_inputs()[0]
        results = session.run(None, {{given.name: np.linspace(0, 1, int(np.prod(given.shape)), dtype=np.float32).reshape(given.shape)}})
        said += [np.round(result, 4).tolist() if hasattr(result, "shape") else [{{str(k): round(float(v), 4) for k, v in each.items()}} for each in result] for result in results]
    print(json.dumps(said))
"""


def test_onnxruntimes_own_examples(tmp_path):
    ours, theirs = on_both(textwrap.dedent(MODEL + EXAMPLES).format(folder=str(tmp_path)))
    assert ours == theirs

"""Material for calls of ONNX Runtime's C interface: models, names, numbers, and a custom operator that makes calls in its kernel."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from ctypes import c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_operators as operators
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_c import EDITOR, Api, Part, handles, model, strings, tensor, value_info

W = np.arange(6, dtype=np.float32).reshape(3, 2)
DOMAIN = "custom.test"
HEADERS = Path(__file__).parents[2] / "src/ort_api"
_ENTRY = re.compile(r"^ORT_ENTRY\((\w+), ((?:[^,()]|\([^)]*\))*), \((.*)\)\)$", re.MULTILINE)
_MEMBER = re.compile(r"^  (\w+\*?) \(\*(\w+)\)\(([^;]*)\);", re.MULTILINE)

Parameter = tuple[str, str]  # pair of type and name
Function = tuple[str, str, str, list[Parameter]]  # tuple of table, name, type of the result, and parameters


def _parameters(text: str) -> list[Parameter]:
    found = []
    for part in re.split(r",\s*(?![^()]*\))", text.strip()):
        if match := re.match(r"^(.*?)\s*(\w+)$", part.strip()):
            found.append((re.sub(r"\s+", " ", match[1]).replace(" *", "*"), match[2]))
        elif part:
            found.append(("a function", part))
    return found


def functions() -> list[Function]:
    """Returns the functions of the three tables, in their order."""
    table = [("main", name, result, _parameters(text)) for name, result, text in _ENTRY.findall((HEADERS / "entries.inc").read_text())]
    text = (HEADERS / "editor_api.h").read_text()
    for kind, struct in (("editor", "OrtModelEditorApi"), ("compiler", "OrtCompileApi")):
        body = text[text.index(f"struct {struct} {{") :]
        table += [(kind, name, result, _parameters(parameters)) for result, name, parameters in _MEMBER.findall(body[: body.index("\n};")])]
    return table


def _external(location: str, offset: int = 0, length: int | None = None) -> TensorProto:
    made = numpy_helper.from_array(W, "w")
    made.ClearField("raw_data")
    made.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", None if length is None else str(length))):
        if value is not None:
            made.external_data.add(key=key, value=value)
    return made


def _products(initializers: Any, **more: Any) -> bytes:
    return model([helper.make_node("MatMul", ["x", "w"], ["y"])], [tensor("x", 1, ["rows", 3])], [tensor("y", 1, ["rows", 2])], initializers, **more)


def _described() -> bytes:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="product"), helper.make_node("SplitToSequence", ["y"], ["s"], name="split", axis=0)]
    outputs = [tensor("y", 1, ["rows", 2]), helper.make_tensor_sequence_value_info("s", 1, None)]
    graph = helper.make_graph(nodes, "a graph", [tensor("x", 1, ["rows", 3]), tensor("w", 1, [3, 2])], outputs, [numpy_helper.from_array(W, "w")], doc_string="of a test")
    graph.input[0].type.denotation = "TENSOR"
    graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10, producer_name="a test", domain="test.domain", model_version=3, doc_string="described")
    helper.set_model_props(made, {"a": "b", "key": "", "ort_config": '{"session_options": {"intra_op_num_threads": 2}}'})
    return made.SerializeToString()


def _branches() -> bytes:
    def body(op_type: str) -> Any:
        return helper.make_graph([helper.make_node(op_type, ["x"], ["z"])], op_type, [], [tensor("z", 1, ["rows", 3])])

    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=body("Relu"), else_branch=body("Neg"))]
    return model(nodes, [tensor("c", 9, []), tensor("x", 1, ["rows", 3])], [tensor("y", 1, ["rows", 3])])


def _one(op_type: str, *inputs: Any, outputs: Any = None, domain: str = "", domains: tuple = (), **attributes: Any) -> bytes:
    outputs = outputs or [tensor("y", 1, None)]
    node = helper.make_node(op_type, [each.name for each in inputs], [each.name for each in outputs], name="node", domain=domain, **attributes)
    return model([node], list(inputs), outputs, domains=domains)


def _of_opset(version: int, ir_version: int = 10) -> bytes:
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", [tensor("x", 1, [2])], [tensor("y", 1, [2])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=ir_version).SerializeToString()


def _sparse() -> bytes:
    values, indices = helper.make_tensor("values", 1, [2], [1.0, 2.0]), helper.make_tensor("indices", 7, [2], [1, 5])
    node = helper.make_node("Constant", [], ["y"], sparse_value=helper.make_sparse_tensor(values, indices, [3, 3]))
    return model([node], [], [tensor("y", 1, [3, 3])])


def _optional() -> bytes:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(1, [2]))
    return model([helper.make_node("OptionalHasElement", ["o"], ["y"])], [helper.make_value_info("o", kind)], [tensor("y", 9, [])])


def _maps() -> bytes:
    out = helper.make_value_info("m", helper.make_sequence_type_proto(helper.make_map_type_proto(7, helper.make_tensor_type_proto(1, None))))
    node = helper.make_node("ZipMap", ["x"], ["m"], domain="ai.onnx.ml", classlabels_int64s=[10, 20, 30])
    return model([node], [tensor("x", 1, ["rows", 3])], [out], domains=("ai.onnx.ml",))


def _chain(*nodes: tuple[str, list[str], list[str]], more: Any = ()) -> bytes:
    return model([helper.make_node(op_type, inputs, outputs) for op_type, inputs, outputs in nodes], [tensor("x", 1, [2])], [tensor("y", 1, [2])], more)


def models() -> dict[str, bytes]:
    x, w = tensor("x", 1, ["rows", 3]), numpy_helper.from_array(W, "w")
    probe = _one("Probe", x, tensor("w", 1, [3, 2]), outputs=[tensor("y", 1, ["rows", 3])], domain=DOMAIN, domains=(DOMAIN,),
                 f=0.5, i=3, s="text", fs=[1.0, 2.0], ints=[4, 5], ss=["a", "bc"], t=numpy_helper.from_array(W, "t"))
    plain = _products([w])
    return {
        "described": _described(),
        "plain": plain,
        "relu": _one("Relu", x, outputs=[tensor("y", 1, ["rows", 3])]),
        "texts": _one("StringConcat", tensor("a", 8, ["n"]), tensor("b", 8, ["n"]), outputs=[tensor("y", 8, ["n"])]),
        "sequence": _one("SequenceLength", helper.make_tensor_sequence_value_info("q", 1, None), outputs=[tensor("y", 7, [])]),
        "maps": _maps(),
        "optional": _optional(),
        "branches": _branches(),
        "sparse": _sparse(),
        "integers": _one("Add", tensor("a", 7, ["n"]), tensor("b", 7, ["n"]), outputs=[tensor("y", 7, ["n"])]),
        "unread": model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", 1, [2]), tensor("u", 1, [3])], [tensor("y", 1, [2])]),
        "probe": probe,
        "external": _products([_external("w.bin", 0, 24)]),
        "no length": _products([_external("w.bin")]),
        "elsewhere": _products([_external("./w.bin", 0, 24)]),
        # Models whose external data have errors.
        "absent": _products([_external("absent.bin")]),
        "too short": _products([_external("w.bin", 8, 24)]),
        "wrong length": _products([_external("w.bin", 0, 12)]),
        "outside": _products([_external("../w.bin", 0, 24)]),
        "garbage": b"\0\1\2 no model",
        "cut": plain[: len(plain) // 2],
        "nothing": b"",
        "cycle": _chain(("Add", ["x", "y"], ["z"]), ("Relu", ["z"], ["y"])),
        "twice": _chain(("Relu", ["x"], ["y"]), ("Neg", ["x"], ["y"])),
        "unmade": _chain(("Add", ["x", "q"], ["y"])),
        "no output": _chain(("Relu", ["x"], ["z"])),
        "unsorted": _chain(("Relu", ["z"], ["y"]), ("Neg", ["x"], ["z"])),
        "initializer twice": _chain(("Relu", ["x"], ["y"]), more=[w, w]),
        "unknown": _one("NoSuch", x),
        "unknown domain": _one("NoSuch", x, domain="nosuch"),
        "not registered": _one("NoSuch", x, domain="nosuch", domains=("nosuch",)),
        "attribute": _one("Cast", x),
        "attribute's type": _one("Softmax", x, axis=0.5),
        "strange attribute": _one("Relu", x, nosuch=1),
        "operands": _one("Relu", x, tensor("z", 1, ["rows", 3])),
        "dtypes": _one("Add", x, tensor("z", 7, ["rows", 3])),
        "shapes": _one("Add", tensor("a", 1, [2]), tensor("b", 1, [3])),
        "declared": _one("Relu", tensor("x", 1, [2]), outputs=[tensor("y", 1, [3])]),
        "declared dtype": _one("Relu", tensor("x", 1, [2]), outputs=[tensor("y", 7, [2])]),
        "opset": _of_opset(99),
        "old": _of_opset(5),
        "ir": _of_opset(21, 99),
        "no opset": helper.make_model(helper.make_graph([], "graph", [tensor("x", 1, [2])], [tensor("x", 1, [2])]), opset_imports=[], ir_version=10).SerializeToString(),
    }


_ADAPTER = """
import numpy, onnxruntime, sys
made = onnxruntime.AdapterFormat()
made.set_parameters({"w": onnxruntime.OrtValue.ortvalue_from_numpy(numpy.ones((3, 2), numpy.float32))})
made.export_adapter(sys.argv[1])
"""


def adapter() -> bytes:
    """Returns a LoRA adapter, written by ONNX Runtime's package in another process, as it is not loaded here."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "adapter")
        subprocess.run([sys.executable, "-c", _ADAPTER, str(path)], check=True)
        return path.read_bytes()


MODELS = models()
ADAPTER = adapter()


def write_files(folder: str) -> None:
    for name, data in MODELS.items():
        Path(folder, f"{name}.onnx").write_bytes(data)
    Path(folder, "w.bin").write_bytes(W.tobytes())
    Path(folder, "lora").write_bytes(ADAPTER)
    Path(folder, "folder").mkdir()


KEYS = """session.disable_prepacking session.use_env_allocators session.load_model_format session.set_denormal_as_zero session.disable_quant_qdq
session.intra_op.allow_spinning session.inter_op.allow_spinning session.use_ort_model_bytes_directly session.strict_shape_type_inference
session.allow_released_opsets_only session.intra_op_thread_affinities session.disable_cpu_ep_fallback session.optimized_model_external_initializers_file_name
session.optimized_model_external_initializers_min_size_in_bytes session.model_external_initializers_file_folder_path session.save_model_format
session.record_ep_graph_assignment_info session.dynamic_block_base session.disable_aot_function_inlining optimization.disable_specified_optimizers
optimization.enable_gelu_approximation optimization.minimal_build_optimizations ep.context_enable ep.context_file_path ep.context_embed_mode
session.qdq_matmulnbits_accuracy_level session.use_device_allocator_for_initializers session.graph_optimizations_loop_level session.execution_mode
session.intra_op_num_threads session.inter_op_num_threads session.enable_profiling session.graph_optimization_level session.log_severity_level session.log_id
session.use_per_session_threads session.enable_mem_pattern session.enable_cpu_mem_arena session.optimized_model_filepath session.use_deterministic_compute
session.compile_only session.disable_model_compile session.collect_node_memory_stats_to_file session.node_partition_config_file session.debug_layout_transformation
mlas.use_lut_gemm memory.enable_memory_arena_shrinkage optimization.constant_folding_max_output_size_in_bytes session.enable_quant_qdq_cleanup
session.disable_qdq_constant_folding session.function_expansion_node_limit session.force_spinning_stop""".encode().split()

# Texts by the name of the parameter, or by the names of function and parameter.
TEXTS: dict[str, list[bytes]] = {
    "config_key": [*KEYS, *KEYS[:1] * 40, b"a.key", b"", b"k" * 1024, b"k" * 1025],
    "config_value": [b"0", b"1", b"1", b"", b"2", b"-1", b"x", b"1,2;3", b"v" * 8192, b"v" * 8193],
    "key": [b"a", b"key", b"", b"nosuch", b"ort_config"],
    "value": [b"v", b"", b"1"],
    "name": [b"x", b"y", b"w", b"s", b"", b"nosuch", b"u"],
    "config_path": [b"plain.onnx"],
    "logid": [b"id", b""],
    "dim_name": [b"rows", b"n", b"nosuch", b""],
    "dim_denotation": [b"DATA_BATCH", b"nosuch", b""],
    "domain": [b"", b"ai.onnx", b"com.microsoft", b"ai.onnx.ml", DOMAIN.encode(), b"nosuch"],
    "provider_name": [b"CPU", b"CPUExecutionProvider", b"XNNPACK", b"CUDA", b"QNN", b"nosuch", b"", b"AZURE"],
    "provider_type": [b"CPUExecutionProvider", b"CUDAExecutionProvider", b"nosuch", b""],
    "ep_type": [b"CPUExecutionProvider", b"nosuch", b""],
    "ep_name": [b"CPUExecutionProvider", b"nosuch", b""],
    "affinity_string": [b"1", b"1;2", b"1,2", b"1-2", b"0", b"x", b"", b"2-1", b";", b"1" * 5000],
    "library_path": [b"/nowhere/library.so", b"", b"libm.so.6", b"plain.onnx"],
    "library_name": [b"/nowhere/library.so", b"libm.so.6"],
    "registration_func_name": [b"NoSuchFunction", b"", b"malloc_no"],
    "CreateMemoryInfo.name": [b"Cpu", b"Cpu", b"Cuda", b"CudaPinned", b"DML", b"nosuch", b"", b"OpenVINO_CPU", b"CUDAExecutionProvider", b"HtpShared", b"QnnHtpShared", b"WebGPU_Buffer", b"WebNN_Tensor", b"Cann", b"CannPinned",
                              b"Hip", b"HipPinned", b"OpenVINO_GPU", b"Dml", b"cpu", b"OpenVINO_RT", b"OpenVINO_RT_NPU", b"Tvm", b"VulkanPinned"],
    "CreateMemoryInfo_V2.name": [b"Cpu", b"mine", b""],
    "run_tag": [b"tag", b""],
    "producer": [b"x"],
    "attr_name": [b"f", b"i", b"s", b"nosuch", b""],
    "CreateOpAttr.name": [b"alpha", b""],
    "operator_name": [b"Relu", b"MatMul", b"Add", b"NoSuch", b"", b"Identity", b"Constant"],
    "domain_name": [b"", b"", b"", b"ai.onnx", b"com.microsoft", b"nosuch"],
    "node_name": [b"node", b"", b"another"],
    "op_name": [b"Relu", b"MatMul", b"NoSuch", b""],
    "dst": [b"x"],
    "msg": [b"message", b""],
    "message": [b"client: hello", b""],
    "file_path": [b"file.cc", b"w.bin", b""],
    "func_name": [b"function", b""],
    "filepath": [b"w.bin", b""],
    "compatibility_info": [b"info", b""],
    "registration_name": [b"mine", b"", b"CPUExecutionProvider"],
    "domain_of_value": [b"a"],
    "type_name": [b"b", b""],
    "attribute_name": [b"alpha", b"nosuch", b""],
    "profile_file_prefix": [b"profile", b""],
    "folder": [b"folder", b"/nowhere", b""],
    "graph_optimization": [b"x"],
    "CreateValueInfo.name": [b"x", b"y", b"w", b"z", b"q", b""],
    "AddInitializerToGraph.name": [b"w", b"x", b"q", b""],
    "optimized_model_filepath": [b"optimized.onnx", b"", b"/nowhere/optimized.onnx"],
    "adapter_file_path": [b"lora", b"plain.onnx", b"/nowhere/lora", b"", b"folder"],
    "SetOutputModelPath.path": [b"compiled.onnx", b"/nowhere/compiled.onnx", b"", b"plain.onnx"],
    "SetOutputModelExternalInitializersFile.path": [b"compiled.bin", b"", b"folder/compiled.bin"],
}
TEXTS["model_path"] = TEXTS["path"] = [*[f"{name}.onnx".encode() for name in MODELS], *[b"plain.onnx"] * 20, b"described.onnx", b"/nowhere/model.onnx", b"folder", b""]
TEXTS["RegisterExecutionProviderLibrary.path"] = [b"/nowhere/library.so", b"libm.so.6", b"plain.onnx"]
for _kind in ("float", "int64", "string", "tensor", "Array_float", "Array_int64", "Array_string"):
    TEXTS[f"KernelInfoGetAttribute{'' if 'Array' in _kind else '_'}{_kind}.name"] = [b"f", b"i", b"s", b"fs", b"ints", b"ss", b"t", b"nosuch", b""]

NUMBERS: dict[str, list[int]] = {
    "size_t": [0, 1, 2, 9, 64],
    "int": [-1, 0, 1, 2, 3, 99],
    "int64_t": [-1, 0, 1, 5],
    "bool": [0, 1],
    "uint32_t": [0, 1, 4],
    "int32_t": [-1, 0, 1],
    "OrtOptimizationLevel": [-1, 0, 1, 2, 3, 99, 99, 4],
    "ONNXTensorElementDataType": [1, 1, 1, 7, 7, 8, 9, 0, 2, 11, 10, 16, 14, 17, 22, 24, 26, 27, -1, 99],
    "ONNXType": [0, 1, 2, 2, 3, 3, 4, 5, 6, 99, -1],
    "OrtSparseIndicesFormat": [0, 1, 2, 3],
    "OrtLoggingLevel": [4, 4, 3, 2, 0],
    "OrtAllocatorType": [-1, 0, 1, 2],
    "OrtMemType": [-2, -1, 0, 0, 0, 1],
    "OrtMemoryInfoDeviceType": [0, 0, 1, 2, 3, 99],
    "OrtDeviceMemoryType": [0, 0, 5, 1],
    "OrtOpAttrType": [0, 1, 2, 3, 4, 5, 6, 7, 8, 99],
    "OrtExecutionProviderDevicePolicy": [0, 1, 2, 6, 99],
    "OrtLanguageProjection": [0, 1, 2, 99],
    "OrtErrorCode": [0, 1, 2, 13, 99],
    "OrtExecutionMode": [-1, 0, 1, 2],
    "SetIntraOpNumThreads.intra_op_num_threads": [-1, 0, 1, 1, 2, 3],
    "SetInterOpNumThreads.inter_op_num_threads": [-1, 0, 1, 1, 2, 3],
    "SetGlobalIntraOpNumThreads.intra_op_num_threads": [-1, 0, 1, 1, 2, 3],
    "SetGlobalInterOpNumThreads.inter_op_num_threads": [-1, 0, 1, 1, 2, 3],
    "kind": [0, 1, 2, 99],
    "num_batch": [0, 1, 4],
}

SHAPES: list[list[int]] = [[], [2], [3], [2, 2], [2, 3], [3, 2], [0, 3], [1], [4], [6], [-1], [2, -3], [2, 3, 1], [1 << 40, 1 << 40], [3, 3], [-1, 3], [3, 3], [2, 3]]
STRINGS: list[bytes | None] = [b"a", b"bc", b"", b"x", "é".encode()]


class Probe(operators.Operator):
    """A custom operator, y = x. Calls `look(kind, handle)` with the first kernel info, shape context and kernel context that it gets."""

    def __init__(self, api: Api, look: Callable[[str, int], None]) -> None:
        super().__init__(api, "Probe", [1, 1], [1], self._create, self._compute)
        self.look = look
        self.op.version = 18
        one, newest = operators._VARIADIC(lambda _op: 1), operators._VARIADIC(lambda _op: 2**31 - 1)
        self.infer = operators._COMPUTE(lambda _op, context: self._told(lambda: self.look("OrtShapeInferContext", context)))
        self.later = [self.infer, one, newest]
        for place, function in enumerate(self.later):
            self.op.later[place] = operators.ctypes.cast(function, c_void_p).value

    def _create(self, info: c_void_p) -> None:
        self.look("OrtKernelInfo", info.value or 0)

    def _compute(self, _kernel: Any, context: c_void_p) -> None:
        self.look("OrtKernelContext", context.value or 0)
        given = operators.input_of(self.api, context, 0)
        dims = self.api.shape_and_dtype(self.api.made("GetTensorTypeAndShape", given))[1]
        made = operators.output_of(self.api, context, 0, dims)
        source, target = self.api.made("GetTensorMutableData", given), self.api.made("GetTensorMutableData", made)
        operators.ctypes.memmove(target.value, source.value, self.api.number("GetTensorSizeInBytes", given))


def edited(api: Api) -> dict[str, list[c_void_p]]:
    """Returns handles of a complete model, of a graph that no model has yet, and of a node and values that no graph has yet."""
    editor = Part(api, "GetModelEditorApi", EDITOR)

    def node() -> c_void_p:
        return editor.made("CreateNode", b"Relu", b"", b"node", strings(b"x"), c_size_t(1), strings(b"y"), c_size_t(1), handles(), c_size_t(0))

    graphs = [editor.made("CreateGraph") for _ in range(2)]
    for graph in graphs:
        editor.call("AddNodeToGraph", graph, node())
        for name, place in ((b"x", "SetGraphInputs"), (b"y", "SetGraphOutputs")):
            editor.call(place, graph, handles(value_info(api, editor, name, [2, 3])), c_size_t(1))
    ready = editor.made("CreateModel", strings(b""), (operators.c_int * 1)(21), c_size_t(1))
    editor.call("AddGraphToModel", ready, graphs[0])
    empty = editor.made("CreateModel", strings(b""), (operators.c_int * 1)(21), c_size_t(1))
    data = MODELS["relu"]
    session = editor.made("CreateModelEditorSessionFromArray", api.env, data, c_size_t(len(data)), api.options())
    values = [value_info(api, editor, name, [2, 3]) for name in (b"x", b"y")]
    return {"OrtModel": [ready, empty], "OrtGraph": graphs[1:], "OrtNode": [node()], "OrtValueInfo": values, "OrtSession": [session]}


COMPILER = [name for table, name, _, _ in functions() if table == "compiler"]


def compiling(api: Api) -> c_void_p:
    """Makes options for compiling a model."""
    compiler, data = Part(api, "GetCompileApi", COMPILER), MODELS["plain"]
    options = compiler.made("CreateModelCompilationOptionsFromSessionOptions", api.env, api.options())
    compiler.call("ModelCompilationOptions_SetInputModelFromBuffer", options, data, c_size_t(len(data)))
    compiler.call("ModelCompilationOptions_SetOutputModelPath", options, b"compiled.onnx")
    return options


def starting(api: Api, probe: Probe) -> dict[str, list[c_void_p]]:
    """Returns the handles that sequences start with, by type."""
    session, threads = api.session(MODELS["described"]), api.options()
    api.call("SetIntraOpNumThreads", threads, 2)
    told = api.options()
    api.call("AddSessionConfigEntry", told, b"session.record_ep_graph_assignment_info", b"1")
    api.call("AddSessionConfigEntry", told, b"session.disable_prepacking", b"1")
    values = [api.value(np.arange(6, dtype=np.float32).reshape(2, 3)), api.value(np.array(["a", "bc"], object)), api.value(np.zeros((0, 3), np.int64)), api.value(np.array(7, np.int64))]
    for kind, parts in ((2, [values[0], values[0]]), (3, [api.value(np.array([1, 2], np.int64)), api.value(np.array([0.5, 2], np.float32))])):
        made = c_void_p()
        api.call("CreateValue", handles(*parts), c_size_t(2), kind, operators.byref(made))
        values.append(made)
    values.append(api.made("CreateSparseTensorAsOrtValue", api.allocator, (operators.c_int64 * 2)(3, 3), c_size_t(2), 1))
    values += [api.value(W), api.value(np.array([1, 2], np.int64)), api.value(np.array([True, False]))]
    types = [api.made("GetTypeInfo", value) for value in values[:7]] + [api.made("SessionGetInputTypeInfo", api.session(MODELS["optional"]), c_size_t(0))]
    made, probed = edited(api), probe.options(DOMAIN)
    infos = [api.made("GetTensorTypeAndShape", value) for value in values[:4]] + [api.made("CreateTensorTypeAndShapeInfo")]
    return {
        **made,
        "OrtSession": [session, *made["OrtSession"], api.session(MODELS["probe"], probed), api.session(MODELS["described"], told)],
        "OrtLoraAdapter": [api.made("CreateLoraAdapterFromArray", ADAPTER, c_size_t(len(ADAPTER)), c_void_p())],
        "OrtModelCompilationOptions": [compiling(api)],
        "OrtSessionOptions": [api.options(), probed, threads, told],
        "OrtRunOptions": [api.made("CreateRunOptions")],
        "OrtEnv": [api.env],
        "OrtValue": values,
        "OrtTypeInfo": types,
        "OrtTensorTypeAndShapeInfo": infos,
        "OrtMemoryInfo": [api.memory, api.made("CreateCpuMemoryInfo", 1, -1), api.made("CreateMemoryInfo", b"Cuda", 0, 1, 0)],
        "OrtAllocator": [api.allocator],
        "OrtModelMetadata": [api.made("SessionGetModelMetadata", session)],
        "OrtIoBinding": [api.made("CreateIoBinding", session)],
        "OrtThreadingOptions": [api.made("CreateThreadingOptions")],
        "OrtCustomOpDomain": [probe.domain],
        "OrtKeyValuePairs": [],
    }

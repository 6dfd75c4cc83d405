"""Tests that failing calls of libonnxruntime.so.1 return onnxruntime's status codes, and messages with the words that programs search
for."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable
from ctypes import byref, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper
from onnxruntime_c import EDITOR, LIBRARY, Api, Part, StatusError, handles, model, strings, tensor, value_info

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="libonnxruntime.so.1 is not built; set TREADLE_ORT_LIBRARY")

FAIL, INVALID_ARGUMENT, NO_SUCHFILE, INVALID_PROTOBUF, INVALID_GRAPH = 1, 2, 3, 7, 10


def relu() -> bytes:
    return model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", 1, ["rows", 3])], [tensor("y", 1, ["rows", 3])])


def unread() -> bytes:
    return model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", 1, [2]), tensor("u", 1, [3])], [tensor("y", 1, [2])])


def bodies() -> bytes:
    """Returns a model: y = -x if c, otherwise x - k; then a loop adds j to it t times."""
    then, other = (helper.make_graph([helper.make_node(op, reads, [op])], op, [], [tensor(op, 1, [2])]) for op, reads in (("Neg", ["x"]), ("Sub", ["x", "k"])))
    step = helper.make_graph([helper.make_node("Add", ["a", "j"], ["b"]), helper.make_node("Identity", ["go"], ["on"])], "step", [tensor("i", 7, []), tensor("go", 9, []), tensor("a", 1, [2])],
                             [tensor("on", 9, []), tensor("b", 1, [2])])
    nodes = [helper.make_node("If", ["c"], ["z"], then_branch=then, else_branch=other), helper.make_node("Loop", ["t", "", "z"], ["y"], body=step)]
    return model(nodes, [tensor("x", 1, [2]), tensor("c", 9, []), tensor("t", 7, []), tensor("k", 1, [2]), tensor("j", 1, ["n"])], [tensor("y", 1, [2])])


def run_bodies(api: Api, c: bool, t: int, **more: np.ndarray) -> list:
    return api.run_arrays(api.session(bodies()), {"x": ones(2), "c": np.array(c), "t": np.array(t), **more}, ["y"])[0].tolist()


def node(op_type: str, domain: str = "", domains: tuple[str, ...] = (), **attributes: object) -> bytes:
    return model([helper.make_node(op_type, ["x"], ["y"], domain=domain, **attributes)], [tensor("x", 1, [2])], [tensor("y", 1, [2])], domains=domains)


def run(api: Api, feeds: dict[str, np.ndarray], outputs: list[str] = ["y"]) -> list:  # noqa: B006
    return api.run_arrays(api.session(relu()), feeds, outputs)


def terminated(api: Api) -> None:
    options = api.made("CreateRunOptions")
    api.call("RunOptionsSetTerminate", options)
    api.run_arrays(api.session(relu()), {"x": ones(2, 3)}, ["y"], options)


def null_value(api: Api) -> None:
    api.call("Run", api.session(relu()), c_void_p(), strings(b"x"), handles(None), c_size_t(1), strings(b"y"), c_size_t(1), handles(None))


def bound(api: Api, inputs: dict[str, np.ndarray], outputs: list[str]) -> None:
    session = api.session(relu())
    binding = api.made("CreateIoBinding", session)
    for name, array in inputs.items():
        api.call("BindInput", binding, name.encode(), api.value(array))
    for name in outputs:
        api.call("BindOutputToDevice", binding, name.encode(), api.memory)
    api.call("RunWithBinding", session, c_void_p(), binding)


def ones(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


class EnvironmentOptions(ctypes.Structure):
    _fields_ = [("version", c_uint32), ("level", c_int32), ("id", c_char_p), ("function", c_void_p), ("param", c_void_p), ("threading", c_void_p), ("entries", c_void_p)]


def environment(api: Api, version: int, level: int = 3, log_id: bytes | None = b"id") -> c_void_p:
    return api.made("CreateEnvWithOptions", byref(EnvironmentOptions(version, level, log_id, None, None, None, None)))


def added_twice(api: Api) -> None:
    options, value = api.options(), api.value(ones(3, 2))
    for _ in range(2):
        api.call("AddInitializer", options, b"w", value)


def without_inputs() -> bytes:
    return model([helper.make_node("Constant", [], ["y"], value=numpy_helper.from_array(ones(2)))], [], [tensor("y", 1, [2])])


def room_for(api: Api, function: str, room: int) -> None:
    api.call(function, api.session(unread()), (c_void_p * 4)(), c_size_t(room))


def registered(api: Api, info: c_void_p, environment_too: bool = True) -> None:
    api.call("CreateAndRegisterAllocator", api.made("CreateEnv", 4, b"one") if environment_too else c_void_p(), info, c_void_p())


def arena(api: Api, key: bytes, value: int) -> c_void_p:
    return api.made("CreateArenaCfgV2", strings(key), (c_size_t * 1)(value), c_size_t(1))


def wrong_arena(api: Api) -> None:
    api.call("CreateAndRegisterAllocator", api.made("CreateEnv", 4, b"one"), api.memory, arena(api, b"arena_extend_strategy", 7))


def unregistered(api: Api) -> None:
    api.call("UnregisterAllocator", api.env, api.memory)


def cancelled(api: Api) -> None:
    options = api.options()
    api.call("SessionOptionsSetLoadCancellationFlag", options, ctypes.c_bool(True))
    api.session(relu(), options)


def external(api: Api) -> None:
    made = numpy_helper.from_array(ones(2), "w")
    made.ClearField("raw_data")
    made.data_location = 1
    made.external_data.add(key="location", value="no_such_file.bin")
    api.session(model([helper.make_node("Add", ["x", "w"], ["y"])], [tensor("x", 1, [2])], [tensor("y", 1, [2])], [made]))


COMPILER = """Release Create SetInputModelPath SetInputModelFromBuffer SetOutputModelPath SetOutputModelExternalInitializersFile SetOutputModelBuffer SetEpContextEmbedMode
CompileModel SetFlags SetEpContextBinaryInformation SetGraphOptimizationLevel SetOutputModelWriteFunc SetOutputModelGetInitializerLocationFunc""".split()


def edited(api: Api, opsets: dict[bytes, int] | list[tuple[bytes, int]], op_type: bytes = b"Relu", domain: bytes = b"", source: bytes = b"x") -> c_void_p:
    """Makes a session from a model that the client builds."""
    editor = Part(api, "GetModelEditorApi", EDITOR)
    graph = editor.made("CreateGraph")
    made = editor.made("CreateNode", op_type, domain, b"node", strings(source), c_size_t(1), strings(b"y"), c_size_t(1), handles(), c_size_t(0))
    editor.call("AddNodeToGraph", graph, made)
    editor.call("SetGraphInputs", graph, handles(value_info(api, editor, b"x", [2])), c_size_t(1))
    editor.call("SetGraphOutputs", graph, handles(value_info(api, editor, b"y", [2])), c_size_t(1))
    pairs = list(opsets.items()) if isinstance(opsets, dict) else opsets
    put_together = editor.made("CreateModel", strings(*[domain for domain, _ in pairs]), (ctypes.c_int * max(len(pairs), 1))(*[version for _, version in pairs]), c_size_t(len(pairs)))
    editor.call("AddGraphToModel", put_together, graph)
    return editor.made("CreateSessionFromModel", api.env, put_together, api.options())


def named(api: Api, name: bytes | None) -> c_void_p:
    editor = Part(api, "GetModelEditorApi", EDITOR)
    return editor.made("CreateValueInfo", c_char_p(name), editor.made("CreateTensorTypeInfo", api.made("CreateTensorTypeAndShapeInfo")))


def editing(api: Api, data: bytes | None = None) -> tuple[Part, c_void_p]:
    editor, data = Part(api, "GetModelEditorApi", EDITOR), data or relu()
    return editor, editor.made("CreateModelEditorSessionFromArray", api.env, data, c_size_t(len(data)), api.options())


def opset_of(api: Api, domain: bytes) -> None:
    editor, session = editing(api)
    editor.call("SessionGetOpsetForDomain", session, domain, byref(ctypes.c_int()))


def applied(api: Api) -> None:
    editor = Part(api, "GetModelEditorApi", EDITOR)
    made = editor.made("CreateModel", strings(b""), (ctypes.c_int * 1)(21), c_size_t(1))
    editor.call("AddGraphToModel", made, editor.made("CreateGraph"))
    editor.call("ApplyModelToModelEditorSession", api.session(relu()), made)


def compiled(api: Api, *settings: tuple, path: str | None = None) -> None:
    compiler, data = Part(api, "GetCompileApi", COMPILER), relu()
    options = compiler.made("Create", api.env, api.options())
    if path:
        compiler.call("SetInputModelPath", options, path.encode())
    else:
        compiler.call("SetInputModelFromBuffer", options, data, c_size_t(len(data)))
    for name, *arguments in settings:
        compiler.call(name, options, *arguments)
    compiler.call("CompileModel", api.env, options)


def set_compiler(api: Api, name: str, *arguments: object) -> None:
    compiler = Part(api, "GetCompileApi", COMPILER)
    compiler.call(name, compiler.made("Create", api.env, api.options()), *arguments)


def write_fails(api: Api) -> None:
    write = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_size_t)(lambda *_: api.call("CreateStatus", 11, b"no space", result=c_void_p))
    compiled(api, ("SetOutputModelWriteFunc", write, c_void_p()))


# For each faulty call: the call, its code, and words that both messages contain.
FAULTS: dict[str, tuple[Callable[[Api], object], int, str]] = {
    "an input is missing": (lambda api: run(api, {}), FAIL, "Missing Input: x"),
    "an input of the branch that runs is missing": (lambda api: run_bodies(api, False, 0), FAIL, "Missing Input: k"),
    "an input of a loop that runs is missing": (lambda api: run_bodies(api, True, 1), FAIL, "Missing Input: j"),
    "an unknown input": (lambda api: run(api, {"x": ones(2, 3), "z": ones(2)}), INVALID_ARGUMENT, "Invalid input name: z"),
    "an input without a name": (lambda api: run(api, {"": ones(2, 3)}), INVALID_ARGUMENT, "input name cannot be empty"),
    "an input of null": (null_value, INVALID_ARGUMENT, "NULL input supplied for input x"),
    "an input of another dtype": (
        lambda api: run(api, {"x": ones(2, 3, dtype=np.float64)}), INVALID_ARGUMENT, "Unexpected input data type. Actual: (tensor(double)) , expected: (tensor(float))"),
    "an input of another rank": (lambda api: run(api, {"x": ones(3)}), INVALID_ARGUMENT, "Invalid rank for input: x Got: 1 Expected: 2 Please fix either the inputs/outputs or the model"),
    "an input of another extent": (
        lambda api: run(api, {"x": ones(2, 4)}), INVALID_ARGUMENT,
        "Got invalid dimensions for input: x for the following indices\n index: 1 Got: 4 Expected: 3\n Please fix either the inputs/outputs or the model"),
    "an unread input of another extent": (
        lambda api: api.run_arrays(api.session(unread()), {"x": ones(2), "u": ones(4)}, ["y"]), INVALID_ARGUMENT, "Got invalid dimensions for input: u"),
    "an unknown output": (lambda api: run(api, {"x": ones(2, 3)}, ["q"]), INVALID_ARGUMENT, "Invalid output name: q"),
    "an output without a name": (lambda api: run(api, {"x": ones(2, 3)}, [""]), INVALID_ARGUMENT, "output name cannot be empty"),
    "no output": (lambda api: run(api, {"x": ones(2, 3)}, []), INVALID_ARGUMENT, "At least one output should be requested."),
    "terminated before it ran": (terminated, FAIL, "Exiting due to terminate flag being set to true"),
    "a binding without an input": (lambda api: bound(api, {}, ["y"]), FAIL, "Missing Input: x"),
    "a binding without an output": (lambda api: bound(api, {"x": ones(2, 3)}, []), INVALID_ARGUMENT, "At least one output should be requested."),
    "a binding of an unknown input": (lambda api: bound(api, {"q": ones(2, 3)}, ["y"]), FAIL, "Failed to find input name in the mapping: q"),
    "a binding of an unknown output": (lambda api: bound(api, {"x": ones(2, 3)}, ["q"]), INVALID_ARGUMENT, "Invalid output name: q"),
    "a binding of another dtype": (lambda api: bound(api, {"x": ones(2, 3, dtype=np.int64)}, ["y"]), INVALID_ARGUMENT, "Unexpected input data type. Actual: (tensor(int64))"),
    "no such file": (lambda api: api.session("/nowhere/model.onnx"), NO_SUCHFILE, "Load model from /nowhere/model.onnx failed"),
    "opset 0": (lambda api: edited(api, {b"": 0}), INVALID_GRAPH, "This is an invalid model"),
    "no options for no files": (
        lambda api: api.call("AddExternalInitializersFromFilesInMemory", c_void_p(), strings(), handles(), (c_size_t * 1)(), c_size_t(0)), INVALID_ARGUMENT, "ptions"),
    "no such .ort file": (lambda api: api.session("/nowhere/model.ort"), INVALID_ARGUMENT, ""),
    "no bytes of a model": (lambda api: api.call("CreateSessionFromArray", api.env, c_void_p(), c_size_t(4), loud_options(api), byref(c_void_p())), INVALID_ARGUMENT, "Model data pointer is null"),
    "a folder": (lambda api: api.session(str(Path(__file__).parent)), INVALID_ARGUMENT, "The model path is a directory"),
    "bytes that are no model": (lambda api: api.session(b"\0\1\2 no model"), INVALID_PROTOBUF, ""),
    "bytes without a graph": (lambda api: api.session(b"\x08\x08"), INVALID_ARGUMENT, "No graph was found in the protobuf"),
    "bytes without an IR version": (lambda api: api.session(relu()[2:]), FAIL, ""),
    "no bytes": (lambda api: api.session(b""), INVALID_ARGUMENT, "No graph was found in the protobuf"),
    "an operator that ONNX has not": (lambda api: api.session(node("NoSuch")), INVALID_GRAPH, "No Op registered for NoSuch"),
    "an operator that another domain has not": (lambda api: api.session(node("NoSuch", "foo", ("foo",))), FAIL, "is not a registered function/op"),
    "an operator of a domain that is not imported": (lambda api: api.session(node("NoSuch", "foo")), INVALID_GRAPH, "No opset import for domain 'foo'"),
    "an attribute that is not there": (lambda api: api.session(node("Cast")), INVALID_GRAPH, ""),
    "shapes that do not fit": (
        lambda api: api.session(model([helper.make_node("MatMul", ["x", "z"], ["y"])], [tensor("x", 1, [1, 2]), tensor("z", 1, [3, 1])], [tensor("y", 1, [1, 1])])), FAIL, ""),
    "external data that is not there": (external, FAIL, ""),
    "loading that is cancelled": (cancelled, 12, "canceled due to user request"),
    "an index beyond the inputs": (lambda api: api.made("SessionGetInputTypeInfo", api.session(relu()), c_size_t(9)), FAIL, "out of index"),
    "a name beyond the outputs": (lambda api: api.text("SessionGetOutputName", api.session(relu()), c_size_t(9)), FAIL, "index"),
    "a library that is not there": (lambda api: api.call("RegisterCustomOpsLibrary_V2", api.options(), b"/nowhere/lib.so"), FAIL, "Failed to load library /nowhere/lib.so with error: "),
    "a library without operators": (lambda api: api.call("RegisterCustomOpsLibrary_V2", api.options(), b"libm.so.6"), FAIL, "Failed to get symbol RegisterCustomOps with error: "),
    "a function that is not there": (lambda api: api.call("RegisterCustomOpsUsingFunction", api.options(), b"nosuch"), FAIL, "Failed to get symbol nosuch with error: "),
    "an adapter that is not there": (lambda api: api.made("CreateLoraAdapter", b"/nowhere/adapter", c_void_p()), INVALID_ARGUMENT, ""),
    "bytes that are no adapter": (
        lambda api: api.made("CreateLoraAdapterFromArray", b"abc", c_size_t(3), c_void_p()), FAIL, "The buffer does not appear to be a valid lora parameter format"),
    "an unknown provider": (
        lambda api: api.call("SessionOptionsAppendExecutionProvider", api.options(), b"NoSuch", c_void_p(), c_void_p(), c_size_t(0)), INVALID_ARGUMENT, "Unknown provider name 'NoSuch'"),
    "a provider that is not built in": (
        lambda api: api.call("SessionOptionsAppendExecutionProvider", api.options(), b"XNNPACK", c_void_p(), c_void_p(), c_size_t(0)), INVALID_ARGUMENT,
        "XNNPACK execution provider is not supported in this build."),
    "a provider's library that is not there": (lambda api: api.call("SessionOptionsAppendExecutionProvider_TensorRT_V2", api.options(), ctypes.create_string_buffer(1024)), FAIL, ""),
    "an environment of an old version": (
        lambda api: environment(api, 23), INVALID_ARGUMENT, "CreateEnvWithOptions requires a OrtEnvCreationOptions argument with the version set equal to ORT_API_VERSION"),
    "an environment of an unknown level": (lambda api: environment(api, 29, level=9), INVALID_ARGUMENT, "with a valid logging severity level value from the OrtLoggingLevel enumeration"),
    "an environment without a log id": (lambda api: environment(api, 29, log_id=None), INVALID_ARGUMENT, "with a valid (non-null) log identifier string"),
    "an environment of null": (lambda api: api.made("CreateEnvWithOptions", c_void_p()), INVALID_ARGUMENT, "requires a valid (non-null) OrtEnvCreationOptions argument"),
    "a key that is too long": (lambda api: api.call("AddSessionConfigEntry", api.options(), b"k" * 1025, b"1"), INVALID_ARGUMENT, "Config key is empty or longer than maximum length 1024"),
    "a key of a run that is too long": (
        lambda api: api.call("AddRunConfigEntry", api.made("CreateRunOptions"), b"k" * 1025, b"1"), INVALID_ARGUMENT, "Config key is empty or longer than maximum length 1024"),
    "an empty key": (lambda api: api.call("AddSessionConfigEntry", api.options(), b"", b"1"), INVALID_ARGUMENT, "Config key is empty or longer than maximum length 1024"),
    "a key that is not there": (lambda api: api.number("GetSessionConfigEntry", api.options(), b"none", c_void_p()), INVALID_ARGUMENT, "Session config entry 'none' was not found."),
    "an execution mode that there is not": (lambda api: api.call("SetSessionExecutionMode", api.options(), 2), INVALID_ARGUMENT, "execution_mode is not valid"),
    "a level that there is not": (lambda api: api.call("SetSessionGraphOptimizationLevel", api.options(), 4), INVALID_ARGUMENT, "graph_optimization_level is not valid"),
    "an initializer that is added twice": (added_twice, INVALID_ARGUMENT, "An OrtValue for this name has already been added: w"),
    "memory that has no name": (lambda api: api.made("CreateMemoryInfo", b"NoSuch", 0, 0, 0), INVALID_ARGUMENT, "Specified device is not supported. Try CreateMemoryInfo_V2."),
    "the devices of no inputs": (
        lambda api: api.call("SessionGetEpDeviceForInputs", api.session(without_inputs()), (c_void_p * 1)(), c_size_t(0)), INVALID_ARGUMENT, "Invalid argument provided to SessionGetEpDeviceForInputs"),
    "no room for the inputs' devices": (lambda api: room_for(api, "SessionGetEpDeviceForInputs", 1), INVALID_ARGUMENT, "Number of inputs 2 exceeds the provided size of 1"),
    "no room for the inputs' memory": (lambda api: room_for(api, "SessionGetMemoryInfoForInputs", 1), INVALID_ARGUMENT, "Number of inputs 2 exceeds the provided size of 1"),
    "an allocator of other memory": (
        lambda api: api.made("CreateAllocator", api.session(relu()), api.made("CreateMemoryInfo", b"Cuda", 0, 0, 0)), INVALID_ARGUMENT, "No requested allocator available"),
    "an arena of other memory": (lambda api: registered(api, api.made("CreateMemoryInfo", b"Cuda", 1, 0, 0)), INVALID_ARGUMENT, "Only CPU devices are supported"),
    "an arena in no environment": (lambda api: registered(api, api.memory, environment_too=False), INVALID_ARGUMENT, "Env is null"),
    "an arena of no memory": (lambda api: registered(api, c_void_p()), INVALID_ARGUMENT, "OrtMemoryInfo is null"),
    "an arena's key that there is not": (lambda api: arena(api, b"nosuch", 1), INVALID_ARGUMENT, "Invalid key found: nosuch"),
    "an arena's strategy that there is not": (wrong_arena, INVALID_ARGUMENT, "Invalid configuration value was provided"),
    "an allocator that is not registered": (unregistered, INVALID_ARGUMENT, "No allocator for this device has been registered for sharing."),
    "a null allocator": (lambda api: api.call("RegisterAllocator", api.env, c_void_p()), INVALID_ARGUMENT, "Provided allocator is null"),
    "memory of the CPU's own": (
        lambda api: api.call("ReleaseSharedAllocator", api.env, first_device(api), 0), INVALID_ARGUMENT, "Invalid memory type for OrtEpDevice."),
}


FAULTS |= {
    "a model without ONNX's opset": (lambda api: edited(api, {}), INVALID_ARGUMENT, "The opset for the ONNX domain must be explicitly specified."),
    "a model of another domain's opset alone": (lambda api: edited(api, {b"com.microsoft": 1}), INVALID_ARGUMENT, "The opset for the ONNX domain must be explicitly specified."),
    "a node of an unknown domain": (lambda api: edited(api, {b"": 18}, domain=b"foo"), INVALID_GRAPH, "No opset import for domain 'foo'"),
    "a node of a domain without operators": (lambda api: edited(api, {b"": 18, b"foo": 1}, domain=b"foo"), FAIL, "is not a registered function/op"),
    "a node of no operator": (lambda api: edited(api, {b"": 18}, op_type=b"NoSuch"), INVALID_GRAPH, "No Op registered for NoSuch"),
    "an opset that there is not": (lambda api: edited(api, {b"": 99}), FAIL, ""),
    "a negative extent": (
        lambda api: api.call("SetDimensions", api.made("CreateTensorTypeAndShapeInfo"), (c_int64 * 1)(-2), c_size_t(1)), INVALID_ARGUMENT,
        "dim_values must be -1 (symbolic dimension) or larger"),
    "a value without a name": (lambda api: named(api, b""), INVALID_ARGUMENT, "name cannot be null or empty string"),
    "a value of a null name": (lambda api: named(api, None), INVALID_ARGUMENT, "name cannot be null or empty string"),
    "bytes to edit that are no model": (lambda api: editing(api, b"\0\1\2"), INVALID_PROTOBUF, ""),
    "the opset of a domain that there is not": (lambda api: opset_of(api, b"foo"), FAIL, "Domain not used by model"),
    "a session that is not under edit": (applied, 8, "This session has already been initialized"),
    "a run under edit": (lambda api: api.run_arrays(editing(api)[1], {"x": ones(2, 3)}, ["y"]), FAIL, "Session not initialized"),
    "a model to compile that is not there": (lambda api: compiled(api, path="/nowhere/m.onnx"), INVALID_ARGUMENT, "Input model path does not exist"),
    "a compiled model that goes nowhere": (lambda api: compiled(api), FAIL, "valid location (e.g., file or buffer) for the output model"),
    "nothing that is compiled": (lambda api: compiled(api, ("SetOutputModelPath", b"/nowhere/m.onnx"), ("SetFlags", c_uint32(1))), FAIL, "Unable to compile any nodes"),
    "a compiled model that is there": (
        lambda api: compiled(api, ("SetOutputModelPath", __file__.encode()), ("SetFlags", c_uint32(2))), FAIL, "Failed to generate EP context model since the file"),
    "a compiled model in no folder": (lambda api: compiled(api, ("SetOutputModelPath", b"/nowhere/m.onnx")), INVALID_ARGUMENT, "failed: No such file or directory"),
    "a function that does not take the compiled model": (write_fails, 11, "no space"),
    "a compiler's level that there is not": (lambda api: set_compiler(api, "SetGraphOptimizationLevel", 4), INVALID_ARGUMENT, "graph_optimization_level with value 4 is invalid"),
    "a compiler's empty input": (lambda api: set_compiler(api, "SetInputModelPath", b""), INVALID_ARGUMENT, "Invalid input model: path string is empty"),
    "a compiler's input of no bytes": (lambda api: set_compiler(api, "SetInputModelFromBuffer", b"a", c_size_t(0)), INVALID_ARGUMENT, "Invalid input model: data size is 0"),
    "a compiler's empty output": (lambda api: set_compiler(api, "SetOutputModelPath", b""), INVALID_ARGUMENT, "Invalid output model path: path is empty"),
    "a compiler's empty data file": (
        lambda api: set_compiler(api, "SetOutputModelExternalInitializersFile", b"", c_size_t(0)), INVALID_ARGUMENT, "Invalid external initializer file: path is empty"),
    "a compiler's folder that is not there": (
        lambda api: set_compiler(api, "SetEpContextBinaryInformation", b"/nowhere", b"m"), INVALID_ARGUMENT, "output_dir is not a valid directory"),
    "a compiler's null function": (lambda api: set_compiler(api, "SetOutputModelWriteFunc", c_void_p(), c_void_p()), INVALID_ARGUMENT, "OrtWriteBufferFunc function for output model is null"),
    "nodes whose assignment was not asked for": (
        lambda api: api.call("Session_GetEpGraphAssignmentInfo", api.session(relu()), byref(c_void_p()), byref(c_size_t())), FAIL,
        "'session.record_ep_graph_assignment_info' must be set to \"1\""),
}


def chain(*nodes: tuple, initializers: tuple = ()) -> bytes:
    return model([helper.make_node(*each) for each in nodes], [tensor("x", 1, [2])], [tensor("y", 1, [2])], initializers)


def beside(folder: str, offset: int, length: int) -> Callable[[Api], object]:
    """Makes a session of a model whose external data exceed their file of 8 bytes."""

    def made(api: Api) -> None:
        Path(folder, "two.bin").write_bytes(bytes(8))
        w = numpy_helper.from_array(ones(2), "w")
        w.ClearField("raw_data")
        w.data_location = 1
        for key, value in (("location", "two.bin"), ("offset", offset), ("length", length)):
            w.external_data.add(key=key, value=str(value))
        path = Path(folder, "model.onnx")
        path.write_bytes(model([helper.make_node("Add", ["x", "w"], ["y"])], [tensor("x", 1, [2])], [tensor("y", 1, [2])], [w]))
        api.session(str(path))

    return made


def entry(key: bytes, value: bytes) -> Callable[[Api], object]:
    return lambda api: api.call("AddSessionConfigEntry", api.options(), key, value)


def logged(api: Api, level: int) -> c_void_p:
    options = api.options()
    api.call("SetSessionLogSeverityLevel", options, level)
    return options


def run_logged(api: Api, level: int) -> None:
    options = api.made("CreateRunOptions")
    api.call("RunOptionsSetRunLogSeverityLevel", options, level)
    api.run_arrays(api.session(relu()), {"x": ones(2, 3)}, ["y"], options)


def text_in(api: Api, index: int, *, of: str = "text") -> None:
    value = api.value(np.array(["a", "bc"], object) if of == "text" else ones(2))
    api.call("FillStringTensorElement", value, b"x", c_size_t(index))


def text_of_sequence(api: Api) -> None:
    out = c_void_p()
    api.call("CreateValue", handles(api.value(ones(2))), c_size_t(1), 2, byref(out))
    api.number("GetStringTensorDataLength", out)


TEMPORARY = tempfile.mkdtemp()
FAULTS |= {
    "a graph with a cycle": (lambda api: api.session(chain(("Add", ["x", "y"], ["z"]), ("Relu", ["z"], ["y"]))), FAIL, "This is an invalid model. Error: the graph"),
    "a name that two nodes make": (lambda api: api.session(chain(("Relu", ["x"], ["y"]), ("Neg", ["x"], ["y"]))), FAIL, "This is an invalid model. Error: "),
    "operands of two dtypes": (
        lambda api: api.session(model([helper.make_node("Add", ["x", "z"], ["y"])], [tensor("x", 1, [2]), tensor("z", 7, [2])], [tensor("y", 1, [2])])), FAIL,
        "Type Error: Type parameter (T) of Optype (Add) bound to different types (tensor(float) and tensor(int64) in node ("),
    "a dtype that an operator does not take": (lambda api: api.session(model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", 9, [2])], [tensor("y", 9, [2])])), INVALID_GRAPH,
                                                "This is an invalid model. Type Error: Type 'tensor(bool)' of input parameter ("),
    "more operands than an operator has": (lambda api: api.session(chain(("Relu", ["x", "x"], ["y"]))), INVALID_GRAPH, "This is an invalid model. "),
    "an attribute that an operator has not": (lambda api: api.session(node("Relu", nosuch=1)), INVALID_GRAPH, "Unrecognized attribute: nosuch for operator Relu"),
    "an attribute of another type": (lambda api: api.session(node("Softmax", axis=0.5)), INVALID_GRAPH, "This is an invalid model. "),
    "an output of another dtype than is declared": (
        lambda api: api.session(model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", 1, [2])], [tensor("y", 7, [2])])), FAIL, "Type Error: "),
    "a value that nothing makes": (lambda api: api.session(chain(("Add", ["x", "q"], ["y"]))), INVALID_ARGUMENT, "Invalid model. Node input"),
    "a file in memory that is given twice": (
        lambda api: api.call("AddExternalInitializersFromFilesInMemory", api.options(), strings(b"./a", b"a"), strings(b"x", b"x"), (c_size_t * 2)(1, 1), c_size_t(2)), INVALID_ARGUMENT,
        "An entry for this name has already been added: a"),
    "external data beyond the file": (beside(TEMPORARY, 4, 8), FAIL, ""),
    "external data of another size": (beside(TEMPORARY, 0, 4), FAIL, ""),
    "a session's log level that there is not": (lambda api: api.session(relu(), logged(api, 9)), FAIL, ""),
    "a run's log level that there is not": (lambda api: run_logged(api, 9), FAIL, ""),
    "a log level that there is not, to edit": (
        lambda api: Part(api, "GetModelEditorApi", EDITOR).made("CreateModelEditorSessionFromArray", api.env, relu(), c_size_t(len(relu())), logged(api, 9)), FAIL, ""),
    "a folder to edit": (lambda api: Part(api, "GetModelEditorApi", EDITOR).made("CreateModelEditorSession", api.env, TEMPORARY.encode(), api.options()), INVALID_ARGUMENT, ""),
    "a value of an entry that is too long": (entry(b"a.key", b"v" * 8193), INVALID_ARGUMENT, "Config value is longer than maximum length: 8192"),
    "an entry that is no number": (entry(b"session.intra_op_num_threads", b"two"), INVALID_ARGUMENT, "value for 'session.intra_op_num_threads' must be a base-10 int32; got 'two'"),
    "an entry that is no flag": (entry(b"session.enable_mem_pattern", b"no"), INVALID_ARGUMENT, "must be a boolean ('0'/'1' or 'true'/'false'); got 'no'"),
    "an entry that is no mode": (entry(b"session.execution_mode", b"0"), INVALID_ARGUMENT, "must be 'sequential' or 'parallel'; got '0'"),
    "an entry that is no level": (entry(b"session.graph_optimization_level", b"99"), INVALID_ARGUMENT, "disable_all/enable_basic/enable_extended/enable_layout/enable_all; got '99'"),
    "an entry of no options": (lambda api: api.call("AddSessionConfigEntry", c_void_p(), b"a", b"1"), INVALID_ARGUMENT, ""),
    "threads of no options": (lambda api: api.call("SetGlobalIntraOpNumThreads", c_void_p(), 1), INVALID_ARGUMENT, "OrtThreadingOptions"),
    "no devices to append": (
        lambda api: api.call("SessionOptionsAppendExecutionProvider_V2", api.options(), api.env, handles(), c_size_t(0), strings(), strings(), c_size_t(0)), INVALID_ARGUMENT,
        "Must provide one or more OrtEpDevice instances."),
    "an empty option of a provider": (
        lambda api: api.call("SessionOptionsAppendExecutionProvider", api.options(), b"CPU", strings(b""), strings(b"1"), c_size_t(1)), INVALID_ARGUMENT,
        "Provider options key/value cannot be empty"),
    "an empty option of a provider, before one of that name": (
        lambda api: api.call("SessionOptionsAppendExecutionProvider", api.options(), b"CPU", strings(b"a", b"a"), strings(b"", b"1"), c_size_t(2)), INVALID_ARGUMENT,
        "Provider options key/value cannot be empty"),
    "a text beyond a tensor": (lambda api: text_in(api, 2), INVALID_ARGUMENT, "element index is out of bounds"),
    "a text in a tensor of numbers": (lambda api: text_in(api, 0, of="numbers"), FAIL, "Tensor type mismatch"),
    "the texts of a sequence": (text_of_sequence, 9, "This API supports Tensors or SparseTensors"),
    "a tensor of negative extents": (lambda api: api.made("CreateTensorAsOrtValue", api.allocator, (c_int64 * 1)(-1), c_size_t(1), 1), FAIL, ""),
    "an attribute of no type": (lambda api: api.made("CreateOpAttr", b"a", (c_int64 * 1)(1), 1, 99), FAIL, "Attribute type not supported"),
    "values that were not filled in": (
        lambda api: api.made("GetSparseTensorValues", api.made("CreateSparseTensorAsOrtValue", api.allocator, (c_int64 * 2)(3, 3), c_size_t(2), 1)), FAIL, ""),
    "no tensors to copy": (lambda api: api.call("CopyTensors", api.env, handles(), handles(), c_void_p(), c_size_t(0)), INVALID_ARGUMENT, "Invalid arguments provided to CopyTensors"),
}


def loud_options(api: Api) -> c_void_p:
    """Sets a log level that does not exist."""
    options = api.options()
    api.call("SetSessionLogSeverityLevel", options, 99)
    return options


def first_device(api: Api) -> c_void_p:
    devices, count = ctypes.POINTER(c_void_p)(), c_size_t()
    api.call("GetEpDevices", api.env, byref(devices), byref(count))
    return c_void_p(devices[0])


def first_cpu(api: Api) -> c_void_p:
    devices, count = ctypes.POINTER(c_void_p)(), c_size_t()
    api.call("GetEpDevices", api.env, byref(devices), byref(count))
    return next(c_void_p(devices[i]) for i in range(count.value) if api.call("EpDevice_EpName", c_void_p(devices[i]), result=ctypes.c_char_p) == b"CPUExecutionProvider")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("library", ["ours", "theirs"])
def test_a_fault_has_its_code_and_words(library: str, fault: str, request: pytest.FixtureRequest) -> None:
    call, code, words = FAULTS[fault]
    with pytest.raises(StatusError) as error:
        call(request.getfixturevalue(library))
    assert (error.value.code, error.value.message) == (code, error.value.message)
    assert words in error.value.message


@pytest.mark.parametrize("library", ["ours", "theirs"])
def test_what_is_no_fault(library: str, request: pytest.FixtureRequest) -> None:
    api: Api = request.getfixturevalue(library)
    session = api.session(relu())
    assert api.text("SessionEndProfiling", session) == ""
    metadata = api.made("SessionGetModelMetadata", session)
    assert api.number("ModelMetadataGetVersion", metadata, kind=c_int64) == 2**63 - 1
    given = api.made("SessionGetModelMetadata", api.session(model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", 1, [2])], [tensor("y", 1, [2])], model_version=0)))
    assert api.number("ModelMetadataGetVersion", given, kind=c_int64) == 0
    for version in (24, 32, 99):
        assert environment(api, version)
    for level in (-1, 5):
        api.call("SetSessionLogSeverityLevel", api.options(), level)
    api.call("AddSessionConfigEntry", api.options(), b"k" * 1024, b"v" * 5000)


@pytest.mark.parametrize("library", ["ours", "theirs"])
def test_options_of_a_device_are_entries_of_the_session(library: str, request: pytest.FixtureRequest) -> None:
    api: Api = request.getfixturevalue(library)
    options, cpu = api.options(), first_cpu(api)
    api.call("SessionOptionsAppendExecutionProvider_V2", options, api.env, (c_void_p * 1)(cpu.value), c_size_t(1), strings(b"nosuch", b"", b"a"), strings(b"1", b"2", b""), c_size_t(3))
    entries = []
    for key in (b"nosuch", b"", b"a"):
        size, room = c_size_t(100), ctypes.create_string_buffer(100)
        api.call("GetSessionConfigEntry", options, b"ep.cpuexecutionprovider." + key, room, byref(size))
        entries.append(room.value)
    assert entries == [b"1", b"2", b""]
    assert api.session(relu(), options)
    api.call("SessionOptionsAppendExecutionProvider", options, b"CPU", strings(b"named"), strings(b"3"), c_size_t(1))
    size, room = c_size_t(100), ctypes.create_string_buffer(100)
    api.call("GetSessionConfigEntry", options, b"ep.cpuexecutionprovider.named", room, byref(size))
    assert room.value == b"3"


def unread_cases() -> dict[str, tuple[bytes, dict[str, np.ndarray]]]:
    x, relu_node = ones(2), helper.make_node("Relu", ["x"], ["y"])
    branches = {
        "then_branch": helper.make_graph([helper.make_node("Relu", ["x"], ["o"])], "then", [], [tensor("o", 1, [2])]),
        "else_branch": helper.make_graph([helper.make_node("Neg", ["u"], ["p"])], "else", [], [tensor("p", 1, [2])]),
    }
    condition = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True)))
    y = [tensor("y", 1, [2])]
    return {
        "no node reads it": (model([relu_node], [tensor("x", 1, [2]), tensor("u", 1, [3])], y), {"x": x}),
        "its extents are not known": (model([relu_node], [tensor("x", 1, [2]), tensor("u", 1, ["n", None])], y), {"x": x}),
        "its extents are another one's": (model([relu_node], [tensor("x", 1, ["n"]), tensor("u", 1, ["n", 7])], [tensor("y", 1, ["n"])]), {"x": x}),
        "it is a sequence": (model([relu_node], [tensor("x", 1, [2]), helper.make_tensor_sequence_value_info("u", 1, None)], y), {"x": x}),
        "its branch is never taken": (model([condition, helper.make_node("If", ["c"], ["y"], **branches)], [tensor("x", 1, [2]), tensor("u", 1, [2])], y), {"x": x}),
        "only its shape matters, which is known": (
            model([helper.make_node("Shape", ["u"], ["s"]), helper.make_node("Reshape", ["x", "s"], ["y"])], [tensor("x", 1, [2]), tensor("u", 1, [2])], y), {"x": x}),
    }


@pytest.mark.parametrize("case", unread_cases())
def test_an_input_that_no_node_reads_needs_no_feed(ours: Api, theirs: Api, case: str) -> None:
    data, feeds = unread_cases()[case]
    for api in (ours, theirs):
        session = api.session(data)
        for _ in range(2):
            assert api.run_arrays(session, feeds, ["y"])[0].tolist() == [1, 1]
        binding = api.made("CreateIoBinding", session)
        api.call("BindInput", binding, b"x", api.value(feeds["x"]))
        api.call("BindOutputToDevice", binding, b"y", api.memory)
        api.call("RunWithBinding", session, c_void_p(), binding)


def test_an_input_whose_shape_matters_needs_one(ours: Api, theirs: Api) -> None:
    nodes = [helper.make_node("Shape", ["u"], ["s"]), helper.make_node("Expand", ["x", "s"], ["y"])]
    data = model(nodes, [tensor("x", 1, [1]), tensor("u", 1, ["n"])], [tensor("y", 1, ["n"])])
    for api in (ours, theirs):
        session = api.session(data)
        assert api.run_arrays(session, {"x": ones(1), "u": ones(3)}, ["y"])[0].tolist() == [1, 1, 1]
        with pytest.raises(StatusError, match="Missing Input: u") as error:
            api.run_arrays(session, {"x": ones(1)}, ["y"])
        assert error.value.code == FAIL


def test_an_input_that_no_node_reads_is_on_no_device(ours: Api, theirs: Api) -> None:
    for api in (ours, theirs):
        devices = (c_void_p * 3)()
        api.call("SessionGetEpDeviceForInputs", api.session(unread()), devices, c_size_t(3))
        assert [bool(device) for device in devices] == [True, False, False]


def test_values_for_initializers_that_are_not_there_are_left_out(ours: Api, theirs: Api) -> None:
    for api in (ours, theirs):
        options = api.options()
        api.call("AddInitializer", options, b"nosuch", api.value(ones(3, 2)))
        assert api.run_arrays(api.session(relu(), options), {"x": ones(2, 3)}, ["y"])[0].tolist() == [[1, 1, 1], [1, 1, 1]]


def test_editing_ends_more_than_once(ours: Api, theirs: Api) -> None:
    for api in (ours, theirs):
        editor, session = editing(api)
        for _ in range(2):
            editor.call("FinalizeModelEditorSession", session, api.options(), c_void_p())
        assert api.run_arrays(session, {"x": ones(1, 3)}, ["y"])[0].tolist() == [[1, 1, 1]]


def test_inputs_of_bodies_that_do_not_run_need_no_feed(ours: Api, theirs: Api) -> None:
    for api in (ours, theirs):
        assert run_bodies(api, True, 0) == [-1, -1]
        assert run_bodies(api, False, 0, k=ones(2)) == [0, 0]
        assert run_bodies(api, True, 2, j=ones(2)) == [1, 1]


def test_an_input_whose_shape_matters_in_a_body_needs_one(ours: Api, theirs: Api) -> None:
    then = helper.make_graph([helper.make_node("Shape", ["u"], ["s"]), helper.make_node("Expand", ["x", "s"], ["e"])], "then", [], [tensor("e", 1, ["n"])])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["m"])], "other", [], [tensor("m", 1, [1])])
    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    data = model(nodes, [tensor("x", 1, [1]), tensor("c", 9, []), tensor("u", 1, ["n"])], [tensor("y", 1, None)])
    for api in (ours, theirs):
        session = api.session(data)
        assert api.run_arrays(session, {"x": ones(1), "c": np.array(True), "u": ones(3)}, ["y"])[0].tolist() == [1, 1, 1]
        with pytest.raises(StatusError, match="Missing Input: u"):
            api.run_arrays(session, {"x": ones(1), "c": np.array(True)}, ["y"])


@pytest.mark.parametrize("name", ["ByName", ""])
def test_an_extent_without_a_name_is_not_overridden_by_none(ours: Api, theirs: Api, name: str) -> None:
    for api in (ours, theirs):
        options = api.options()
        api.call(f"AddFreeDimensionOverride{name}", options, b"", c_int64(5))
        session = api.session(model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", 1, [None, "n"])], [tensor("y", 1, [None, "n"])]), options)
        info = api.made("CastTypeInfoToTensorInfo", api.made("SessionGetInputTypeInfo", session, c_size_t(0)))
        assert api.shape_and_dtype(info)[1:] == ([-1, -1], ["", "n"])
        assert api.run_arrays(session, {"x": ones(2, 3)}, ["y"])[0].tolist() == [[1, 1, 1], [1, 1, 1]]


def test_of_a_domain_that_is_named_twice_the_last_version_counts(ours: Api, theirs: Api) -> None:
    for api in (ours, theirs):
        assert api.run_arrays(edited(api, [(b"ai.onnx", 1), (b"ai.onnx", 21)]), {"x": ones(2)}, ["y"])[0].tolist() == [1, 1]


def test_a_run_that_does_not_begin_has_no_profile(ours: Api, theirs: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for api in (ours, theirs):
        options = api.made("CreateRunOptions")
        api.call("RunOptionsEnableProfiling", options, b"run")
        value, none = api.value(ones(1, 3)), (c_void_p * 1)()
        for given, wanted in ((b"", b"y"), (b"x", b"")):
            with pytest.raises(StatusError):
                api.call("Run", api.session(relu()), options, strings(given), handles(value), c_size_t(1), strings(wanted), c_size_t(1), none)
    assert list(tmp_path.iterdir()) == []

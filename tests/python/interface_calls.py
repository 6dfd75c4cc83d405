"""Calls of ONNX Runtime's C interface with legal and illegal arguments, drawn from its table of functions: sequences, each in a process of its own.

    python interface_calls.py LIBRARY SEED COUNT [LENGTH]    # a line for each of COUNT sequences of LENGTH calls, else of one

A call is a function of src/ort_api/entries.inc with a choice for each of its parameters, by the parameter's type. What comes of it is a status
code, or the values that the function gives; of one that ends the process, the signal. A line has the calls with their arguments, and what came
of those that were made.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import signal
import sys
from collections.abc import Callable
from ctypes import byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

import numpy as np
from onnx import helper, numpy_helper
from onnxruntime_c import PLACES, Api, StatusError, handles, model, tensor

ENTRY = re.compile(r"^ORT_ENTRY\((\w+), ((?:[^,()]|\([^)]*\))*), \((.*)\)\)$", re.MULTILINE)
TABLE = os.path.join(os.path.dirname(__file__), "..", "..", "src", "ort_api", "entries.inc")
ROOM = 1 << 14  # bytes behind every pointer that a function may write to

# What is not called, and why.
LEFT_OUT = {
    r"^Release|^AllocatorFree$": "handles are used again",
    r"^Kernel|^ShapeInfer|^CreateOp|^InvokeOp|^CopyKernelInfo|OpAttr$|^OpAttr_": "kernels are given what these take (test_onnxruntime_custom.py)",
    r"^Graph_|^Node_|^ValueInfo_|^GetValueInfo|^ExternalInitializerInfo|^CreateExternalInitializerInfo": "onnxruntime reads only graphs of execution providers",
    r"AppendExecutionProvider_|ProviderOptions|GpuDeviceId|SyncStream|^GetModelPackageApi|^EpDevice_GetNumbers": "of other devices",
    r"CustomOp|Callback|Fn$|Delegate|ReadFunc|^RunAsync$|CustomLogger|WithOptions$|^Logger_|CustomThread|LoggingFunction$": "take functions (test_onnxruntime_threads.py, ..._lifetimes.py)",
    r"^CreateEnv|^UpdateEnv|Allocator$|AllocatorV2$|TelemetryEvents|ExecutionProviderLibrary|^SetLanguageProjection": "change the environment, of which onnxruntime has one",
    r"^Create(Tensor|Sparse)\w*AsOrtValue|^Fill|^Use\w+Indices|^GetString|^GetResized|^CreateValue$|Opaque|^TensorAt|^CopyTensors|^GetBound|^CreateArenaCfg|ExternalInitializers": "take arrays (test_onnxruntime_values.py)",
    r"^Run$|^RunWithBinding$|^CreateSession|^SessionGetEp|^SessionGetMemory|EpDynamic|^GetModelCompatibility|AppendExecutionProvider|^GetCompatibilityInfo|LoraAdapter$|Optional": "test_onnxruntime_c.py",
    r"^Get(Api|TrainingApi|ModelEditorApi|CompileApi|EpApi|InteropApi|ExperimentalFunction|BuildInfoString|ExecutionProviderApi)$": "give tables",
    r"Weightless|^SetPerSession|^HardwareDevice_|^EpDevice_|^GetEpDevices|^GetHardware|^DeviceEp|^EpAssigned|^Session_GetEp|CapturedGraph": "test_onnxruntime_c.py",
    r"KeyValue|^CreateStatus|^GetError|^GetAvailableProviders|^GetNumHardwareDevices|^SetDimensions|^SetSymbolic|^ModelMetadataGetCustom|^EnableOrtCustomOps|^EnableProfiling|^RunOptionsEnableProfiling": "test_onnxruntime_c.py",
}


class Choices:
    """Handles of one library by type, and other arguments."""

    def __init__(self, api: Api) -> None:
        self.api = api
        w = numpy_helper.from_array(np.ones((3, 2), np.float32), "w")
        nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("SplitToSequence", ["y"], ["s"], axis=0)]
        outputs = [tensor("y", 1, ["rows", 2]), helper.make_tensor_sequence_value_info("s", 1, None)]
        self.session = api.session(model(nodes, [tensor("x", 1, ["rows", 3]), tensor("w", 1, [3, 2])], outputs, [w], producer_name="a test", model_version=3))
        values = [api.value(np.arange(4, dtype=np.float32).reshape(2, 2)), api.value(np.array(["a", "bc"], object)), api.value(np.zeros((0, 3), np.int64)), api.value(np.array(7, np.int64))]
        values += [self.made(2, values[0], values[0]), self.made(3, api.value(np.array([1, 2], np.int64)), api.value(np.array([0.5, 2], np.float32)))]
        values += [api.made("CreateSparseTensorAsOrtValue", api.allocator, (c_int64 * 2)(3, 3), c_size_t(2), 1)]
        types = [api.made("GetTypeInfo", value) for value in values]
        infos = [api.made("GetTensorTypeAndShape", value) for value in values[:4]] + [api.made("CreateTensorTypeAndShapeInfo")]
        self.handles: dict[str, list[c_void_p]] = {
            "OrtSession": [self.session],
            "OrtSessionOptions": [api.options()],
            "OrtRunOptions": [api.made("CreateRunOptions")],
            "OrtEnv": [api.env],
            "OrtValue": values,
            "OrtTypeInfo": types,
            "OrtTensorTypeAndShapeInfo": infos,
            "OrtSequenceTypeInfo": [api.made("CastTypeInfoToSequenceTypeInfo", types[4])],
            "OrtMapTypeInfo": [api.made("CastTypeInfoToMapTypeInfo", types[5])],
            "OrtMemoryInfo": [api.memory, api.made("CreateCpuMemoryInfo", 1, -1), api.made("CreateMemoryInfo", b"Cuda", 0, 1, 0)],
            "OrtAllocator": [api.allocator],
            "OrtModelMetadata": [api.made("SessionGetModelMetadata", self.session)],
            "OrtIoBinding": [api.made("CreateIoBinding", self.session)],
            "OrtThreadingOptions": [api.made("CreateThreadingOptions")],
        }

    def made(self, kind: int, *parts: c_void_p) -> c_void_p:
        out = c_void_p()
        self.api.call("CreateValue", handles(*parts), c_size_t(len(parts)), kind, byref(out))
        return out


NUMBERS: dict[str, tuple[Callable, list]] = {
    "size_t": (c_size_t, [0, 1, 2, 9, 64]),
    "int": (c_int, [-1, 0, 1, 2, 3, 99]),
    "int64_t": (c_int64, [-1, 0, 1, 5]),
    "bool": (ctypes.c_bool, [False, True]),
    "uint32_t": (c_uint32, [0, 1]),
    "int32_t": (c_int, [-1, 0, 1]),
}
TEXTS = [b"x", b"y", b"", b"nosuch", b"session.intra_op.allow_spinning", b"1", b"Cpu", b"k" * 1025]
OUT = re.compile(r"^(?:const )?(\w+)( const)?(\*+)$")
READ = {"size_t": c_size_t, "int": c_int, "int64_t": c_int64, "uint64_t": c_uint64, "uint32_t": c_uint32}


def functions() -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Name, result, parameters as type and name."""
    with open(TABLE) as file:
        found = ENTRY.findall(file.read())
    table = []
    for name, result, parameters in found:
        if any(re.search(pattern, name) for pattern in LEFT_OUT):
            continue
        split = [re.match(r"^(.*?)\s*(\w+)(\[\])?$", parameter.strip()) for parameter in parameters.split(",")] if parameters else []
        table.append((name, result, [(match[1].replace(" *", "*") + ("*" if match[3] else ""), match[2]) for match in split if match]))
    return table


class Call:
    """One function with its arguments; what it writes is read back."""

    def __init__(self, name: str, result: str, parameters: list[tuple[str, str]], draw: random.Random, choices: Choices) -> None:
        self.name, self.result, self.choices, self.outputs = name, result, choices, []
        self.arguments, self.said = [], []
        for place, (kind, parameter) in enumerate(parameters):
            self._add(kind, parameter, draw, place == len(parameters) - 1)

    def _add(self, kind: str, parameter: str, draw: random.Random, is_last: bool) -> None:
        plain = kind.replace("const ", "").replace(" const", "")
        if plain in NUMBERS or plain.startswith(("Ort", "ONNX", "enum")) and not plain.endswith("*"):
            make, numbers = NUMBERS.get(plain, (c_int, [-1, 0, 1, 2, 99]))
            number = draw.choice(numbers)
            self._take(make(number), number)
        elif plain == "char*" and kind.startswith("const"):
            text = draw.choice(TEXTS)
            self._take(c_char_p(text), text.decode())
        elif plain.endswith("*") and not plain.endswith("**") and plain[:-1] in self.choices.handles:
            number = draw.randrange(len(self.choices.handles[plain[:-1]]))
            self._take(self.choices.handles[plain[:-1]][number], f"{plain[:-1]}[{number}]")
        elif plain.endswith("*"):
            room = ctypes.create_string_buffer(ROOM)
            self.outputs.append((plain, room))
            if plain == "size_t*":
                c_size_t.from_buffer(room).value = draw.choice([0, 8, 64])
            self._take(room, f"&{parameter}")
        else:
            raise ValueError(f"{self.name} takes a {kind}")

    def _take(self, argument: Any, said: Any) -> None:
        self.arguments.append(argument)
        self.said.append(said)

    def outcome(self) -> Any:
        api = self.choices.api
        is_status = self.result == "OrtStatus*"
        function = ctypes.CFUNCTYPE(c_void_p if is_status or self.result.endswith("*") else None if self.result == "void" else c_int,
                                    *[c_void_p if isinstance(a, ctypes.Array) else type(a) for a in self.arguments])(api.table[PLACES[self.name]])
        result = function(*self.arguments)
        if is_status:
            try:
                api.check(result)
            except StatusError as error:
                return error.code
        given = [] if is_status or self.result == "void" else [bool(result) if self.result.endswith("*") else result & 0xFF if self.result == "bool" else result]
        return ["ok", *given, *[self._read(kind, room) for kind, room in self.outputs]]

    def _read(self, kind: str, room: Any) -> Any:
        api, pointer = self.choices.api, c_void_p.from_buffer(room)
        if kind.endswith("**"):
            if not pointer.value:
                return None
            if kind == "char**":
                return ctypes.string_at(pointer.value).decode(errors="replace")
            if kind == "OrtTypeInfo**":
                return str(api.describe_type(pointer))
            if kind == "OrtTensorTypeAndShapeInfo**":
                return str(api.shape_and_dtype(pointer))
            return "a handle" if kind != "void**" else "memory"
        if kind[:-1] in READ:
            return READ[kind[:-1]].from_buffer(room).value if kind != "int64_t*" else list((c_int64 * 4).from_buffer(room))
        if kind.startswith(("Ort", "ONNX", "enum")):
            return c_int.from_buffer(room).value
        return None


def apart(bodies: list[Callable[[], Any]]) -> list:
    """What they give, one after the other in a process of its own, which may die."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        for body in bodies:
            try:
                said = json.dumps(body())
            except BaseException as error:  # noqa: BLE001
                said = json.dumps(f"{type(error).__name__}: {error}")
            os.write(writer, said.encode()[:60000] + b"\n")
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        outcomes = [json.loads(line) for line in file.read().splitlines()]
    _, status = os.waitpid(child, 0)
    return outcomes + [f"died of signal {status & 0x7F}"] if status & 0x7F else outcomes


def main(library: str, seed: int, count: int, length: int) -> None:
    choices, table = Choices(Api(library)), functions()
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        calls = [Call(*(table[number % len(table)] if length == 1 else draw.choice(table)), draw, choices) for _ in range(length)]
        print(json.dumps([[(call.name, call.said) for call in calls], apart([call.outcome for call in calls])]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 1)

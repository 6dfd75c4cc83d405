"""ONNX Runtime's C interface through ctypes, from Treadle's libonnxruntime.so.1 or from onnxruntime's own library."""

from __future__ import annotations

import ctypes
import glob
import os
import re
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

LIBRARY = Path(os.environ.get("TREADLE_ORT_LIBRARY", Path(__file__).parents[2] / "build/release/onnxruntime/libonnxruntime.so.1"))

ENTRIES = re.findall(r"^ORT_ENTRY\((\w+), ([^,]*(?:\([^)]*\))?[^,]*), ", (Path(__file__).parents[2] / "src/ort_api/entries.inc").read_text(), re.MULTILINE)
PLACES = {name: place for place, (name, _) in enumerate(ENTRIES)}
RESULTS = dict(ENTRIES)

DTYPES = {1: np.float32, 2: np.uint8, 3: np.int8, 4: np.uint16, 5: np.int16, 6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16, 11: np.float64, 12: np.uint32, 13: np.uint64}
NUMBERS = {np.dtype(dtype): number for number, dtype in DTYPES.items()}
TENSOR, SEQUENCE, MAP = 1, 2, 3


EDITOR = """CreateTensorTypeInfo CreateSparseTensorTypeInfo CreateMapTypeInfo CreateSequenceTypeInfo CreateOptionalTypeInfo CreateValueInfo CreateNode
CreateGraph SetGraphInputs SetGraphOutputs AddInitializerToGraph AddNodeToGraph CreateModel AddGraphToModel CreateSessionFromModel
CreateModelEditorSession CreateModelEditorSessionFromArray SessionGetOpsetForDomain ApplyModelToModelEditorSession FinalizeModelEditorSession""".split()


class StatusError(Exception):
    """A call returned an error status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


class _Base(ctypes.Structure):
    _fields_ = [("get_api", ctypes.CFUNCTYPE(c_void_p, c_uint32)), ("get_version", ctypes.CFUNCTYPE(c_char_p))]


class Api:
    """One library's functions, by name. Handles are integers."""

    def __init__(self, path: str, version: int = 29, make_env: Callable[[Api], c_void_p] | None = None) -> None:
        self.library = ctypes.CDLL(path)
        self.library.OrtGetApiBase.restype = POINTER(_Base)
        self.base = self.library.OrtGetApiBase().contents
        self.table = (c_void_p * len(PLACES)).from_address(self.base.get_api(version))
        self.env = make_env(self) if make_env else self.made("CreateEnv", 4, b"test")
        self.memory = self.made("CreateCpuMemoryInfo", 0, 0)
        self.allocator = self.made("GetAllocatorWithDefaultOptions")
        self.kept: list[Any] = []

    def call(self, name: str, *args: Any, result: Any = None) -> Any:
        """Calls a function, and raises StatusError for an error status. `result` is the type of a function that returns something else."""
        is_status = RESULTS[name] == "OrtStatus*" and name != "CreateStatus"
        function = ctypes.CFUNCTYPE(c_void_p if is_status else result, *[type_of(a) for a in args])(self.table[PLACES[name]])
        value = function(*args)
        if not is_status:
            return value
        return self.check(value)

    def call_at(self, address: int, *args: Any) -> None:
        """Calls a function of another table, which must return a status."""
        self.check(ctypes.CFUNCTYPE(c_void_p, *[type_of(a) for a in args])(address)(*args))

    def check(self, given: int | None) -> None:
        if not given:
            return
        status = c_void_p(given)
        code = self.call("GetErrorCode", status, result=c_int)
        message = self.call("GetErrorMessage", status, result=c_char_p).decode()
        self.call("ReleaseStatus", status)
        raise StatusError(code, message)

    def made(self, name: str, *args: Any) -> c_void_p:
        """Calls a function, and returns the handle that it writes to its last argument."""
        out = c_void_p()
        self.call(name, *args, byref(out))
        return out

    def number(self, name: str, *args: Any, kind: Any = c_size_t) -> int:
        out = kind()
        self.call(name, *args, byref(out))
        return out.value

    def text(self, name: str, *args: Any) -> str | None:
        """Calls a function, and returns the text that it allocates."""
        out = c_void_p()
        self.call(name, *args, self.allocator, byref(out))
        return self._taken(out)

    def _taken(self, out: c_void_p) -> str | None:
        if not out:
            return None
        value = ctypes.string_at(out.value).decode()
        self.call("AllocatorFree", self.allocator, out)
        return value

    def lookup(self, metadata: c_void_p, key: str) -> str | None:
        out = c_void_p()
        self.call("ModelMetadataLookupCustomMetadataMap", metadata, self.allocator, key.encode(), byref(out))
        return self._taken(out)

    def options(self) -> c_void_p:
        options = self.made("CreateSessionOptions")
        self.call("SetIntraOpNumThreads", options, 1)
        self.call("SetSessionLogSeverityLevel", options, 4)
        return options

    def session(self, model: bytes | str, options: c_void_p | None = None) -> c_void_p:
        options = options or self.options()
        if isinstance(model, bytes):
            return self.made("CreateSessionFromArray", self.env, model, c_size_t(len(model)), options)
        return self.made("CreateSession", self.env, model.encode(), options)

    def shape_and_dtype(self, info: c_void_p) -> tuple[int, list[int], list[str]]:
        dtype, count = self.number("GetTensorElementType", info, kind=c_int), self.number("GetDimensionsCount", info)
        dims, names = (c_int64 * max(count, 1))(), (c_char_p * max(count, 1))()
        self.call("GetDimensions", info, dims, c_size_t(count))
        self.call("GetSymbolicDimensions", info, names, c_size_t(count))
        return dtype, list(dims)[:count], [(n or b"").decode() for n in list(names)[:count]]

    def describe_type(self, info: c_void_p) -> Any:
        kind = self.number("GetOnnxTypeFromTypeInfo", info, kind=c_int)
        if kind == TENSOR:
            return (kind, *self.shape_and_dtype(self.made("CastTypeInfoToTensorInfo", info)))
        if kind == SEQUENCE:
            return kind, self.describe_type(self.made("GetSequenceElementType", self.made("CastTypeInfoToSequenceTypeInfo", info)))
        if kind == MAP:
            view = self.made("CastTypeInfoToMapTypeInfo", info)
            return kind, self.number("GetMapKeyType", view, kind=c_int), self.describe_type(self.made("GetMapValueType", view))
        return (kind,)

    def describe(self, session: c_void_p) -> dict[str, Any]:
        """Returns all that a session tells about its model."""
        said: dict[str, Any] = {}
        for what in ("Input", "Output", "OverridableInitializer"):
            count = self.number(f"SessionGet{what}Count", session)
            names = []
            for i in range(count):
                out = c_void_p()
                self.call(f"SessionGet{what}Name", session, c_size_t(i), self.allocator, byref(out))
                names.append(self._taken(out))
            said[what] = [(name, self.describe_type(self.made(f"SessionGet{what}TypeInfo", session, c_size_t(i)))) for i, name in enumerate(names)]
        metadata = self.made("SessionGetModelMetadata", session)
        for what in ("ProducerName", "GraphName", "Domain", "Description", "GraphDescription"):
            said[what] = self.text(f"ModelMetadataGet{what}", metadata)
        said["Version"] = self.number("ModelMetadataGetVersion", metadata, kind=c_int64)
        keys, count = c_void_p(), c_int64()
        self.call("ModelMetadataGetCustomMetadataMapKeys", metadata, self.allocator, byref(keys), byref(count))
        names = [ctypes.string_at(p).decode() for p in (c_void_p * count.value).from_address(keys.value)] if count.value else []
        said["custom"] = {name: self.lookup(metadata, name) for name in sorted(names)}
        return said

    def value(self, array: np.ndarray) -> c_void_p:
        """Makes a tensor in an array's memory; tensors of strings are in the library's memory."""
        dims = (c_int64 * max(array.ndim, 1))(*array.shape)
        out = c_void_p()
        if array.dtype == object:
            self.call("CreateTensorAsOrtValue", self.allocator, dims, c_size_t(array.ndim), 8, byref(out))
            texts = (c_char_p * array.size)(*[str(text).encode() for text in array.ravel()])
            self.call("FillStringTensor", out, texts, c_size_t(array.size))
            return out
        self.kept.append(array)
        self.call("CreateTensorWithDataAsOrtValue", self.memory, c_void_p(array.ctypes.data), c_size_t(array.nbytes), dims, c_size_t(array.ndim), NUMBERS[array.dtype], byref(out))
        return out

    def content(self, value: c_void_p) -> Any:
        """Converts a value to NumPy arrays, lists (sequences) and dicts (maps)."""
        kind = self.number("GetValueType", value, kind=c_int)
        if kind in (SEQUENCE, MAP):
            parts = []
            for i in range(self.number("GetValueCount", value)):
                part = c_void_p()
                self.call("GetValue", value, i, self.allocator, byref(part))
                parts.append(self.content(part))
            return parts if kind == SEQUENCE else dict(zip(parts[0].tolist(), parts[1].tolist()))
        dtype, dims, _ = self.shape_and_dtype(self.made("GetTensorTypeAndShape", value))
        if dtype == 8:
            return np.array(self.strings(value, int(np.prod(dims))), dtype=object).reshape(dims)
        data = self.made("GetTensorMutableData", value)
        nbytes = int(np.prod(dims)) * np.dtype(DTYPES[dtype]).itemsize
        return np.frombuffer(ctypes.string_at(data.value, nbytes) if nbytes else b"", DTYPES[dtype]).reshape(dims).copy()

    def strings(self, value: c_void_p, count: int) -> list[str]:
        length = self.number("GetStringTensorDataLength", value)
        room, offsets = ctypes.create_string_buffer(max(length, 1)), (c_size_t * max(count, 1))()
        self.call("GetStringTensorContent", value, room, c_size_t(length), offsets, c_size_t(count))
        ends = [*list(offsets)[1:count], length]
        return [room.raw[a:b].decode() for a, b in zip(list(offsets)[:count], ends)]

    def run_arrays(self, session: c_void_p, feeds: dict[str, np.ndarray], outputs: list[str], options: c_void_p | None = None) -> list[Any]:
        values = self.run(session, {name: self.value(array) for name, array in feeds.items()}, outputs, options=options)
        return [self.content(value) for value in values]

    def run(self, session: c_void_p, feeds: dict[str, c_void_p], outputs: list[str], into: list[c_void_p] | None = None, options: c_void_p | None = None) -> list[c_void_p]:
        names = (c_char_p * max(len(feeds), 1))(*[name.encode() for name in feeds])
        values = (c_void_p * max(len(feeds), 1))(*[value.value for value in feeds.values()])
        wanted = (c_char_p * max(len(outputs), 1))(*[name.encode() for name in outputs])
        results = (c_void_p * max(len(outputs), 1))(*[value.value if value else None for value in into or []])
        self.call("Run", session, options or c_void_p(), names, values, c_size_t(len(feeds)), wanted, c_size_t(len(outputs)), results)
        return [c_void_p(result) for result in list(results)[: len(outputs)]]


class Part:
    """One of the additional function tables of the interface."""

    def __init__(self, api: Api, getter: str, names: list[str]) -> None:
        self.api, self.places = api, {name: place for place, name in enumerate(names)}
        self.table = (c_void_p * len(names)).from_address(api.call(getter, result=c_void_p))

    def call(self, name: str, *args: Any) -> None:
        self.api.call_at(self.table[self.places[name]], *args)

    def made(self, name: str, *args: Any) -> c_void_p:
        out = c_void_p()
        self.call(name, *args, byref(out))
        return out


def their_api() -> Api:
    """Returns onnxruntime's own interface; skips the test if it is not installed."""
    onnxruntime = pytest.importorskip("onnxruntime")
    found = glob.glob(os.path.join(os.path.dirname(onnxruntime.__file__), "capi", "libonnxruntime.so*"))
    return Api(found[0])


def model(nodes: list, inputs: list, outputs: list, initializers: Any = (), domains: Any = (), **more: Any) -> bytes:
    graph = helper.make_graph(nodes, "graph", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", 21), *[helper.make_opsetid(domain, 1) for domain in domains]]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, **more).SerializeToString()


def tensor(name: str, dtype: int, shape: Any) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def strings(*texts: bytes) -> Any:
    return (c_char_p * max(len(texts), 1))(*texts)


def handles(*values: c_void_p | None) -> Any:
    return (c_void_p * max(len(values), 1))(*[value.value if value is not None else None for value in values])


def value_info(api: Api, editor: Part, name: bytes, dims: list[int]) -> c_void_p:
    info = api.made("CreateTensorTypeAndShapeInfo")
    api.call("SetTensorElementType", info, 1)
    api.call("SetDimensions", info, (c_int64 * len(dims))(*dims), c_size_t(len(dims)))
    return editor.made("CreateValueInfo", name, editor.made("CreateTensorTypeInfo", info))


def type_of(argument: Any) -> Any:
    if isinstance(argument, bytes):
        return c_char_p
    if isinstance(argument, int):
        return c_int
    if isinstance(argument, (ctypes.Array, ctypes._Pointer)) or type(argument).__name__ == "CArgObject":
        return c_void_p
    return type(argument)

"""Checks that the numbers of libonnxruntime.so.1's enums equal those of ONNX Runtime's interface."""

from __future__ import annotations

import ctypes
import re
from ctypes import byref, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnxruntime_c import LIBRARY, Api, StatusError, tensor
from onnxruntime_enums import ENUMS

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="libonnxruntime.so.1 is not built; set TREADLE_ORT_LIBRARY")

HEADER = Path(__file__).parents[2] / "src/ort_api/api.h"
DTYPES = ENUMS["ONNXTensorElementDataType"]


def members(text: str) -> dict[str, int]:
    """Returns names and numbers from the body of an enum."""
    found, value = {}, -1
    for entry in re.sub(r"//[^\n]*", "", text).split(","):
        if not (name := entry.strip()):
            continue
        name, _, given = (part.strip() for part in name.partition("="))
        value = int(given) if given else value + 1
        found[name] = value
    return found


@pytest.mark.parametrize("enum", [name for name in ENUMS if name != "ONNXTensorElementDataType"])
def test_members_have_the_interfaces_numbers(enum: str) -> None:
    [body] = re.findall(rf"enum {enum} {{([^}}]*)}};", HEADER.read_text())
    have = members(body)
    assert len(have) == len(ENUMS[enum])
    for (name, number), (end, want) in zip(have.items(), ENUMS[enum].items()):
        assert name.endswith(end)
        assert number == want, name


def made(api: Api, number: int, count: int = 5) -> c_void_p:
    out = c_void_p()
    api.call("CreateTensorAsOrtValue", api.allocator, (c_int64 * 1)(count), c_size_t(1), number, byref(out))
    return out


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name not in ("undefined", "complex64", "complex128")])
def test_elements_are_as_wide(ours: Api, theirs: Api, dtype: str) -> None:
    number = DTYPES[dtype]
    for api in (ours, theirs):
        value = made(api, number)
        assert api.shape_and_dtype(api.made("GetTensorTypeAndShape", value)) == (number, [5], [""])
    if dtype != "string":
        assert ours.number("GetTensorSizeInBytes", made(ours, number)) == theirs.number("GetTensorSizeInBytes", made(theirs, number))


@pytest.mark.parametrize("number", [-1, 0, 27, 28, 99])
def test_numbers_of_no_dtype_are_refused(ours: Api, theirs: Api, number: int) -> None:
    for api in (ours, theirs):
        with pytest.raises(StatusError, match="is not supported") as error:
            made(api, number)
        assert error.value.code == 9


@pytest.mark.parametrize("dtype", ["uint4", "int4", "float4e2m1", "uint2", "int2", "float8e8m0", "float8e5m2fnuz"])
def test_a_model_says_and_takes_the_interfaces_number(ours: Api, dtype: str) -> None:
    """ONNX numbers some element types differently."""
    onnx_number = getattr(onnx.TensorProto, dtype.upper())
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "graph", [tensor("x", onnx_number, [4])], [tensor("y", onnx_number, [4])])
    session = ours.session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13).SerializeToString())
    said = ours.describe(session)
    assert [said[what][0][1][1] for what in ("Input", "Output")] == [DTYPES[dtype]] * 2
    x = made(ours, DTYPES[dtype], 4)
    size = ours.number("GetTensorSizeInBytes", x)
    ctypes.memmove(ours.made("GetTensorMutableData", x).value, bytes(range(1, size + 1)), size)
    [y] = ours.run(session, {"x": x}, ["y"])
    assert ours.shape_and_dtype(ours.made("GetTensorTypeAndShape", y))[:2] == (DTYPES[dtype], [4])
    assert ctypes.string_at(ours.made("GetTensorMutableData", y).value, size) == bytes(range(1, size + 1))


@pytest.mark.parametrize("function, numbers", [("SetSessionExecutionMode", range(-1, 3)), ("SetSessionGraphOptimizationLevel", [-1, 0, 1, 2, 3, 4, 98, 99, 100])])
def test_the_same_numbers_are_taken(ours: Api, theirs: Api, function: str, numbers: list[int]) -> None:
    def outcome(api: Api, number: int) -> int:
        try:
            api.call(function, api.options(), number)
        except StatusError as error:
            return error.code
        return 0

    assert [outcome(ours, number) for number in numbers] == [outcome(theirs, number) for number in numbers]


def test_attributes_have_the_interfaces_types(ours: Api, theirs: Api) -> None:
    one, real = (c_int64 * 1)(7), (ctypes.c_float * 1)(0.5)
    texts = (ctypes.c_char_p * 1)(b"abc")
    given = {"INT": (one, 1), "INTS": (one, 1), "FLOAT": (real, 1), "FLOATS": (real, 1), "STRING": (ctypes.c_char_p(b"abc"), 3), "STRINGS": (texts, 1)}
    for api in (ours, theirs):
        for name, (data, count) in given.items():
            number = ENUMS["OrtOpAttrType"][name]
            attribute = c_void_p()
            api.call("CreateOpAttr", b"name", data, count, number, byref(attribute))
            assert api.number("OpAttr_GetType", attribute, kind=c_int) == number


def test_memory_is_described_by_the_interfaces_numbers(ours: Api, theirs: Api) -> None:
    for api in (ours, theirs):
        for kind in ENUMS["OrtAllocatorType"].values():
            for memory in ENUMS["OrtMemType"].values():
                info = api.made("CreateCpuMemoryInfo", kind, memory)
                assert (api.number("MemoryInfoGetType", info, kind=c_int), api.number("MemoryInfoGetMemType", info, kind=c_int)) == (kind, memory)
        for device in ENUMS["OrtMemoryInfoDeviceType"].values():
            for memory in ENUMS["OrtDeviceMemoryType"].values():
                info = api.made("CreateMemoryInfo_V2", b"any", device, ctypes.c_uint32(0), 0, memory, c_size_t(0), 0)
                out = c_int()
                api.call("MemoryInfoGetDeviceType", info, byref(out), result=None)
                assert (out.value, api.call("MemoryInfoGetDeviceMemType", info, result=c_int)) == (device, memory)
        for device in (-1, 4):
            with pytest.raises(StatusError, match="Invalid device type specified"):
                api.made("CreateMemoryInfo_V2", b"any", device, ctypes.c_uint32(0), 0, 0, c_size_t(0), 0)


def test_values_have_the_interfaces_kinds(ours: Api, theirs: Api) -> None:
    kinds = ENUMS["ONNXType"]
    for api in (ours, theirs):
        part, sequence, sparse = api.value(np.zeros(2, np.float32)), c_void_p(), c_void_p()
        api.call("CreateValue", (c_void_p * 1)(part.value), c_size_t(1), kinds["SEQUENCE"], byref(sequence))
        api.call("CreateSparseTensorAsOrtValue", api.allocator, (c_int64 * 2)(3, 3), c_size_t(2), 1, byref(sparse))
        assert [api.number("GetValueType", value, kind=c_int) for value in (part, sequence, sparse)] == [kinds["TENSOR"], kinds["SEQUENCE"], kinds["SPARSETENSOR"]]
        assert api.number("GetSparseTensorFormat", sparse, kind=c_int) == ENUMS["OrtSparseFormat"]["UNDEFINED"]

"""Reads results of ONNX Runtime's C interface, in a form that JSON can represent."""

from __future__ import annotations

import math
from collections.abc import Callable
from ctypes import byref, c_char_p, c_int, c_int64, c_size_t, c_void_p
from typing import Any

import numpy as np
from onnxruntime_c import DTYPES, MAP, SEQUENCE, TENSOR, Api, StatusError

SPARSE = 5


def numbers(array: Any) -> Any:
    """Returns a number or list without NaN and infinities, which JSON lacks."""
    return [str(each) if isinstance(each, float) and not math.isfinite(each) else each for each in np.asarray(array).ravel().tolist()[:64]]


def content(api: Api, value: c_void_p) -> Any:
    kind = api.number("GetValueType", value, kind=c_int)
    if kind == TENSOR:
        has = api.number("HasValue", value, kind=c_int)
        dtype, dims, _ = api.shape_and_dtype(api.made("GetTensorTypeAndShape", value)) if has else (0, [], [])
        if dtype not in DTYPES and dtype != 8 or math.prod(dims) > 64 or not has:
            return [kind, has, dtype, dims]
        array = api.content(value)
        return [kind, dtype, list(array.shape), [str(each) for each in array.ravel()] if dtype == 8 else numbers(array)]
    if kind in (SEQUENCE, MAP):
        parts = []
        for i in range(api.number("GetValueCount", value)):
            part = c_void_p()
            api.call("GetValue", value, i, api.allocator, byref(part))
            parts.append(content(api, part))
        return [kind, parts]
    if kind == SPARSE:
        return [kind, api.number("GetSparseTensorFormat", value, kind=c_int), api.shape_and_dtype(api.made("GetTensorTypeAndShape", value)),
                api.shape_and_dtype(api.made("GetSparseTensorValuesTypeAndShape", value))]
    return [kind, api.number("HasValue", value, kind=c_int)]


def memory_info(api: Api, info: c_void_p) -> list:
    out = c_char_p()
    api.call("MemoryInfoGetName", info, byref(out))
    device = c_int(-9)
    api.call("MemoryInfoGetDeviceType", info, byref(device), result=None)
    numbers_of = [api.number(f"MemoryInfoGet{what}", info, kind=c_int) for what in ("Id", "MemType", "Type")]
    return [out.value.decode(), *numbers_of, device.value, *[api.call(f"MemoryInfoGet{what}", info, result=c_int) for what in ("DeviceMemType", "VendorId")]]


def pairs(api: Api, given: c_void_p) -> list:
    keys, values, count = c_void_p(), c_void_p(), c_size_t()
    api.call("GetKeyValuePairs", given, byref(keys), byref(values), byref(count), result=None)
    both = [(c_char_p * count.value).from_address(place.value) if count.value else [] for place in (keys, values)]
    return sorted([[key.decode(errors="replace")[:40], value.decode(errors="replace")[:40]] for key, value in zip(*both)])


def session_said(api: Api, session: c_void_p) -> Any:
    return [[what, [[name, str(kind)] for name, kind in entries]] for what, entries in api.describe(session).items() if isinstance(entries, list)]


def metadata_said(api: Api, metadata: c_void_p) -> Any:
    return [api.text(f"ModelMetadataGet{what}", metadata) for what in ("ProducerName", "GraphName", "Domain", "Description", "GraphDescription")] + [
        api.number("ModelMetadataGetVersion", metadata, kind=c_int64)]


DESCRIBE: dict[str, Callable[[Api, c_void_p], Any]] = {
    "OrtValue": content,
    "OrtTypeInfo": lambda api, info: str(api.describe_type(info)),
    "OrtTensorTypeAndShapeInfo": lambda api, info: [str(api.shape_and_dtype(info)), api.call("TensorTypeAndShape_HasShape", info, result=c_int) & 1],
    "OrtMemoryInfo": memory_info,
    "OrtKeyValuePairs": pairs,
    "OrtSession": session_said,
    "OrtModelMetadata": metadata_said,
}


def described(api: Api, kind: str, pointer: c_void_p) -> Any:
    if kind not in DESCRIBE:
        return None
    try:
        return DESCRIBE[kind](api, pointer)
    except StatusError as error:
        return f"status {error.code}"

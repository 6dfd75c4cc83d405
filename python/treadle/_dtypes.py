"""Converts between ONNX's element types and NumPy's, where the extension module does not."""

from __future__ import annotations

from typing import Any

import numpy as np

# Maps numbers of ONNX's enum TensorProto.DataType to NumPy's names.
_NUMPY_NAMES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    14: "complex64",
    15: "complex128",
}
_ML_DTYPES_NAMES = {
    16: "bfloat16",
    17: "float8_e4m3fn",
    18: "float8_e4m3fnuz",
    19: "float8_e5m2",
    20: "float8_e5m2fnuz",
    21: "uint4",
    22: "int4",
    23: "float4_e2m1fn",
    24: "float8_e8m0fnu",
    25: "uint2",
    26: "int2",
    27: "float6_e2m3fn",
    28: "float6_e3m2fn",
}
_STRING = 8
_SIGNED_PACKED = {22, 26}
_CODES = {name: code for code, name in (_NUMPY_NAMES | _ML_DTYPES_NAMES).items()}
_RAW_TYPES: dict[int, Any] = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16)}


def _ml_dtype(code: int) -> np.dtype | None:
    """Returns the dtype of ml_dtypes for an ONNX type; None if the package is not installed or lacks the type."""
    try:
        import ml_dtypes
    except ImportError:
        return None
    found = getattr(ml_dtypes, _ML_DTYPES_NAMES[code], None)
    return None if found is None else np.dtype(found)


def numpy_dtype(code: int) -> np.dtype:
    """Returns the NumPy dtype of arrays with elements of an ONNX type. If there is none, it is an integer type that holds the elements' bits."""
    if code in _NUMPY_NAMES:
        return np.dtype(_NUMPY_NAMES[code])
    if code == _STRING:
        return np.dtype(object)
    if code not in _ML_DTYPES_NAMES:
        raise ValueError(f"there is no ONNX type {code}")
    fallback = np.uint16 if code == 16 else np.int8 if code in _SIGNED_PACKED else np.uint8
    return _ml_dtype(code) or np.dtype(fallback)


def onnx_dtype(dtype: Any) -> int:
    """Returns ONNX's number of an element type, given as a dtype, a scalar type, a name or the number itself."""
    if isinstance(dtype, int) and not isinstance(dtype, bool):
        if dtype in _NUMPY_NAMES or dtype in _ML_DTYPES_NAMES or dtype == _STRING:
            return dtype
        raise ValueError(f"there is no ONNX type {dtype}")
    found = np.dtype(dtype)
    if found.kind in "OUS" or (found.type is np.void and found.names is None):  # NumPy's bytes, of a fixed length or not
        return _STRING
    if found.name not in _CODES:
        raise ValueError(f"ONNX has no element type like NumPy's {found.name}")
    return _CODES[found.name]


def normalize(value: Any, code: int) -> tuple[int, np.ndarray]:
    """Returns an ONNX type and a contiguous, aligned array in native byte order that holds the elements (their bits, for types that NumPy
    lacks).

    `code` is the type for a value that is no array (a list, a number); with 0, NumPy chooses the type.
    """
    if isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__array__"):
        array = np.asarray(value)
    elif code in (0, _STRING):
        array = np.asarray(value, dtype=object if code == _STRING else None)
    else:
        array = np.asarray(value, dtype=numpy_dtype(code))
    found = onnx_dtype(array.dtype)
    if found == _STRING:
        return found, array
    if found in _ML_DTYPES_NAMES:
        array = np.ascontiguousarray(array).reshape(array.shape)
        return found, array.view(_RAW_TYPES[array.dtype.itemsize])
    native = array.dtype.newbyteorder("=")
    if array.dtype == native and array.flags.c_contiguous and array.flags.aligned:
        array = array.copy()  # the object itself cannot provide a plain buffer
    else:
        array = np.array(array, dtype=native, order="C", copy=True)
    return found, array


def view(bits: np.ndarray, code: int) -> np.ndarray:
    """Returns a view of the elements' bits as the type of ml_dtypes or, without ml_dtypes, as integers."""
    return bits.view(numpy_dtype(code))

"""Numbers of ONNX Runtime's C interface, version 32: every enum, member by member, as its headers have them."""

from __future__ import annotations


def counted(*names: str, first: int = 0) -> dict[str, int]:
    return {name: first + place for place, name in enumerate(names)}


ENUMS: dict[str, dict[str, int]] = {
    "ONNXTensorElementDataType": counted(
        "undefined", "float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool", "float16", "float64", "uint32", "uint64", "complex64", "complex128",
        "bfloat16", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "uint4", "int4", "float4e2m1", "uint2", "int2", "float8e8m0",
    ),
    "ONNXType": counted("UNKNOWN", "TENSOR", "SEQUENCE", "MAP", "OPAQUE", "SPARSETENSOR", "OPTIONAL"),
    "OrtSparseFormat": {"UNDEFINED": 0, "COO": 1, "CSRC": 2, "BLOCK_SPARSE": 4},
    "OrtSparseIndicesFormat": counted("COO_INDICES", "CSR_INNER_INDICES", "CSR_OUTER_INDICES", "BLOCK_SPARSE_INDICES"),
    "OrtLoggingLevel": counted("VERBOSE", "INFO", "WARNING", "ERROR", "FATAL"),
    "OrtErrorCode": counted(
        "OK", "FAIL", "INVALID_ARGUMENT", "NO_SUCHFILE", "NO_MODEL", "ENGINE_ERROR", "RUNTIME_EXCEPTION", "INVALID_PROTOBUF", "MODEL_LOADED", "NOT_IMPLEMENTED", "INVALID_GRAPH",
        "EP_FAIL", "MODEL_LOAD_CANCELED", "MODEL_REQUIRES_COMPILATION", "NOT_FOUND",
    ),
    "OrtOpAttrType": counted("UNDEFINED", "INT", "INTS", "FLOAT", "FLOATS", "STRING", "STRINGS", "GRAPH", "TENSOR"),
    "OrtAllocatorType": counted("OrtInvalidAllocator", "OrtDeviceAllocator", "OrtArenaAllocator", "OrtReadOnlyAllocator", first=-1),
    "OrtMemType": counted("CPUInput", "CPUOutput", "Default", first=-2),
    "OrtDeviceMemoryType": {"DEFAULT": 0, "HOST_ACCESSIBLE": 5},
    "OrtMemoryInfoDeviceType": counted("CPU", "GPU", "FPGA", "NPU"),
    "OrtHardwareDeviceType": counted("CPU", "GPU", "NPU"),
}

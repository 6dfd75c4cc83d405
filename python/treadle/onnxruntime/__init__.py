"""ONNX Runtime's Python interface on Treadle: its names, signatures and exceptions.

    import treadle.onnxruntime as onnxruntime

    session = onnxruntime.InferenceSession("model.onnx")
    outputs = session.run(None, {"input": array})

`treadle.onnxruntime_shim` gives this module to programs that import onnxruntime.
"""

from __future__ import annotations

from .._treadle import (
    AdapterFormat,
    LoraAdapter,
    ModelMetadata,
    NodeArg,
    OrtValue,
    RunOptions,
    SessionIOBinding,
    SessionOptions,
    SparseTensor,
)
from ..enums import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtAllocatorType,
    OrtCompileApiFlags,
    OrtDeviceMemoryType,
    OrtDeviceVendorId,
    OrtExecutionProviderDevicePolicy,
    OrtHardwareDeviceType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
    OrtSparseFormat,
)
from ..environment import (
    get_build_info,
    set_default_logger_callback,
    set_default_logger_severity,
    set_default_logger_verbosity,
)
from ._compiler import ModelCompiler
from ._devices import (
    OrtArenaCfg,
    OrtDevice,
    OrtEpAssignedNode,
    OrtEpAssignedSubgraph,
    OrtEpDevice,
    OrtExternalInitializerInfo,
    OrtHardwareDevice,
    OrtMemoryInfo,
    OrtSyncStream,
)
from ._environment import (
    copy_tensors,
    create_and_register_allocator,
    create_and_register_allocator_v2,
    disable_telemetry_events,
    enable_telemetry_events,
    get_all_providers,
    get_available_providers,
    get_device,
    get_ep_devices,
    has_collective_ops,
    onnxruntime_library,
    preload_dlls,
    print_debug_info,
    register_execution_provider_library,
    set_global_thread_pool_sizes,
    set_seed,
    unregister_execution_provider_library,
)
from ._session import InferenceSession, IOBinding
from ._state import OrtEpContextData, OrtEpContextDataBuffer

#: The version of ONNX Runtime whose interface this module follows.
__version__ = "1.32.0"


def get_version_string() -> str:
    """The version of ONNX Runtime whose interface this is."""
    return __version__


__all__ = [
    "AdapterFormat",
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "LoraAdapter",
    "ModelCompiler",
    "ModelMetadata",
    "NodeArg",
    "OrtAllocatorType",
    "OrtArenaCfg",
    "OrtCompileApiFlags",
    "OrtDevice",
    "OrtDeviceMemoryType",
    "OrtDeviceVendorId",
    "OrtEpAssignedNode",
    "OrtEpAssignedSubgraph",
    "OrtEpContextData",
    "OrtEpContextDataBuffer",
    "OrtEpDevice",
    "OrtExecutionProviderDevicePolicy",
    "OrtExternalInitializerInfo",
    "OrtHardwareDevice",
    "OrtHardwareDeviceType",
    "OrtMemType",
    "OrtMemoryInfo",
    "OrtMemoryInfoDeviceType",
    "OrtSparseFormat",
    "OrtSyncStream",
    "OrtValue",
    "RunOptions",
    "SessionIOBinding",
    "SessionOptions",
    "SparseTensor",
    "__version__",
    "copy_tensors",
    "create_and_register_allocator",
    "create_and_register_allocator_v2",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_ep_devices",
    "get_version_string",
    "has_collective_ops",
    "onnxruntime_library",
    "preload_dlls",
    "print_debug_info",
    "register_execution_provider_library",
    "set_default_logger_callback",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
    "unregister_execution_provider_library",
]

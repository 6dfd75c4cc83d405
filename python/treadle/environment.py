"""The process-wide functions of ONNX Runtime's module, and logging."""

from __future__ import annotations

import functools
import logging
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from . import _treadle
from .devices import OrtEpDevice, cpu_hardware

_logger = logging.getLogger("treadle")
# ONNX Runtime's severities (verbose, info, warning, error, fatal) as levels of Python's logging.
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
_default_severity = 2

CPU_PROVIDER = "CPUExecutionProvider"
_PROVIDERS = (
    "Tensorrt", "CUDA", "MIGraphX", "OpenVINO", "Dnnl", "VitisAI", "QNN", "Nnapi", "VSINPU", "Js", "CoreML", "Dml", "Rknpu", "WebNN", "WebGpu", "Xnnpack",
    "CANN", "Azure",
)  # fmt: skip
_callback: logging.Handler | None = None


def _warn(text: str, severity: int) -> None:
    """Called by the extension with warnings about a model; `severity` is the session's log_severity_level, -1 for the default."""
    lowest = _default_severity if severity < 0 else severity
    if lowest <= 2:
        _logger.warning(text)


def set_default_logger_severity(severity: int) -> None:
    """Sets the lowest severity that is logged: 0 verbose, 1 info, 2 warning (the default), 3 error, 4 fatal."""
    global _default_severity
    if not 0 <= severity < len(_LEVELS):
        raise ValueError(f"the severity is {severity}, outside [0, 4]")
    _default_severity = severity
    _logger.setLevel(_LEVELS[severity])


class _Callback(logging.Handler):
    def __init__(self, function: Callable[[int, str, str, str, str], None]) -> None:
        super().__init__()
        self.function = function

    def emit(self, record: logging.LogRecord) -> None:
        severity = max(i for i, level in enumerate(_LEVELS) if level <= max(record.levelno, _LEVELS[0]))
        self.function(severity, record.name, "", f"{record.filename}:{record.lineno} {record.funcName}", record.getMessage())


def set_default_logger_callback(callback: Callable[[int, str, str, str, str], None] | None, severity: int = 2) -> None:
    """Has messages go to `callback(severity, category, logid, code_location, message)` instead of the usual handlers; None takes it away.

    :param severity: the lowest that is logged, as in set_default_logger_severity; only checked where the callback is taken away.
    """
    global _callback
    if not 0 <= severity < len(_LEVELS):
        raise ValueError(f"the severity is {severity}, outside [0, 4]")
    if callback is not None and not callable(callback):
        raise TypeError(f"the callback is a {type(callback).__name__}, which cannot be called")
    if _callback is not None:
        _logger.removeHandler(_callback)
        _callback, _logger.propagate = None, True
    if callback is None:
        return
    _callback = _Callback(callback)
    _logger.addHandler(_callback)
    _logger.propagate = False
    set_default_logger_severity(severity)


def set_default_logger_verbosity(verbosity: int) -> None:
    """Accepted, without meaning."""


def get_available_providers() -> list[str]:
    """The execution providers of this build."""
    return [CPU_PROVIDER]


def get_all_providers() -> list[str]:
    """The execution providers that any build of ONNX Runtime may have, in the order in which it prefers them."""
    return [f"{name}ExecutionProvider" for name in _PROVIDERS] + [CPU_PROVIDER]


def get_device() -> str:
    """The device of this build."""
    return "CPU"


def get_version_string() -> str:
    """Treadle's version."""
    return _treadle.version()


def get_build_info() -> str:
    """A line about this build."""
    return f"Treadle Build Info: version={_treadle.version()}, platform={platform.machine()}"


def onnxruntime_library() -> str:
    """The path of libonnxruntime.so.1 in this package: ONNX Runtime's C interface, for programs that load its library.

    Raises FileNotFoundError where it was not built."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "onnxruntime", "capi", "libonnxruntime.so.1")
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path} is not part of this build (TREADLE_BUILD_ORT_API)")
    return path


def has_collective_ops() -> bool:
    """False: runs stay in one process."""
    return False


def set_seed(seed: int) -> None:
    """Accepted without effect: the numbers of random operators without a seed of their own depend on the node and the run only."""


def set_global_thread_pool_sizes(intra_op_num_threads: int, inter_op_num_threads: int) -> None:
    """Accepted: sessions share one pool, sized from the CPUs that the process may use."""


def enable_telemetry_events() -> None:
    """Accepted: there is no telemetry."""


def disable_telemetry_events() -> None:
    """Accepted: there is no telemetry."""


@functools.cache
def _cpu_device() -> OrtEpDevice:
    return OrtEpDevice(CPU_PROVIDER, cpu_hardware(), {"version": get_version_string()})


def get_ep_devices() -> list[OrtEpDevice]:
    """Devices of execution providers: the CPU."""
    return [_cpu_device()]


def register_execution_provider_library(name: str, path: str) -> None:
    """Not supported."""
    from .errors import NotImplemented as NotImplementedByTreadle

    raise NotImplementedByTreadle(f"execution providers as libraries ({name}: {path})", code="not_implemented")


def unregister_execution_provider_library(name: str) -> None:
    """Not supported."""
    from .errors import InvalidArgument

    raise InvalidArgument(f"there is no execution provider library {name!r}", code="invalid_argument")


def create_and_register_allocator(memory_info: object, arena_config: object = None) -> None:
    """Accepted: memory is planned, there is no allocator to configure."""


def create_and_register_allocator_v2(
    provider: str, memory_info: object, options: Mapping[str, str], arena_config: object = None
) -> None:
    """Accepted: memory is planned, there is no allocator to configure."""


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None) -> None:
    """Accepted: there is nothing to load."""


def print_debug_info() -> None:
    """Prints versions, for reports of faults."""
    print(get_build_info())
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.platform()}")


def copy_tensors(src: Sequence[_treadle.OrtValue], dst: Sequence[_treadle.OrtValue], stream: object = None) -> None:
    """Copies the elements of each value into the memory of the one in the same place."""
    if len(src) != len(dst):
        raise ValueError(f"{len(src)} sources for {len(dst)} destinations")
    for source, target in zip(src, dst, strict=True):
        target.update_inplace(source)

"""The process-wide functions of ONNX Runtime's module: execution providers, devices, allocators."""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Mapping, Sequence

import numpy as np

from .. import _treadle
from ..environment import get_build_info, get_version_string
from ..errors import InvalidArgument
from ..errors import NotImplemented as NotImplementedByTreadle
from ._devices import OrtEpDevice, cpu_hardware, gpu_hardware

CPU_PROVIDER = "CPUExecutionProvider"
VULKAN_PROVIDER = "VulkanExecutionProvider"
_PROVIDERS = (
    "Tensorrt", "CUDA", "MIGraphX", "OpenVINO", "Dnnl", "VitisAI", "QNN", "Nnapi", "VSINPU", "Js", "CoreML", "Dml", "Rknpu", "WebNN", "WebGpu", "Xnnpack",
    "CANN", "Azure",
)  # fmt: skip


def get_available_providers() -> list[str]:
    """Returns the execution providers that have a device on this machine. Vulkan's has one if there is a GPU; drivers on the CPU do not count."""
    return [VULKAN_PROVIDER, CPU_PROVIDER] if len(_ep_devices()) > 1 else [CPU_PROVIDER]


def get_all_providers() -> list[str]:
    """Returns the execution providers that builds of ONNX Runtime may have, in its order of preference, and Vulkan's."""
    return [f"{name}ExecutionProvider" for name in _PROVIDERS] + [VULKAN_PROVIDER, CPU_PROVIDER]


def get_device() -> str:
    """Returns the device of this build."""
    return "CPU"


def onnxruntime_library() -> str:
    """Returns the path of libonnxruntime.so.1 in this package, for programs that load ONNX Runtime's library to use its C interface.

    Raises FileNotFoundError if it was not built.
    """
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "capi", "libonnxruntime.so.1")
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path} is not part of this build (TREADLE_BUILD_ORT_API)")
    return path


def has_collective_ops() -> bool:
    """Returns False: runs stay in one process."""
    return False


def set_seed(seed: int) -> None:
    """Accepted without effect: the random numbers of operators without a seed depend only on the node and the run."""


def set_global_thread_pool_sizes(intra_op_num_threads: int, inter_op_num_threads: int) -> None:
    """Does nothing: sessions share one pool, whose size depends on the CPUs that the process may use."""


def enable_telemetry_events() -> None:
    """Accepted without effect: there is no telemetry."""


def disable_telemetry_events() -> None:
    """Accepted without effect: there is no telemetry."""


@functools.cache
def _cpu_device() -> OrtEpDevice:
    return OrtEpDevice(CPU_PROVIDER, cpu_hardware(), {"version": get_version_string()})


@functools.cache
def _ep_devices() -> tuple[OrtEpDevice, ...]:
    version = {"version": get_version_string()}
    gpus = [
        OrtEpDevice(VULKAN_PROVIDER, gpu_hardware(model, vendor, device, is_discrete), version, {"device_id": name.partition(":")[2]})
        for name, model, vendor, device, is_discrete in _treadle.offered_gpus()
    ]
    return (_cpu_device(), *gpus)


def get_ep_devices() -> list[OrtEpDevice]:
    """Returns the devices of execution providers: the CPU and GPUs."""
    return list(_ep_devices())


def device_of_provider(provider: str, device: str) -> OrtEpDevice:
    """Returns the device on which a session with this provider runs."""
    if provider == CPU_PROVIDER:
        return _cpu_device()
    number = device.partition(":")[2]
    gpus = [each for each in _ep_devices() if each.ep_name == provider]
    return next((gpu for gpu in gpus if number in ("", gpu.ep_options["device_id"])), _cpu_device())


def register_execution_provider_library(name: str, path: str) -> None:
    """Always raises an error with the code "not_implemented"."""
    raise NotImplementedByTreadle(f"execution providers as libraries ({name}: {path})", code="not_implemented")


def unregister_execution_provider_library(name: str) -> None:
    """Always raises InvalidArgument, because no library can be registered."""
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
    """Copies the elements of each source value into the memory of the destination value at the same position."""
    if len(src) != len(dst):
        raise ValueError(f"{len(src)} sources for {len(dst)} destinations")
    for source, target in zip(src, dst, strict=True):
        target.update_inplace(source)

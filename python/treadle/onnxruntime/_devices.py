"""Descriptions of devices and memory."""

from __future__ import annotations

import functools

from ..enums import (
    OrtAllocatorType,
    OrtDeviceMemoryType,
    OrtDeviceVendorId,
    OrtHardwareDeviceType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
)
from ..errors import NotImplemented as NotImplementedByTreadle

_DEVICE_TYPES = {"cpu": 0, "cuda": 1, "gpu": 1, "dml": 1, "webgpu": 1, "fpga": 2, "npu": 3, "cann": 3}
_VENDORS = {
    "cuda": OrtDeviceVendorId.NVIDIA,
    "dml": OrtDeviceVendorId.MICROSOFT,
    "cann": OrtDeviceVendorId.HUAWEI,
}


class OrtDevice:
    """A device, given by its kind, its number among devices of this kind, and its vendor."""

    def __init__(self, device_type: int = 0, mem_type: int = 0, vendor_id: int = 0, device_id: int = 0) -> None:
        self._type = device_type
        self._mem_type = mem_type
        self._vendor_id = vendor_id
        self._id = device_id

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """Makes the device with this name: "cpu", "cuda", "gpu", "npu" …"""
        name = ort_device_name.lower()
        if name not in _DEVICE_TYPES:
            raise ValueError(f"Unsupported device type: {ort_device_name}")
        vendor = int(_VENDORS.get(name, 0)) if vendor_id < 0 else int(vendor_id)
        return OrtDevice(_DEVICE_TYPES[name], 0, vendor, device_id)

    def device_id(self) -> int:
        """The device's number among devices of its kind."""
        return self._id

    def device_type(self) -> int:
        """The kind of the device: 0 CPU, 1 GPU, 2 FPGA, 3 NPU."""
        return self._type

    def device_vendor_id(self) -> int:
        """The PCI number of the device's vendor."""
        return self._vendor_id

    vendor_id = device_vendor_id

    def device_mem_type(self) -> int:
        """The kind of the device's memory."""
        return self._mem_type

    mem_type = device_mem_type

    def _get_c_device(self) -> OrtDevice:
        return self

    @staticmethod
    def cpu() -> int:
        """Returns the number of the kind CPU."""
        return 0

    @staticmethod
    def cuda() -> int:
        """Returns the number of the kind GPU."""
        return 1

    gpu = dml = webgpu = cuda

    @staticmethod
    def fpga() -> int:
        """Returns the number of the kind FPGA."""
        return 2

    @staticmethod
    def npu() -> int:
        """Returns the number of the kind NPU."""
        return 3

    cann = npu

    @staticmethod
    def default_memory() -> int:
        """Returns the number of the default kind of memory."""
        return 0


class OrtMemoryInfo:
    """Says in which device's memory a value is, and which kind of memory it is."""

    def __init__(
        self,
        name: str = "Cpu",
        allocator_type: OrtAllocatorType = OrtAllocatorType.ORT_DEVICE_ALLOCATOR,
        device_id: int = 0,
        mem_type: OrtMemType = OrtMemType.DEFAULT,
    ) -> None:
        self.name = name
        self.allocator_type = allocator_type
        self.device_id = device_id
        self.mem_type = mem_type
        self.device_mem_type = OrtDeviceMemoryType.DEFAULT
        self.device_vendor_id = 0

    @classmethod
    def create_v2(
        cls,
        name: str,
        device_type: OrtMemoryInfoDeviceType,
        vendor_id: int,
        device_id: int,
        device_mem_type: OrtDeviceMemoryType,
        alignment: int,
        allocator_type: OrtAllocatorType,
    ) -> OrtMemoryInfo:
        """Makes an object with the arguments of the newer constructor."""
        info = cls(name, allocator_type, device_id)
        info.device_mem_type = device_mem_type
        info.device_vendor_id = vendor_id
        return info


class OrtArenaCfg:
    """Settings of ONNX Runtime's arena. They are stored without effect, because memory is planned."""

    def __init__(
        self,
        max_mem: int | dict[str, int] = 0,
        arena_extend_strategy: int = -1,
        initial_chunk_size_bytes: int = -1,
        max_dead_bytes_per_chunk: int = -1,
    ) -> None:
        settings = dict(max_mem) if isinstance(max_mem, dict) else {"max_mem": max_mem}
        self.max_mem = settings.get("max_mem", 0)
        self.arena_extend_strategy = settings.get("arena_extend_strategy", arena_extend_strategy)
        self.initial_chunk_size_bytes = settings.get("initial_chunk_size_bytes", initial_chunk_size_bytes)
        self.max_dead_bytes_per_chunk = settings.get("max_dead_bytes_per_chunk", max_dead_bytes_per_chunk)
        self.initial_growth_chunk_size_bytes = settings.get("initial_growth_chunk_size_bytes", -1)
        self.max_power_of_two_extend_bytes = settings.get("max_power_of_two_extend_bytes", -1)


class OrtExternalInitializerInfo:
    """The location of an initializer in a file."""

    def __init__(self, filepath: str, file_offset: int, byte_size: int) -> None:
        self.filepath = filepath
        self.file_offset = file_offset
        self.byte_size = byte_size


class OrtHardwareDevice:
    """A hardware device: the CPU, or a GPU."""

    def __init__(self, vendor: str = "", vendor_id: int = 0) -> None:
        self.type = OrtHardwareDeviceType.CPU
        self.vendor = vendor
        self.vendor_id = vendor_id
        self.device_id = 0
        self.metadata: dict[str, str] = {}


class OrtEpDevice:
    """A device as an execution provider offers it."""

    def __init__(self, ep_name: str, device: OrtHardwareDevice, ep_metadata: dict[str, str], ep_options: dict[str, str] | None = None) -> None:
        self.ep_name = ep_name
        self.ep_vendor = "Treadle"
        self.ep_metadata = ep_metadata
        self.ep_options: dict[str, str] = ep_options or {}
        self.device = device

    def memory_info(self, memory_type: OrtDeviceMemoryType) -> None:
        """Returns None: the CPU only has the process's memory, and values are copied to a GPU's memory by runs."""
        return

    def create_sync_stream(self, stream_options: dict[str, str]) -> object:
        """Always raises an error with the code "not_implemented"."""
        raise NotImplementedByTreadle("sessions make the streams of their devices themselves", code="not_implemented")


# For each vendor name that a processor reports: the vendor's usual name, and its PCI number.
_CPU_VENDORS = {"GenuineIntel": ("Intel", 0x8086), "AuthenticAMD": ("AMD", 0x1022)}


@functools.cache
def cpu_hardware() -> OrtHardwareDevice:
    """Returns a description of the processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            named = next((line.split(":")[1].strip() for line in file if line.startswith("vendor_id")), "")
    except OSError:
        named = ""
    return OrtHardwareDevice(*_CPU_VENDORS.get(named, ("", 0)))


_GPU_VENDORS = {0x1002: "AMD", 0x106B: "Apple", 0x10DE: "NVIDIA", 0x13B5: "ARM", 0x5143: "Qualcomm", 0x8086: "Intel", 0x10005: "Mesa"}


def gpu_hardware(model: str, vendor_id: int, device_id: int, is_discrete: bool) -> OrtHardwareDevice:
    """Returns a description of a GPU."""
    gpu = OrtHardwareDevice(_GPU_VENDORS.get(vendor_id, ""), vendor_id)
    gpu.type = OrtHardwareDeviceType.GPU
    gpu.device_id = device_id
    gpu.metadata = {"Description": model, "Discrete": "1" if is_discrete else "0"}
    return gpu


class _Unsupported:
    """Base of classes for other devices, which exist only so that programs can import them and name them in annotations."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedByTreadle(f"there is no {type(self).__name__} here", code="not_implemented")


class OrtSyncStream(_Unsupported):
    """A stream of a device."""


class OrtEpAssignedNode:
    """A node assigned to an execution provider."""

    def __init__(self, name: str, domain: str, op_type: str) -> None:
        self.name = name
        self.domain = domain
        self.op_type = op_type


class OrtEpAssignedSubgraph:
    """A subgraph assigned to an execution provider."""

    def __init__(self, ep_name: str, nodes: list[OrtEpAssignedNode]) -> None:
        self.ep_name = ep_name
        self._nodes = nodes

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        """Returns the nodes of the subgraph, in order."""
        return list(self._nodes)

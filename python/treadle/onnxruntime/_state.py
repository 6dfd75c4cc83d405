"""Names that ONNX Runtime's extension module has and its package lacks: schemas of operators, functions of quantizers, compatibility of models.

The shim adds them to `onnxruntime.capi.onnxruntime_pybind11_state` and `_pybind_state`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

from .. import _treadle
from ..enums import _Named
from ..errors import InvalidArgument, RuntimeException
from ..errors import NotImplemented as NotImplementedByTreadle
from . import _session
from ._devices import OrtEpDevice, OrtHardwareDevice, _Unsupported
from ._environment import CPU_PROVIDER


class OrtCompiledModelCompatibility(_Named):
    """Says whether a device can run a model that was compiled for it. The CPU runs ONNX models, which are not compiled, so the answer is
    always EP_NOT_APPLICABLE.
    """

    EP_NOT_APPLICABLE = 0
    EP_SUPPORTED_OPTIMAL = 1
    EP_SUPPORTED_PREFER_RECOMPILATION = 2
    EP_UNSUPPORTED = 3


class OrtDeviceEpIncompatibilityReason(_Named):
    """Reasons for which an execution provider cannot use a device."""

    NONE = 0
    DRIVER_INCOMPATIBLE = 1
    DEVICE_INCOMPATIBLE = 2
    MISSING_DEPENDENCY = 4
    UNKNOWN = -2147483648


class ArenaExtendStrategy(_Named):
    """How ONNX Runtime's arena grows. It has no effect, because memory is planned."""

    kNextPowerOfTwo = 0  # noqa: N815
    kSameAsRequested = 1  # noqa: N815


class OrtEpContextData(_Unsupported):
    """Stands for compiled data that an execution provider writes."""


class OrtEpContextDataBuffer(_Unsupported):
    """Stands for compiled data that an execution provider reads."""


class SparseBlockSparseView(_Unsupported):
    """The indices of a sparse tensor in blocks."""


#: The number by which ONNX Runtime's schemas express that versions, inputs or outputs have no upper limit.
_NO_END = 2147483647


def _type_constraints(operator: dict[str, Any]) -> dict[str, list[str]]:
    named: dict[str, list[str]] = {}
    for _, type_name, types, _ in [*operator["inputs"], *operator["outputs"]]:
        if type_name:
            named.setdefault(type_name, types)
    return named


class OpSchema:
    """An operator in the version that the library computes, the newest one.

    `doc` and descriptions are empty. The types of some attributes without a default are unknown.
    """

    class FormalParameterOption(_Named):
        """Says whether an input or output is required, optional or repeated."""

        Single = 0
        Optional = 1
        Variadic = 2

    class SupportType(_Named):
        """How stable an operator is: common, or experimental, which may change."""

        COMMON = 0
        EXPERIMENTAL = 1

    class AttrType(IntEnum):
        """ONNX's numbers of attribute types, and UNDEFINED where the library knows none."""

        UNDEFINED = 0
        FLOAT = 1
        INT = 2
        STRING = 3

    class FormalParameter:
        """An input or output of an operator."""

        def __init__(self, name: str, type_name: str, types: list[str], option: OpSchema.FormalParameterOption) -> None:
            self.name = name
            self.typeStr = type_name or (types[0] if len(types) == 1 else "")
            self.types = set(types)
            self.option = option
            self.isHomogeneous = True
            self.description = ""

    class Attribute:
        """An attribute of an operator. `default_value` is None if the attribute has no default."""

        def __init__(self, name: str, attribute_type: int, default: object, required: bool) -> None:
            self.name = name
            self.type = OpSchema.AttrType(attribute_type)
            self.default_value = default
            self.required = required
            self.description = ""

    class TypeConstraintParam:
        """A type parameter, which several inputs and outputs may share, and the types that it allows."""

        def __init__(self, name: str, types: list[str]) -> None:
            self.type_param_str = name
            self.allowed_type_strs = types
            self.description = ""

    def __init__(self, operator: dict[str, Any]) -> None:
        option = OpSchema.FormalParameterOption
        self.name: str = operator["name"]
        self.domain: str = operator["domain"]
        self.since_version: int = operator["since"][-1] if operator["since"] else 1
        self.deprecated = False
        self.support_level = OpSchema.SupportType.COMMON
        self.doc = self.file = ""
        self.line = 0
        self.has_type_and_shape_inference_function = True
        self.min_input, self.max_input = operator["num_inputs"]
        self.min_output, self.max_output = operator["num_outputs"]
        self.inputs, self.outputs = (
            [OpSchema.FormalParameter(name, kind, types, option(presence)) for name, kind, types, presence in operator[ports]]
            for ports in ("inputs", "outputs")
        )
        self.attributes = {attribute[0]: OpSchema.Attribute(*attribute) for attribute in operator["attributes"]}
        self.type_constraints = [OpSchema.TypeConstraintParam(name, types) for name, types in _type_constraints(operator).items()]

    @staticmethod
    def is_infinite(count: int) -> bool:
        """True if `max_input` or `max_output` means "any number"."""
        return count == _NO_END

    def __repr__(self) -> str:
        return f"OpSchema(name={self.name!r}, domain={self.domain!r}, since_version={self.since_version})"


def get_all_operator_schema() -> list[OpSchema]:
    """The operators of ONNX's domains and com.microsoft, each in the newest version."""
    return [OpSchema(operator) for operator in _treadle.operators()]


class KernelDef:
    """An operator in a range of opsets, with the types for which it has kernels.

    One object stands for all kernels of an operator, while ONNX Runtime lists each type separately. Older versions of an operator are computed like
    the newest one, with its types.
    """

    def __init__(self, operator: dict[str, Any], version_range: tuple[int, int]) -> None:
        self.op_name: str = operator["name"]
        self.domain: str = operator["domain"]
        self.provider = CPU_PROVIDER
        self.version_range = version_range
        self.type_constraints: dict[str, list[str]] = _type_constraints(operator)

    def __repr__(self) -> str:
        return f"KernelDef(op_name={self.op_name!r}, domain={self.domain!r}, version_range={self.version_range})"


def get_all_opkernel_def() -> list[KernelDef]:
    """Returns a KernelDef for each operator and version."""
    return [
        KernelDef(operator, (since, following - 1))
        for operator in _treadle.operators()
        for since, following in itertools.pairwise([*(operator["since"] or [1]), _NO_END + 1])
    ]


def get_registered_ep_kernel_defs(ep_name: str) -> list[KernelDef]:
    """Returns the kernels of a provider, which must be the CPU's."""
    if ep_name != CPU_PROVIDER:
        raise RuntimeException(f"there is no execution provider {ep_name}; {CPU_PROVIDER} is there", code="runtime_exception")
    return get_all_opkernel_def()


def quantize_matmul_2bits(codes: Any, weights: Any, scales: Any, zeros: Any, block_size: int, n: int, k: int, symmetric: bool) -> None:
    """Quantises weights [k, n] to 2 bits, in blocks along k in the layout of MatMulNBits, into the arrays `codes`, `scales` and `zeros`."""
    _treadle.cut_matmul(codes, weights, scales, zeros, block_size, n, k, symmetric, 2, False)


def quantize_matmul_4bits(codes: Any, weights: Any, scales: Any, zeros: Any, block_size: int, n: int, k: int, symmetric: bool) -> None:
    """Does what `quantize_matmul_2bits` does, in 4 bits."""
    _treadle.cut_matmul(codes, weights, scales, zeros, block_size, n, k, symmetric, 4, False)


def quantize_matmul_8bits(codes: Any, weights: Any, scales: Any, zeros: Any, block_size: int, n: int, k: int, symmetric: bool) -> None:
    """Does what `quantize_matmul_2bits` does, in 8 bits."""
    _treadle.cut_matmul(codes, weights, scales, zeros, block_size, n, k, symmetric, 8, False)


def quantize_qdq_matmul_4bits(codes: Any, weights: Any, scales: Any, zeros: Any, block_size: int, n: int, k: int, symmetric: bool) -> bool:
    """Quantises weights [k, n] to 4 bits, in blocks along k in the layout of DequantizeLinear. :returns: True if the codes are signed"""
    return bool(_treadle.cut_matmul(codes, weights, scales, zeros, block_size, n, k, symmetric, 4, True))


def quantize_qdq_matmul_2bits(codes: Any, weights: Any, scales: Any, zeros: Any, block_size: int, n: int, k: int, symmetric: bool) -> bool:
    """Does what `quantize_qdq_matmul_4bits` does, in 2 bits. The same function of ONNX Runtime 1.31 writes 4-bit codes, beyond the end of
    the given array.
    """
    return bool(_treadle.cut_matmul(codes, weights, scales, zeros, block_size, n, k, symmetric, 2, True))


def pack_fp4_weights_for_cuda_moe_gemm(q_weights: Any, N: int, K: int) -> Any:  # noqa: N803
    """Always raises an error with the code "not_implemented": only kernels for CUDA read this layout."""
    raise NotImplementedByTreadle("pack_fp4_weights_for_cuda_moe_gemm: the layout is that of kernels for CUDA, and there is the CPU only", code="not_implemented")


def quantize_matmul_bnb4(codes: Any, weights: Any, absmax: Any, block_size: int, quant_type: int, n: int, k: int) -> None:
    """Quantises n * k weights in blocks in the layout of MatMulBnb4, to FP4 (`quant_type` 0) or NF4 (1)."""
    _treadle.cut_matmul_bnb4(codes, weights, absmax, block_size, quant_type, n, k)


def _compatibility(model: _treadle.Model, ep_type: str) -> str | None:
    return model.metadata.custom_metadata_map.get(f"ep_compatibility_info.{ep_type}")


def get_compatibility_info_from_model(model_path: str | os.PathLike[str], ep_type: str) -> str | None:
    """Returns what the model's metadata says about the provider that the model was compiled for; None if the metadata says nothing."""
    return _compatibility(_treadle.Model.load(os.fspath(model_path)), ep_type)


def get_compatibility_info_from_model_bytes(model_data: bytes | bytearray | memoryview, ep_type: str) -> str | None:
    """Does what `get_compatibility_info_from_model` does, for an encoded model."""
    return _compatibility(_treadle.Model.from_bytes(bytes(model_data)), ep_type)


def get_model_compatibility_for_ep_devices(ep_devices: Sequence[OrtEpDevice], compatibility_info: str) -> OrtCompiledModelCompatibility:
    """Returns EP_NOT_APPLICABLE: the CPU runs ONNX models, which need not be compiled for it."""
    if not ep_devices:
        raise InvalidArgument("there are no devices", code="invalid_argument")
    return OrtCompiledModelCompatibility.EP_NOT_APPLICABLE


def get_hardware_device_ep_incompatibility_details(ep_name: str, hardware_device: OrtHardwareDevice) -> dict[str, Any]:
    """Returns the reasons for which the provider cannot use the device; the CPU has none."""
    if ep_name != CPU_PROVIDER:
        raise InvalidArgument(f"there is no execution provider {ep_name}; {CPU_PROVIDER} is there", code="invalid_argument")
    return {"reasons_bitmask": 0, "notes": None, "error_code": 0}


class SessionObjectInitializer:
    """The destination of a session's log. It has no effect, as the environment has one log."""


def get_session_initializer() -> SessionObjectInitializer:
    """Returns default options of sessions."""
    return SessionObjectInitializer()


class InferenceSession:
    """The session class of ONNX Runtime's extension module. It is made of options and a model, which `initialize_session` loads. Its other members
    are those of `onnxruntime.InferenceSession`.
    """

    def __init__(self, options: _treadle.SessionOptions, model: str | bytes, from_file: bool, read_config_from_model: bool = False) -> None:
        self.session_options = options
        self._session: _session.InferenceSession | None = None
        if read_config_from_model:
            raise NotImplementedByTreadle("options within a model's metadata are not read", code="not_implemented")
        self._model: str | bytes
        if from_file:  # raises an error here if the file cannot be read
            self._model = path = os.fsdecode(model)
            _treadle.Model.load(path, options)
        else:
            self._model = content = model.encode() if isinstance(model, str) else bytes(model)
            _treadle.Model.from_bytes(content, "", options)

    def initialize_session(
        self, providers: Sequence[str], provider_options: Sequence[Mapping[str, str]] = (), disabled_optimizers: Iterable[str] = ()
    ) -> None:
        """Loads the model."""
        options = [dict(each) for each in provider_options] or None
        self._session = _session.InferenceSession(
            self._model, self.session_options, list(providers) or None, options, disabled_optimizers=sorted(disabled_optimizers)
        )

    def __getattr__(self, name: str) -> Any:
        if self._session is None:
            raise RuntimeException("the session has no model: call initialize_session first", code="internal")
        return getattr(self._session._sess if hasattr(self._session._sess, name) else self._session, name)


def contents() -> dict[str, object]:
    """Returns all objects of this module, by their names in the extension module."""
    own = {name: value for name, value in globals().items() if getattr(value, "__module__", None) == __name__ and not name.startswith("_")}
    own.pop("contents")
    own.pop("OpSchema")
    own.pop("KernelDef")
    return own | {
        "kNextPowerOfTwo": ArenaExtendStrategy.kNextPowerOfTwo,
        "kSameAsRequested": ArenaExtendStrategy.kSameAsRequested,
        "schemadef": SimpleNamespace(OpSchema=OpSchema),
        "opkernel": SimpleNamespace(KernelDef=KernelDef),
        "SparseCooView": _treadle.SparseCooView,
        "SparseCsrView": _treadle.SparseCsrView,
    }

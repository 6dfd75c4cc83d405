"""Custom operators whose kernels are Python functions, for ONNX Runtime's C interface."""

from __future__ import annotations

import ctypes
import traceback
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any, Callable

from onnxruntime_c import Api

_KERNEL = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_void_p, POINTER(c_void_p))
_COMPUTE = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p)
_NAME = ctypes.CFUNCTYPE(c_void_p, c_void_p)
_COUNT = ctypes.CFUNCTYPE(c_size_t, c_void_p)
_TYPE = ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t)
_VARIADIC = ctypes.CFUNCTYPE(c_int, c_void_p)
_DESTROY = ctypes.CFUNCTYPE(None, c_void_p)


KEPT: list[Operator] = []  # keeps operators alive as long as their domains


class _CustomOp(ctypes.Structure):
    _fields_ = [("version", c_uint32), ("create", c_void_p), ("name", _NAME), ("provider", _NAME), ("input_type", _TYPE), ("inputs", _COUNT), ("output_type", _TYPE), ("outputs", _COUNT),
                ("compute", c_void_p), ("destroy", _DESTROY), ("input_kind", _TYPE), ("output_kind", _TYPE), ("input_memory", _TYPE),
                ("least_inputs", _VARIADIC), ("same_inputs", _VARIADIC), ("least_outputs", _VARIADIC), ("same_outputs", _VARIADIC),
                ("create_v2", _KERNEL), ("compute_v2", _COMPUTE), ("later", c_void_p * 8)]


class Operator:
    """A custom operator. `create(info)` returns the state that `compute(kernel, context)` gets. Exceptions become the kernel's status."""

    def __init__(self, api: Api, name: str, input_types: list[int], output_types: list[int], create: Callable[[c_void_p], Any], compute: Callable[[Any, c_void_p], None]) -> None:
        self.api, self.kernels = api, {}
        self.errors: list[str] = []
        self.name = ctypes.create_string_buffer(name.encode())

        def create_kernel(_op: int, _api: int, info: int, out: Any) -> int | None:
            def make() -> None:
                made = create(c_void_p(info))
                self.kernels[len(self.kernels) + 1] = made
                out[0] = len(self.kernels)

            return self._told(make)

        def compute_kernel(kernel: int, context: int) -> int | None:
            return self._told(lambda: compute(self.kernels[kernel], c_void_p(context)))

        self.op = _CustomOp(16, None, _NAME(lambda _op: ctypes.addressof(self.name)), _NAME(lambda _op: None), _TYPE(lambda _op, i: input_types[i]), _COUNT(lambda _op: len(input_types)),
                            _TYPE(lambda _op, i: output_types[i]), _COUNT(lambda _op: len(output_types)), None, _DESTROY(lambda _kernel: None), _TYPE(lambda _op, _i: 0),
                            _TYPE(lambda _op, _i: 0), _TYPE(lambda _op, _i: 0), _VARIADIC(lambda _op: 1), _VARIADIC(lambda _op: 1), _VARIADIC(lambda _op: 1), _VARIADIC(lambda _op: 1),
                            _KERNEL(create_kernel), _COMPUTE(compute_kernel))

    def _told(self, body: Callable[[], None]) -> int | None:
        try:
            body()
        except Exception as error:  # noqa: BLE001
            self.errors.append(traceback.format_exc())
            return self.api.call("CreateStatus", 1, str(error).encode(), result=c_void_p)
        return None

    def options(self, domain: str) -> c_void_p:
        """Returns session options with this operator."""
        options, self.domain = self.api.options(), self.api.made("CreateCustomOpDomain", domain.encode())
        self.api.call("CustomOpDomain_Add", self.domain, byref(self.op))
        self.api.call("AddCustomOpDomain", options, self.domain)
        KEPT.append(self)
        return options

    def release(self) -> None:
        """Releases the domain, after its sessions have ended."""
        self.api.call("ReleaseCustomOpDomain", self.domain, result=None)


def input_of(api: Api, context: c_void_p, index: int) -> c_void_p:
    return api.made("KernelContext_GetInput", context, c_size_t(index))


def output_of(api: Api, context: c_void_p, index: int, dims: list[int]) -> c_void_p:
    return api.made("KernelContext_GetOutput", context, c_size_t(index), (c_int64 * max(len(dims), 1))(*dims), c_size_t(len(dims)))


def create_op(api: Api, info: c_void_p, name: str, domain: str, version: int, constraints: dict[str, int], attributes: list[c_void_p], inputs: int, outputs: int) -> c_void_p:
    names = (c_char_p * max(len(constraints), 1))(*[key.encode() for key in constraints])
    dtypes = (c_int * max(len(constraints), 1))(*constraints.values())
    given = (c_void_p * max(len(attributes), 1))(*[attribute.value for attribute in attributes])
    return api.made("CreateOp", info, name.encode(), domain.encode(), version, names, dtypes, len(constraints), given, len(attributes), inputs, outputs)


def invoke_op(api: Api, context: c_void_p, op: c_void_p, inputs: list[c_void_p | None], outputs: list[c_void_p | None]) -> None:
    def pointers(values: list[c_void_p | None]) -> Any:
        return (c_void_p * max(len(values), 1))(*[value.value if value is not None else None for value in values])

    api.call("InvokeOp", context, op, pointers(inputs), len(inputs), pointers(outputs), len(outputs))

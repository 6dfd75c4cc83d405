"""Exceptions, under the names that ONNX Runtime gives them."""

from __future__ import annotations

# The module onnxruntime_shim sets this to True. Messages of errors then begin like ONNX Runtime's, because programs search for such texts,
# and errors of graphs and nodes are raised as ONNX Runtime's classes.
_are_onnxruntimes = False

# ONNX Runtime's status numbers and status names, by the names of the exception classes below.
_STATUSES = {
    "Fail": (1, "FAIL"),
    "InvalidArgument": (2, "INVALID_ARGUMENT"),
    "NoSuchFile": (3, "NO_SUCHFILE"),
    "NoModel": (4, "NO_MODEL"),
    "EngineError": (5, "ENGINE_ERROR"),
    "RuntimeException": (6, "RUNTIME_EXCEPTION"),
    "OutOfMemory": (6, "RUNTIME_EXCEPTION"),
    "InvalidProtobuf": (7, "INVALID_PROTOBUF"),
    "ModelLoaded": (8, "MODEL_LOADED"),
    "NotImplemented": (9, "NOT_IMPLEMENTED"),
    "InvalidGraph": (10, "INVALID_GRAPH"),
    "EPFail": (11, "EP_FAIL"),
    "ModelLoadCanceled": (12, "MODEL_LOAD_CANCELED"),
    "ModelRequiresCompilation": (13, "MODEL_REQUIRES_COMPILATION"),
    "NotFound": (14, "NOT_FOUND"),
}


class Error(Exception):
    """An error of the library. `code` names a more precise class: "invalid_argument", "not_implemented", "cancelled" …"""

    def __init__(self, *args: object, code: str = "internal") -> None:
        super().__init__(*args)
        self.code = code

    def __str__(self) -> str:
        text, status = super().__str__(), _STATUSES.get(type(self).__name__)
        if status is None or not _are_onnxruntimes:
            return text
        return f"[ONNXRuntimeError] : {status[0]} : {status[1]} : {text}"


class Fail(Error):
    """A run was cancelled or timed out, or a file could not be read or written."""


class InvalidArgument(Error):
    """A value given by the caller is wrong: a name, dtype, shape or option."""


class NoSuchFile(Error):
    """The model file does not exist."""


class NoModel(Error):
    """No model was given."""


class EngineError(Error):
    """Never raised; exists because ONNX Runtime has it."""


class RuntimeException(Error):
    """A bug of the library, a limit that was exceeded, or memory that ran out."""


class OutOfMemory(RuntimeException, MemoryError):
    """Memory ran out: an account's limit, an allocator or a device refused it. If another limit is exceeded, the error is a `RuntimeException`
    with the same code.
    """


class InvalidProtobuf(Error):
    """The file or the bytes are no ONNX model."""


class ModelLoaded(Error):
    """The session already has a model."""


class NotImplemented(Error):
    """The model is valid, but this build lacks an operator, dtype or feature that it needs; all of them are listed."""


class InvalidGraph(Error):
    """The model violates ONNX's rules."""


class EPFail(Error):
    """Never raised; in ONNX Runtime, an execution provider failed."""


class ModelLoadCanceled(Error):
    """Loading was cancelled."""


class ModelRequiresCompilation(Error):
    """Never raised; exists because ONNX Runtime has it."""


class NotFound(Error):
    """A value, pass or option does not exist."""


class DeviceReset(Error):
    """Never raised; exists because ONNX Runtime has it."""


def of_binding(error: Error) -> Error:
    """Converts an error about bound values. The result is also a RuntimeError, as in ONNX Runtime."""
    if not _are_onnxruntimes or isinstance(error, RuntimeError):
        return error
    kind = type(error)
    raised: type[Error] = type(kind.__name__, (kind, RuntimeError), {"__module__": kind.__module__})
    return raised(*error.args, code=error.code)

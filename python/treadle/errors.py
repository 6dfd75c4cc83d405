"""Exceptions, under the names that ONNX Runtime gives them."""

from __future__ import annotations


class Error(Exception):
    """What the library raises. `code` is its own, finer class: "invalid_argument", "not_implemented", "cancelled" …"""

    def __init__(self, *args: object, code: str = "internal") -> None:
        super().__init__(*args)
        self.code = code


class Fail(Error):
    """A run was cancelled or timed out, or a file could not be read or written."""


class InvalidArgument(Error):
    """A caller's value: wrong name, dtype, shape or option."""


class NoSuchFile(Error):
    """There is no such model file."""


class NoModel(Error):
    """There is no model."""


class EngineError(Error):
    """Never raised; ONNX Runtime has it."""


class RuntimeException(Error):
    """The library's own mistake, or memory that ran out."""


class InvalidProtobuf(Error):
    """The file or the bytes are no ONNX model."""


class ModelLoaded(Error):
    """The session has a model already."""


class NotImplemented(Error):
    """The model is valid, but this build lacks an operator, dtype or feature that it needs; all of them are listed."""


class InvalidGraph(Error):
    """The model breaks ONNX's rules."""


class EPFail(Error):
    """Never raised; an execution provider failed."""


class ModelLoadCanceled(Error):
    """Loading was cancelled."""


class ModelRequiresCompilation(Error):
    """Never raised; ONNX Runtime has it."""


class NotFound(Error):
    """A value, pass or option that does not exist."""


class DeviceReset(Error):
    """Never raised; ONNX Runtime has it."""

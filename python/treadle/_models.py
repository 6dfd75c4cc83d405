"""Loads models from all forms in which callers may give them."""

from __future__ import annotations

import os
from typing import Protocol, TypeAlias

from ._treadle import Model, SessionOptions

# ONNX Runtime's config entry for the folder with external data, which is unknown if the caller gives the model as bytes.
FOLDER_KEY = "session.model_external_initializers_file_folder_path"


class _Proto(Protocol):
    """Describes an `onnx.ModelProto` to type checkers."""

    def SerializeToString(self) -> bytes: ...


#: A model: the path of a file, the bytes of a file, a `treadle.Model` or an `onnx.ModelProto`.
ModelLike: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | Model | _Proto"


def load_model(model: ModelLike, options: SessionOptions | None = None) -> Model:
    """Loads the model; `options` say how its files are read."""
    if isinstance(model, Model):
        return model
    if isinstance(model, (str, os.PathLike)):
        return Model.load(os.fspath(model), options)
    if not isinstance(model, (bytes, bytearray, memoryview)):
        if not hasattr(model, "SerializeToString"):
            raise TypeError(f"a model is a path, the bytes of a file, a treadle.Model or an onnx.ModelProto, not {type(model).__name__}")
        model = model.SerializeToString()
    return Model.from_bytes(bytes(model), options.config.get(FOLDER_KEY, "") if options else "", options)

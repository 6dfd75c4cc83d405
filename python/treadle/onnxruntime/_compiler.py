"""ModelCompiler, which writes the optimised model as ONNX."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .._treadle import OrtValue, SessionOptions
from ..enums import GraphOptimizationLevel, OrtCompileApiFlags
from ..errors import Fail, InvalidArgument
from ._devices import OrtExternalInitializerInfo
from ._session import InferenceSession


class ModelCompiler:
    """Compiles a model before sessions are made of it.

    No execution provider here compiles nodes, so the result is the ONNX model itself, simplified at optimisation level basic or higher, which any
    runtime can read. `SessionOptions.compiled_model_filepath` writes Treadle's own compiled form, which starts faster.
    """

    def __init__(
        self,
        sess_options: SessionOptions,
        input_model_path_or_bytes: str | os.PathLike[str] | bytes,
        embed_compiled_data_into_model: bool = False,
        external_initializers_file_path: str | os.PathLike[str] | None = None,
        external_initializers_size_threshold: int = 1024,
        flags: int = OrtCompileApiFlags.NONE,
        graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_DISABLE_ALL,
        get_initializer_location_func: Callable[..., Any] | None = None,
    ) -> None:
        """Stores the model and the way to write it; nothing is read yet.

        :param sess_options: options of the session that optimises the model, which are copied.
        :param input_model_path_or_bytes: the name or the contents of a file.
        :param embed_compiled_data_into_model: has no effect, because there is no compiled data apart from the model.
        :param external_initializers_file_path: a file beside the output for large initializers.
        :param external_initializers_size_threshold: bytes of the smallest initializer that is written there.
        :param flags: a combination of OrtCompileApiFlags.
        :param graph_optimization_level: ORT_DISABLE_ALL leaves the model as it is.
        :param get_initializer_location_func: called with each initializer's name, its OrtValue, and the OrtExternalInitializerInfo of where it
            was read from, or None. Returns the OrtExternalInitializerInfo of where it has written the bytes, or None for the model itself.
        """
        if not isinstance(input_model_path_or_bytes, (str, os.PathLike, bytes)):
            raise TypeError(f"Unable to load from type '{type(input_model_path_or_bytes)}'")
        if not input_model_path_or_bytes:
            raise ValueError("the input model is empty")
        if get_initializer_location_func is not None and external_initializers_file_path:
            raise ValueError("Cannot initialize ModelCompiler with both `external_initializers_file_path` and `get_initializer_location_func`")
        self._locate = get_initializer_location_func
        self._options = SessionOptions(sess_options)
        self._options.graph_optimization_level = graph_optimization_level
        self._model = input_model_path_or_bytes
        self._data_file = os.fspath(external_initializers_file_path) if external_initializers_file_path else ""
        self._data_threshold = external_initializers_size_threshold
        self._flags = int(flags)

    def set_ep_context_data_write_func(self, write_func: Callable[..., None]) -> None:
        """Sets the function that would receive compiled data from an execution provider. It is never called, because the CPU compiles no nodes."""
        if not callable(write_func):
            raise TypeError(f"write_func is not callable: {write_func!r}")

    def clear_ep_context_data_write_func(self) -> None:
        """Removes the function."""

    def set_ep_context_binary_information(self, output_directory: str | os.PathLike[str], model_name: str) -> None:
        """Sets where an execution provider would write compiled data; the CPU compiles no nodes.

        :raises InvalidArgument: an argument is empty, or the first one is no folder.
        """
        if not os.fspath(output_directory) or not model_name:
            raise InvalidArgument("output_dir or model_name is empty.", code="invalid_argument")
        if not os.path.isdir(output_directory):
            raise InvalidArgument(f"output_dir is not a valid directory: {os.fspath(output_directory)}", code="invalid_argument")

    def compile_to_file(self, output_model_path: str | os.PathLike[str] | None = None) -> None:
        """Writes the model, by default beside the input, with `_ctx` in its name.

        :raises InvalidArgument: the file exists, or no node was compiled, and the flags make that an error.
        """
        output = self._output(output_model_path)
        if self._flags & OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS and output.exists():
            raise InvalidArgument(f"the file {output} exists already", code="invalid_argument")
        if self._data_file:
            data_file = Path(self._data_file)
            options = SessionOptions(self._options)
            options.optimized_model_filepath = os.fspath(output)
            options.add_session_config_entry(
                "session.optimized_model_external_initializers_file_name",
                data_file.name if data_file.parent in (Path("."), output.parent) else self._data_file,
            )
            options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", str(self._data_threshold))
            self._session(options)
            return
        contents = self.compile_to_bytes()
        partial = output.with_name(f"{output.name}.{os.getpid()}.partial")
        try:
            if output.exists():  # the new file gets the old one's permissions
                partial.touch(0o600)
                partial.chmod(output.stat().st_mode & 0o777)
            partial.write_bytes(contents)
            partial.replace(output)
        finally:
            partial.unlink(missing_ok=True)

    def compile_to_bytes(self) -> bytes:
        """Returns the encoded model. :raises InvalidArgument: no node was compiled, and the flags make that an error."""
        return self._session(self._options)._sess.optimized_model(self._place if self._locate is not None else None)

    def compile_to_stream(self, write_function: Callable[[bytes], Any]) -> None:
        """Passes the encoded model to a function."""
        write_function(self.compile_to_bytes())

    def _place(self, name: str, value: OrtValue, read_from: tuple[str, int, int] | None) -> tuple[str, int, int] | None:
        """Returns the location that the caller's function gives for the initializer."""
        assert self._locate is not None
        try:
            info = self._locate(name, value, OrtExternalInitializerInfo(*read_from) if read_from else None)
            return None if info is None else (info.filepath, info.file_offset, info.byte_size)
        except Exception as error:
            raise Fail(f"get_initializer_location_func, for the initializer {name!r}: {type(error).__name__}: {error}", code="failed") from error

    def _session(self, options: SessionOptions) -> InferenceSession:
        if self._flags & OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED:
            raise InvalidArgument("no node was compiled: the CPU runs ONNX's nodes as they are", code="invalid_argument")
        return InferenceSession(self._model, options)

    def _output(self, given: str | os.PathLike[str] | None) -> Path:
        if given:
            return Path(given)
        if isinstance(self._model, bytes):
            raise InvalidArgument("an output path is needed for a model that is given as bytes", code="invalid_argument")
        source = Path(self._model)
        return source.with_name(f"{source.stem}_ctx.onnx")

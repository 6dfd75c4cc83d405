"""ONNX's Backend interface (onnx.backend.base), for tools that run models through it.

    import onnx
    import treadle.backend as backend

    outputs = backend.run_model(onnx.load("model.onnx"), [x])
    prepared = backend.prepare("model.onnx")
    outputs = prepared.run({"x": x})

Needs the package onnx.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from ._dtypes import onnx_dtype
from ._treadle import SessionOptions
from .onnxruntime import InferenceSession

Device = str
Inputs = Mapping[str, Any] | Sequence[Any] | Any
OutputsInfo = Sequence[tuple[Any, tuple[int, ...]]]


class TreadleBackendRep(BackendRep):
    """A model that is ready to run. Any number of threads may run it at once."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        names = [output.name for output in session.get_outputs()]
        self._outputs: Any = namedtupledict("Outputs", names)

    @property
    def session(self) -> InferenceSession:
        """The session that runs the model."""
        return self._session

    def run(self, inputs: Inputs, **kwargs: Any) -> tuple[Any, ...]:
        """Runs the model.

        :param inputs: values by name, in the order of the model's inputs, or one value alone. Inputs that have a default may be left out.
        :param kwargs: `run_options`, a `treadle.RunOptions`.
        :returns: a named tuple of all outputs: `outputs[0]`, `outputs["y"]`.
        :raises ValueError: there are more values than inputs.
        """
        run_options = kwargs.pop("run_options", None)
        _refuse_options(kwargs)
        outputs: tuple[Any, ...] = self._outputs(*self._session.run(None, self._feeds(inputs), run_options))
        return outputs

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._session!r})"

    def _feeds(self, inputs: Inputs) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            return dict(inputs)
        declared = [*self._session.get_inputs(), *self._session.get_overridable_initializers()]
        if not isinstance(inputs, (list, tuple)):
            inputs = [inputs]
        if len(inputs) > len(declared):
            raise ValueError(f"the model has {len(declared)} inputs, {len(inputs)} values are given")
        return {entry.name: value for entry, value in zip(declared, inputs, strict=False)}


class TreadleBackend(Backend):
    """ONNX's Backend for the CPU. Use it as the class, or through this module's functions of the same names."""

    @classmethod
    def supports_device(cls, device: Device) -> bool:
        """Returns True if models run on `device`: "CPU" or "CPU:0"."""
        kind, _, number = device.partition(":")
        return kind == "CPU" and number in ("", "0")

    @classmethod
    def is_compatible(cls, model: ModelProto, device: Device = "CPU", **kwargs: Any) -> bool:
        """Returns True if `prepare` accepts the model."""
        from .errors import Error

        try:
            cls.prepare(model, device, **kwargs)
        except (Error, ValueError):
            return False
        return True

    @classmethod
    def prepare(
        cls, model: ModelProto | InferenceSession | bytes | str | os.PathLike[str], device: Device = "CPU", **kwargs: Any
    ) -> TreadleBackendRep:
        """Loads and optimises a model, so that it can be run.

        :param model: the model, a file's bytes or name, or a session that exists.
        :param device: see `supports_device`.
        :param kwargs: attributes of `treadle.SessionOptions`, such as `intra_op_num_threads`; or `sess_options`, the options themselves.
        :raises ValueError: there is no such device.
        :raises TypeError: there is no such option.
        :raises treadle.Error: the model cannot be loaded.
        """
        if not cls.supports_device(device):
            raise ValueError(f"there is no device {device!r}; expected 'CPU'")
        if isinstance(model, InferenceSession):
            _refuse_options(kwargs)
            return TreadleBackendRep(model)
        options = SessionOptions(kwargs.pop("sess_options")) if "sess_options" in kwargs else SessionOptions()
        known = {name: value for name, value in kwargs.items() if not name.startswith("_") and hasattr(options, name)}
        _refuse_options({name: value for name, value in kwargs.items() if name not in known})
        for name, value in known.items():
            setattr(options, name, value)
        source = model.SerializeToString() if isinstance(model, ModelProto) else model
        return TreadleBackendRep(InferenceSession(source, options))

    @classmethod
    def run_model(
        cls, model: ModelProto | InferenceSession | bytes | str | os.PathLike[str], inputs: Inputs, device: Device = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Runs a model once: `prepare(model, device, **kwargs).run(inputs)`."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls, node: NodeProto, inputs: Inputs, device: Device = "CPU", outputs_info: OutputsInfo | None = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Runs one node.

        :param node: the node; empty names among its inputs take no value.
        :param inputs: values of the inputs by name, or in the order of the node's inputs.
        :param outputs_info: dtype and shape of each output, where they are known.
        :param kwargs: `opset_version` is the version of the node's domain (by default the newest); all others are those of `prepare`.
        """
        domain = node.domain
        newest = onnx.defs.onnx_opset_version() if domain in ("", "ai.onnx") else _newest_version(node)
        version = int(kwargs.pop("opset_version", newest))
        names = [name for name in dict.fromkeys(node.input) if name]
        if isinstance(inputs, Mapping):
            values = {name: inputs[name] for name in names}
        else:
            given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
            if len(given) != len(names):
                raise ValueError(f"the node has {len(names)} inputs, {len(given)} values are given")
            values = dict(zip(names, given, strict=True))
        arrays = {name: np.asarray(value) for name, value in values.items()}
        graph_inputs = [helper.make_tensor_value_info(name, onnx_dtype(array.dtype), array.shape) for name, array in arrays.items()]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        if outputs_info is not None:
            for output, (dtype, shape) in zip(outputs, outputs_info, strict=False):
                output.CopyFrom(helper.make_tensor_value_info(output.name, onnx_dtype(dtype), shape))
        graph = helper.make_graph([node], "node", graph_inputs, outputs)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(domain, version)])
        return cls.prepare(model, device, **kwargs).run(arrays)


def _newest_version(node: NodeProto) -> int:
    try:
        return int(onnx.defs.get_schema(node.op_type, node.domain).since_version)
    except onnx.defs.SchemaError:
        return 1


def _refuse_options(unknown: Mapping[str, Any]) -> None:
    if unknown:
        raise TypeError(f"there is no option {', '.join(map(repr, unknown))}; see treadle.SessionOptions")


is_compatible = TreadleBackend.is_compatible
prepare = TreadleBackend.prepare
run_model = TreadleBackend.run_model
run_node = TreadleBackend.run_node
supports_device = TreadleBackend.supports_device

__all__ = [
    "TreadleBackend",
    "TreadleBackendRep",
    "is_compatible",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]

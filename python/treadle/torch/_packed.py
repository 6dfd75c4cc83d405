"""Evaluates modules with weights as constants of the graph, which are packed once, with normalisations folded into convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx
import torch
from onnx import numpy_helper
from torch._C import _from_dlpack, _to_dlpack

from .._treadle import OrtValue, RunOptions, SessionOptions
from ..onnxruntime import InferenceSession
from ._export import Exported
from ._state import State


def _stamp(state: State) -> list[tuple[int, int]] | None:
    """Returns the tensors' addresses and PyTorch's counts of writes to them; None if a tensor was made in inference mode and has no count."""
    if any(tensor.is_inference() for tensor in state.tensors):
        return None
    return [(tensor.data_ptr(), tensor._version) for tensor in state.tensors]


class Packing:
    """A session of an exported graph, which is used until the module's tensors change."""

    def __init__(self, exported: Exported, options: SessionOptions) -> None:
        self._exported, self._options = exported, options
        self._stamp: list[tuple[int, int]] | None = None
        self.session: InferenceSession | None = None
        self.observers: list[Callable[[Any], None]] = []  # called with each new session
        self._outputs: list[str] = []

    def run(self, leaves: Sequence[torch.Tensor], state: State, options: RunOptions | None = None) -> list[torch.Tensor] | None:
        """Runs the graph and returns its outputs; None if the tensors have changed since the last call, since packing does not pay off yet."""
        stamp = _stamp(state)
        if stamp is None or stamp != self._stamp:
            self._stamp, self.session = stamp, None
            return None
        if self.session is None:
            self.session = self._pack(state)
            for observer in self.observers:
                observer(self.session)
            self._outputs = [value.name for value in self.session.get_outputs()]
        feeds = {value.name: OrtValue.from_dlpack(_to_dlpack(leaves[int(value.name[6:])])) for value in self.session.get_inputs()}
        results = self.session.run_with_ort_values(self._outputs, feeds, options)
        return [_from_dlpack(result.__dlpack__()) for result in results]

    def forget(self) -> None:
        """Drops the packed weights, so that they are packed again even if PyTorch has counted no write."""
        self._stamp = self.session = None

    def _pack(self, state: State) -> InferenceSession:
        model = onnx.ModelProto()
        model.CopyFrom(self._exported.model)
        tensors = {f"state:{name}": tensor for name, tensor in zip(state.names, state.tensors, strict=True)}
        inputs = list(model.graph.input)
        del model.graph.input[:]
        for value in inputs:
            if value.name not in tensors:
                model.graph.input.append(value)
                continue
            model.graph.initializer.append(numpy_helper.from_array(tensors[value.name].detach().contiguous().numpy(), value.name))
        return InferenceSession(model.SerializeToString(), self._options)


"""A model's forward and backward graph, with the loss left to the caller."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from . import _clients, _treadle, counters
from ._models import ModelLike, load_model
from ._training_arguments import as_array, as_metadata, given
from ._treadle import Job, RunOptions, SessionOptions, UnfinishedRun
from .counters import NodeCounter
from .memory import MemoryReport, report_of

__all__ = ["JointModule", "JointRun"]


class JointRun:
    """A forward pass that waits for the gradients of its outputs."""

    def __init__(self, run: _treadle.JointRun) -> None:
        self._run = run

    def __repr__(self) -> str:
        return f"JointRun(steps_left={self.steps_left})"

    @property
    def outputs(self) -> list[np.ndarray]:
        """Outputs in the order of the module's `output_names`, for `torch.from_dlpack`."""
        return self._run.outputs

    def step(self, count: int = 1) -> int:
        """Runs `count` nodes of the forward pass (on devices: pieces of work) of a run made by `JointModule.begin`. Returns how many are left."""
        return self._run.advance_steps(count)

    @property
    def steps_left(self) -> int:
        """The number of nodes that step() must still run until the outputs are computed."""
        return self._run.steps_left

    def backward(self, grad_outputs: Sequence[Any]) -> dict[str, Any]:
        """Runs the backward pass with the gradients of the outputs (arrays, or tensors by DLPack). Returns the gradients of the parameters and of
        the requested inputs: arrays, and for `sparse_gradients` row-sparse `SparseTensor`s. May be called once.
        """
        return self._run.backward([as_array(gradient) for gradient in grad_outputs])


class JointModule:
    """A model's forward and backward graph, with the loss left to the caller.

    ::

        run = module.forward({"image": images})
        scores = torch.from_dlpack(run.outputs[0]).requires_grad_()
        loss(scores, labels).backward()
        gradients = run.backward([scores.grad])

    :param outputs: names of the float32 outputs that runs return; all by default.
    :param inputs: names of inputs whose gradients are wanted too.
    :param sparse_gradients: names or patterns of tables whose gradients are returned by rows: parameters that only Gather along the first axis
        reads, or by which an input in CSR (config entry treadle.storage) is multiplied. Other parameters that match have ordinary gradients.
    :param device: default device: "cpu" (if empty), "gpu", "gpu:N", "sim" or "sim:NAME".
    :param group2ctx: devices of groups of nodes, by the "ctx_group" of their metadata; their gradients are computed there as well.
    :param argument_devices: devices of inputs and parameters; nodes that read them run there.
    :param job: as in `Trainer`; a run that waits for its gradients does not count as running.
    :param sess_options: as in `Trainer`.
    """

    def __init__(
        self,
        model: ModelLike,
        *,
        outputs: Iterable[str] = (),
        inputs: Iterable[str] = (),
        parameters: Iterable[str] = (),
        frozen: Iterable[str] = (),
        num_threads: int = 0,
        device: str = "",
        group2ctx: Mapping[str, str] | None = None,
        argument_devices: Mapping[str, str] | None = None,
        job: Job | None = None,
        sess_options: SessionOptions | None = None,
        sparse_gradients: Iterable[str] = (),
    ) -> None:
        model = load_model(model)
        self._inputs: Sequence[_treadle.NodeArg] = model.inputs
        self._module = _treadle.JointModule(
            model,
            list(outputs),
            list(inputs),
            list(parameters),
            list(frozen),
            num_threads,
            device,
            dict(group2ctx or {}),
            dict(argument_devices or {}),
            job,
            sess_options,
            sparse_gradients=list(sparse_gradients),
        )
        _clients.add(self)

    @classmethod
    def _of(cls, module: _treadle.JointModule, inputs: Sequence[_treadle.NodeArg]) -> JointModule:
        """Wraps a module that the library has made."""
        made = cls.__new__(cls)
        made._module, made._inputs = module, inputs
        _clients.add(made)
        return made

    def forward(self, feeds: Any, run_options: RunOptions | None = None) -> JointRun:
        """Runs the forward pass. Several runs may wait for their gradients at the same time. The options apply to the backward pass too."""
        with given(feeds, self._inputs) as taken:
            return JointRun(self._module.forward(taken, run_options))

    def begin(self, feeds: Any, run_options: RunOptions | None = None) -> JointRun:
        """Begins a run without computing anything; step() runs its nodes."""
        with given(feeds, self._inputs) as taken:
            return JointRun(self._module.begin(taken, run_options))

    def hold(self, parameters: Mapping[str, np.ndarray]) -> None:
        """Uses these arrays, contiguous and float32, as the memory of parameters in runs that begin from now on.

        A run reads them in its backward pass too, so they must only be written after it.
        """
        for name, array in parameters.items():
            if array.dtype != np.float32 or not array.flags.c_contiguous or not array.flags.aligned:
                raise ValueError(f"{name!r} is {array.dtype}{array.shape} with strides {array.strides}; hold() reads contiguous float32 arrays where they lie")
        self._module.hold(dict(parameters))

    def set_monitor(self, callback: Callable[[_treadle.MonitorEvent], None] | None, pattern: str = "*", inputs: bool = False) -> None:
        """Like `Trainer.set_monitor()`, for forward and backward passes of runs that begin afterwards."""
        _treadle.monitor_module(self._module, callback, pattern, inputs)

    def close(self, timeout: float | None = None) -> list[UnfinishedRun]:
        """Cancels the passes in flight and waits for them; later ones are refused.

        :param timeout: how long to wait, in seconds; None: until all have ended.
        :return: the runs that have not ended.
        """
        return self._module.close(-1 if timeout is None else int(timeout * 1000))

    @property
    def closed(self) -> bool:
        """True once close() was called."""
        return self._module.closed

    def memory(self) -> MemoryReport:
        """Returns the bytes that the module holds now, and their peaks, by class."""
        return report_of(self._module.memory_statistics())

    def set_memory_limit(self, limit_bytes: int) -> None:
        """Changes `sess_options.memory_limit_bytes` for later runs; the module must have been made with a limit."""
        self._module.set_memory_limit(limit_bytes)

    def end_profiling(self) -> str:
        """Ends the profile that `sess_options.enable_profiling` began and writes the trace. Returns the file's path."""
        return self._module.end_profiling()

    def node_counters(self) -> list[NodeCounter]:
        """Like `InferenceSession.node_counters()`, if the option of `sess_options` is set."""
        return counters.read(self._module)

    def reset_node_counters(self) -> None:
        """Sets all counts to zero."""
        _treadle.reset_node_counters(self._module)

    def __repr__(self) -> str:
        return f"JointModule(outputs={self.output_names})"

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs that runs return, in the order in which they return them."""
        return self._module.output_names

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """Arrays that use the parameters' memory, which an optimizer may write."""
        return self._module.parameters

    @property
    def states(self) -> dict[str, np.ndarray]:
        """Arrays of running means and variances, which the forward pass updates."""
        return self._module.states

    def save(self, path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
        """Writes the model as it was read, with the current values of its initializers."""
        self._module.save(os.fspath(path), as_metadata(metadata))

    def to_bytes(self, metadata: Mapping[str, str] | None = None) -> bytes:
        """Returns the bytes of an ONNX file: the model with the current parameters."""
        return self._module.to_bytes(as_metadata(metadata))

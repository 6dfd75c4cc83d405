"""Graph executors like MXNet's: arrays are bound to names once, and forward() and backward() read and write them in place."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import _treadle
from ._treadle import NodeArg, SessionOptions, SparseTensor
from .errors import Error
from .joint_module import JointModule
from .session import Session

__all__ = ["Executor", "bind", "simple_bind"]

_STORAGES = ("default", "csr", "row_sparse")


def _to_storage(value: Any, storage: str) -> Any:
    """Converts an array or a SciPy matrix to a tensor of this storage type."""
    if isinstance(value, SparseTensor) or storage == "default":
        return value
    if storage == "csr":
        if hasattr(value, "tocsr"):
            matrix = value.tocsr()
            return SparseTensor.sparse_csr_from_numpy(
                np.array(matrix.shape, np.int64), matrix.data, matrix.indices.astype(np.int64), matrix.indptr.astype(np.int64)
            )
        dense = np.asarray(value)
        rows, columns = np.nonzero(dense)
        offsets = np.searchsorted(rows, np.arange(dense.shape[0] + 1)).astype(np.int64)
        return SparseTensor.sparse_csr_from_numpy(np.array(dense.shape, np.int64), dense[rows, columns], columns.astype(np.int64), offsets)
    dense = np.asarray(value)
    stored = np.flatnonzero(dense.reshape(dense.shape[0], -1).any(axis=1)).astype(np.int64)
    return SparseTensor.row_sparse_from_numpy(np.array(dense.shape, np.int64), np.ascontiguousarray(dense[stored]), stored)


def _to_dense(value: Any) -> np.ndarray:
    if not isinstance(value, SparseTensor):
        return np.asarray(value)
    values = np.asarray(value.values())
    dense = np.zeros(_shape(value), values.dtype)
    if value.storage == "csr":
        view = value.as_csrc_view()
        offsets, columns = (np.asarray(part).reshape(-1) for part in (view.outer(), view.inner()))
        dense[np.repeat(np.arange(dense.shape[0]), np.diff(offsets)), columns] = values
        return dense
    indices = np.asarray(value.as_coo_view().indices())
    if value.storage == "row_sparse":
        dense[indices] = values
    elif indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return dense


def _lies_ready(value: Any, float32: bool = False) -> bool:
    """Returns True if the library can use the array without a copy."""
    if isinstance(value, SparseTensor):
        return True
    if type(value) is not np.ndarray or not value.flags.carray or not value.dtype.isnative:
        return False
    return value.dtype == np.float32 if float32 else value.dtype.kind in "biufc"


def _ready(value: Any) -> np.ndarray:
    """Returns a copy that the library can use: a C-contiguous array of float32."""
    return np.array(_to_dense(value), np.float32, order="C")


def _expect_writable(value: Any, what: str) -> None:
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        raise ValueError(f"{what} is written to, and its array is read-only")


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(np.asarray(value.dense_shape()).tolist()) if isinstance(value, SparseTensor) else tuple(np.shape(value))


def _bytes_of(model: Any) -> bytes:
    if isinstance(model, (bytes, bytearray, memoryview)):
        return bytes(model)
    if hasattr(model, "SerializeToString"):  # the model is an onnx.ModelProto
        return bytes(model.SerializeToString())
    with open(os.fspath(model), "rb") as file:
        return file.read()


def _by_name(values: Any, names: Sequence[str], what: str) -> dict[str, Any]:
    if values is None:
        return {}
    if isinstance(values, Mapping):
        unknown = sorted(set(values) - set(names))
        if unknown:
            raise ValueError(f"{what} for {', '.join(unknown)}; the names are {', '.join(names)}")
        return dict(values)
    if len(values) != len(names):
        raise ValueError(f"{len(values)} {what} for {len(names)} names: {', '.join(names)}")
    return dict(zip(names, values, strict=True))


def _flag(value: Any, name: str, what: str) -> bool:
    """Checks a flag. Without the check, a dict that a caller passes instead of keywords would count as True."""
    if not isinstance(value, (bool, np.bool_, int)):
        raise TypeError(f"{name} is True or False, got {type(value).__name__}; {what} are given by name: x=..., or **{{'input.1': ...}}")
    return bool(value)


@contextlib.contextmanager
def _value_errors() -> Iterator[None]:
    """Turns the library's errors about arrays, names and shapes into ValueErrors, as NumPy raises."""
    try:
        yield
    except Error as error:
        if error.code in ("invalid_argument", "not_found"):
            raise ValueError(str(error)) from None
        raise


@dataclass(frozen=True)
class _Devices:
    """The devices on which an executor's nodes run."""

    device: str = ""
    group2ctx: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)
    storage: Mapping[str, str] = field(default_factory=dict)  # storage types ("csr", "row_sparse" …) by argument

    def apply(self, options: SessionOptions | None) -> SessionOptions | None:
        if not (self.device or self.group2ctx or self.arguments or self.storage):
            return options
        options = SessionOptions(options) if options is not None else SessionOptions()
        for name, storage in self.storage.items():
            if storage not in _STORAGES:
                raise ValueError(f"the storage type of {name!r} is {storage!r}; there are {', '.join(_STORAGES)}")
        _store(options, self.storage)
        options.device = self.device
        options.group2ctx = dict(self.group2ctx)
        options.argument_devices = dict(self.arguments)
        return options


def _store(options: SessionOptions, storage: Mapping[str, str]) -> None:
    if storage:
        options.add_session_config_entry("treadle.storage", ";".join(f"{name}={kind}" for name, kind in storage.items()))


class _Core:
    """A model's compiled graphs. Executors for different input shapes share them."""

    def __init__(self, model: Any, options: SessionOptions | None, devices: _Devices, sparse_gradients: Sequence[str] = ()) -> None:
        self.sparse_gradients = tuple(sparse_gradients)  # names of parameters with gradients that are lists of rows
        self.model = _bytes_of(model)
        self.devices = devices
        self.options = options
        self.session: Session | None = None  # for passes that are not for training, if the library needs it
        self._watchers: list[Callable[[Any], None]] = []
        self._applied = devices.apply(options)
        native = _treadle.Model.from_bytes(self.model)
        self.graphs = _treadle.ExecutorGraphs(native, self._applied, list(sparse_gradients), self._make_session)
        self.inputs: Sequence[NodeArg] = self.session.inputs if self.session is not None else native.inputs
        # The initial values, from the model, of all floating-point parameters that can be trained, and of the running statistics.
        self.parameters: dict[str, np.ndarray] = self.graphs.parameters
        self.states: dict[str, np.ndarray] = self.graphs.states
        self.names = [*(info.name for info in self.inputs), *self.parameters]  # all arguments' names
        self.floats = {*(info.name for info in self.inputs if info.type == "tensor(float)"), *self.parameters}
        evaluation = self.graphs.evaluation
        self.evaluation = None if evaluation is None else JointModule._of(evaluation, self.inputs)
        self._training: dict[tuple[tuple[str, str], ...], JointModule] = {}

    def _make_session(self) -> _treadle.Session:
        self.session = Session(self.model, self._applied)
        return self.session._sess

    def training(self, requests: Mapping[str, str]) -> JointModule:
        """Returns the joint graph that computes these gradients."""
        key = tuple(requests.items())
        if key not in self._training:
            self._training[key] = JointModule._of(self.graphs.training(dict(requests)), self.inputs)
            for watcher in list(self._watchers):
                watcher(self._training[key])
        return self._training[key]

    def handed(self, name: str, value: Any) -> Any:
        """Converts an argument to a form that the library accepts: parameters must be float32 and contiguous."""
        return _ready(value) if name in self.parameters and not _lies_ready(value, float32=True) else value

    def watch(self, observer: Callable[[Any], None]) -> None:
        """Calls the observer with every graph, including those that are made later."""
        self._watchers.append(observer)
        for graph in (self.session, self.evaluation, *self._training.values()):
            if graph is not None:
                observer(graph)

    def unwatch(self, observer: Callable[[Any], None]) -> None:
        """Stops calls of the observer."""
        self._watchers.remove(observer)


class Executor:
    """A model with arrays bound to its arguments: inputs, parameters (floating-point initializers) and auxiliary states (running statistics).

    Made by bind() and simple_bind(). The arrays of arg_dict, grad_dict and aux_dict are the bound ones: values written to them are used from the
    next forward() on. backward() reads those of arg_dict again, so they must only be written after it. Only one thread may use an executor at a time.
    """

    def __init__(self, core: _Core, native: _treadle.Executor, args: Mapping[str, Any], grads: Mapping[str, Any], states: Mapping[str, Any]) -> None:
        """:param args, grads, states: the arrays that the caller has bound; the library allocates the others"""
        self._core = core
        self._manager = core  # profiles record its graphs
        self._executor = native
        self._requests = native.requests
        arguments, gradients = native.arguments, native.gradients
        self.arg_dict = {name: args.get(name, arguments[name]) for name in core.names}
        self.grad_dict = {name: grads.get(name, gradients[name]) for name in core.names if name in gradients}
        self.aux_dict = {name: states.get(name, value) for name, value in native.states.items()}
        # The arrays that the library uses in place. None: the library cannot use the array, so each pass copies its values.
        self._bound = {name: value if self._is_ready(name, value) else None for name, value in self.arg_dict.items()}
        self._bound_grads = {name: value if _lies_ready(value) else None for name, value in self.grad_dict.items()}
        self._bound_states = {name: value if _lies_ready(value, float32=True) else None for name, value in self.aux_dict.items()}
        self._awaits_backward = self._is_partial = self._is_partial_train = False
        self.outputs: list[np.ndarray] = []
        self._output_names = core.graphs.output_names

    def _is_ready(self, name: str, value: Any) -> bool:
        return _lies_ready(value, float32=name in self._core.parameters)

    def _hand_over(self, is_train: bool) -> None:
        """Binds the arrays that have replaced bound ones in the dicts since the last pass. Copies the arrays that cannot be read in
        place.
        """
        for name, value in self.arg_dict.items():
            if self._bound[name] is not value:
                self._executor.set_argument(name, self._core.handed(name, value))
                self._bound[name] = value if self._is_ready(name, value) else None
        for name, value in self.aux_dict.items():
            if self._bound_states[name] is not value:
                ready = _lies_ready(value, float32=True)
                self._executor.set_state(name, value if ready else _ready(value))
                self._bound_states[name] = value if ready else None
        if not is_train:
            return
        for name, value in self.aux_dict.items():
            _expect_writable(value, f"the state {name!r}")
        self._core.training(self._requests)  # profiles of the process include the training graph from now on
        self._hand_over_gradients()

    def _hand_over_gradients(self) -> None:
        for name, value in self.grad_dict.items():
            if self._bound_grads[name] is not value:
                _expect_writable(value, f"the gradient of {name!r}")
                self._executor.set_gradient(name, value if _lies_ready(value) else _ready(value))
                self._bound_grads[name] = value if _lies_ready(value) else None

    def _end_forward(self, is_train: bool) -> None:
        self.outputs = self._executor.outputs
        self._awaits_backward = is_train
        if is_train:
            for name, value in self._bound_states.items():
                if value is None:
                    np.copyto(self.aux_dict[name], np.asarray(self._executor.state(name)))

    @property
    def output_dict(self) -> dict[str, np.ndarray]:
        """The outputs of the last pass, by name."""
        return dict(zip(self._output_names, self.outputs, strict=True)) if self.outputs else {}

    def forward(self, is_train: bool = False, **inputs: Any) -> list[np.ndarray]:
        """Computes the outputs.

        :param is_train: keep the values that backward() needs; normalisations use the batch's statistics and update the running ones.
        :param inputs: values that are first copied into the arrays of the arguments with these names.
        """
        is_train = _flag(is_train, "is_train", "inputs")
        self._copy_inputs(inputs)
        self._hand_over(is_train)
        self._awaits_backward = False
        self._executor.forward(is_train)
        self._end_forward(is_train)
        return self.outputs

    def partial_forward(self, step: int, is_train: bool = False, **inputs: Any) -> int:
        """Runs one step of the forward pass: a node of the optimised graph (in training on several devices, a piece of work). Step 0 begins a pass,
        and the others follow in order. After the last step, `outputs` are those of the pass::

            left = executor.partial_forward(0)
            for step in range(1, left + 1):
                left = executor.partial_forward(step)

        Passes that are not for training run on the host, even if `group2ctx` names devices.

        :param is_train, inputs: as in forward(); they are only used at step 0.
        :returns: how many steps are left; 0 for a step after the last one.
        :raises ValueError: a step is left out or repeated.
        """
        is_train = _flag(is_train, "is_train", "inputs")
        if step == 0:
            self._copy_inputs(inputs)
            self._hand_over(is_train)
            self._awaits_backward = False
            self._is_partial, self._is_partial_train = True, is_train
        with _value_errors():
            left = self._executor.partial_forward(step, is_train)
        if left == 0 and self._is_partial:
            self._is_partial = False
            self._end_forward(self._is_partial_train)
        return left

    def _copy_inputs(self, inputs: Mapping[str, Any]) -> None:
        for name, value in inputs.items():
            if name not in self.arg_dict:
                raise ValueError(f"there is no argument {name!r}; the arguments are {', '.join(self.arg_dict)}")
            if _shape(value) != _shape(self.arg_dict[name]):
                raise ValueError(f"{name!r} is bound to the shape {_shape(self.arg_dict[name])}, got {_shape(value)}; see reshape()")
            storage = self._core.devices.storage.get(name, "default")
            if storage == "default":
                np.copyto(self.arg_dict[name], _to_dense(value))
            else:
                self.arg_dict[name] = _to_storage(value, storage)  # a new object, because the number of stored elements may have changed

    def backward(self, out_grads: Sequence[Any] | Any | None = None) -> None:
        """Computes gradients, which replace the values in the arrays of grad_dict ("write") or are added to them ("add").

        :param out_grads: the gradients of the outputs; ones by default.
        :raises RuntimeError: the last forward() was not for training, or backward() ran already.
        """
        if not self._awaits_backward:
            raise RuntimeError("backward() needs a forward(is_train=True) before it")
        if out_grads is None:
            out_grads = [np.ones_like(output) for output in self.outputs]
        elif not isinstance(out_grads, (list, tuple)):
            out_grads = [out_grads]
        self._awaits_backward = False
        # ascontiguousarray() turns scalars into vectors, so that reshape() must restore their shape.
        self._executor.backward([np.ascontiguousarray(gradient, np.float32).reshape(np.shape(gradient)) for gradient in out_grads])
        for name, value in self._bound_grads.items():
            if name in self._core.sparse_gradients:  # the number of stored rows may change
                self.grad_dict[name] = self._bound_grads[name] = self._executor.gradient(name)
            elif value is None:
                np.copyto(self.grad_dict[name], np.asarray(self._executor.gradient(name)))

    def reshape(self, partial_shaping: bool = False, allow_up_sizing: bool = False, **shapes: Sequence[int]) -> Executor:
        """Makes an executor for inputs of other shapes, which shares parameters, states and, if it is large enough, the inputs' memory.

        The shapes of inputs that are not named follow from symbols that they share with named inputs.

        :param partial_shaping: shapes of inputs that are not named may change; if they do not follow from symbols, they stay as they are.
        :param allow_up_sizing: new memory may be allocated for inputs that grow.
        :raises ValueError: without `partial_shaping`, the shape of an input that is not named changes or is unknown; or without
            `allow_up_sizing`, an input grows.
        """
        partial_shaping, allow_up_sizing = (
            _flag(value, name, "shapes") for name, value in (("partial_shaping", partial_shaping), ("allow_up_sizing", allow_up_sizing))
        )
        self._hand_over(is_train=False)
        self._hand_over_gradients()
        with _value_errors():
            native = self._executor.reshape(shapes, partial_shaping, allow_up_sizing)
        made = native.arguments
        same = [name for name, value in self.arg_dict.items() if _shape(value) == _shape(made[name])]
        args, grads = ({name: arrays[name] for name in same if name in arrays} for arrays in (self.arg_dict, self.grad_dict))
        return Executor(self._core, native, args, grads, self.aux_dict)

    def copy_params_from(
        self, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any] | None = None, allow_extra_params: bool = False
    ) -> None:
        """Copies values into the bound arrays, by name."""
        for arrays, given in ((self.arg_dict, arg_params), (self.aux_dict, aux_params or {})):
            for name, value in given.items():
                if name in arrays and isinstance(arrays[name], SparseTensor):
                    arrays[name] = _to_storage(value, self._core.devices.storage[name])
                elif name in arrays:
                    np.copyto(arrays[name], value)
                elif not allow_extra_params:
                    raise ValueError(f"there is no argument or state {name!r}")

    def set_monitor_callback(self, callback: Callable[[str, Any], None] | None, monitor_all: bool = False) -> None:
        """Calls `callback(name, array)` with every output of a node in forward() and backward(); with `monitor_all`, with inputs of nodes too.
        The optimiser then keeps all values, including those that it would otherwise remove. Executors that share a graph share the monitor.
        """
        watch = None if callback is None else (lambda event: callback(event.value, event.array))
        _treadle.monitor_graphs(self._core.graphs, watch, "*", monitor_all)

    def optimized_model(self) -> bytes:
        """Returns the forward pass as an ONNX model, simplified according to the executor's options. It has no fused operators."""
        return self._core.graphs.optimized_model()

    def end_profiling(self) -> list[str]:
        """Ends the profile that `options.enable_profiling` began. Executors made by reshape() share it.

        Returns the paths of the profiles of the forward passes and of each training graph; empty without profiling.
        """
        return self._core.graphs.end_profiling()

    @property
    def memory_bytes(self) -> int:
        """Returns the bytes of weights, packed weights and planned activations of the forward pass, after the first run."""
        return self._core.graphs.memory_bytes


def _core_of(
    model: Any,
    shared_exec: Executor | None,
    options: SessionOptions | None,
    device: str,
    group2ctx: Mapping[str, str] | None,
    argument_devices: Mapping[str, str] | None,
    storage: Mapping[str, str] | None,
    grad_storage: Mapping[str, str] | None,
) -> _Core:
    """Returns the core of the shared executor, or a new one."""
    content = _bytes_of(model)
    for name, kind in (grad_storage or {}).items():
        if kind not in ("default", "row_sparse"):
            raise ValueError(f"the storage type of the gradient of {name!r} is {kind!r}; there are default, row_sparse")
    if shared_exec is None:
        sparse = [name for name, kind in (grad_storage or {}).items() if kind == "row_sparse"]
        return _Core(content, options, _Devices(device, dict(group2ctx or {}), dict(argument_devices or {}), dict(storage or {})), sparse)
    own = {"options": options, "device": device, "group2ctx": group2ctx, "argument_devices": argument_devices, "storage": storage, "grad_storage": grad_storage}
    if refused := [name for name, value in own.items() if value]:
        raise ValueError(f"shared_exec has its own {refused[0]}, which the new executor shares; leave it out")
    core = shared_exec._core
    return core if core.model == content else _Core(content, core.options, core.devices, core.sparse_gradients)


def _requests_of(core: _Core, grad_req: Any) -> tuple[str, dict[str, str]]:
    """Returns the request for all arguments that can have a gradient, and the requests by name."""
    return (grad_req, {}) if isinstance(grad_req, str) else ("null", _by_name(grad_req, core.names, "gradient requests"))


def _shared(core: _Core, shared_exec: Executor | None, names: Sequence[str] | None) -> tuple[Any, dict[str, Any]]:
    """Returns the library's executor that is shared, and its arrays, which the new one uses unless others are given."""
    if shared_exec is None:
        if names is not None:
            raise ValueError("shared_arg_names needs the shared_exec that has them")
        return None, {}
    shared_exec._hand_over(is_train=False)
    theirs = {**shared_exec.arg_dict, **shared_exec.aux_dict}
    return shared_exec._executor, {name: theirs[name] for name in (theirs if names is None else names) if name in {**core.parameters, **core.states} and name in theirs}


def _made(core: _Core, native: _treadle.Executor, args: dict[str, Any], grads: dict[str, Any], states: dict[str, Any]) -> Executor:
    """Makes the library's executor and its arrays. Parameters that were not given get arrays of their storage type."""
    for name, storage in core.devices.storage.items():
        if storage != "default" and name in core.parameters and name not in args:
            args[name] = _to_storage(core.parameters[name], storage)
            native.set_argument(name, args[name])
    return Executor(core, native, args, grads, states)


def bind(
    model: Any,
    args: Mapping[str, Any] | Sequence[Any],
    grads: Mapping[str, np.ndarray] | Sequence[np.ndarray] | None = None,
    grad_req: str | Mapping[str, str] | Sequence[str] = "write",
    aux_states: Mapping[str, Any] | Sequence[Any] | None = None,
    shared_exec: Executor | None = None,
    options: SessionOptions | None = None,
    device: str = "",
    group2ctx: Mapping[str, str] | None = None,
    argument_devices: Mapping[str, str] | None = None,
    storage: Mapping[str, str] | None = None,
    grad_storage: Mapping[str, str] | None = None,
    shared_arg_names: Sequence[str] | None = None,
) -> Executor:
    """Binds arrays to a model's arguments.

    :param model: a path, bytes or an onnx.ModelProto.
    :param args: arrays by name, or in the order of inputs and then parameters. Parameters that are missing have the model's values.
    :param grads: arrays that receive gradients; missing ones are made.
    :param grad_req: "null", "write" or "add", for all or by name.
    :param aux_states: running statistics; missing ones have the model's values.
    :param shared_exec: an executor whose parameters and states are used, by name, if no others are given. If it has the same model, its compiled
        graph is used too. The new executor has its options, devices and storage types.
    :param shared_arg_names: the parameters and states that are shared; by default all that both models have.
    :param options: options of the forward pass and of training; training refuses some of them (docs/sessions.md).
    :param device: default device: "cpu" (if empty), "gpu", "gpu:N", "sim" or "sim:NAME".
    :param group2ctx: devices by group. A node names its group by the key "ctx_group" of its metadata (`NodeProto.metadata_props`).
    :param argument_devices: devices of inputs and parameters, by name; nodes without a group follow their operands.
    :param storage: storage types of inputs and parameters, by name: "csr", "row_sparse" or "default". Those of other values are inferred; a
        node that takes no sparse operand gets a dense one, and the logger "treadle" reports it. Sparse arguments are `SparseTensor`s (arrays and
        SciPy's matrices are converted). Training computes with dense tensors.
    :param grad_storage: storage types of gradients, by name: "row_sparse" for tables that only Gather along the first axis reads. `grad_dict` then
        gets a new `SparseTensor` after each backward(), with the rows that were read; "add" adds rows.
    """
    core = _core_of(model, shared_exec, options, device, group2ctx, argument_devices, storage, grad_storage)
    stored = {name: _to_storage(value, core.devices.storage.get(name, "default")) for name, value in _by_name(args, core.names, "arguments").items()}
    arrays = {name: value if isinstance(value, SparseTensor) else np.asarray(value) for name, value in stored.items()}
    request, requests = _requests_of(core, grad_req)
    wanted = {name for name in core.names if requests.get(name, request if name in core.floats else "null") != "null"}
    gradients = {name: value for name, value in _by_name(grads, core.names, "gradient arrays").items() if name in wanted}
    for name, value in gradients.items():
        _expect_writable(value, f"the gradient of {name!r}")
    states = {name: np.asarray(value) for name, value in _by_name(aux_states, list(core.states), "auxiliary states").items()}
    native, shared = _shared(core, shared_exec, shared_arg_names)
    with _value_errors():
        made = _treadle.Executor.bind(
            core.graphs,
            {name: core.handed(name, value) for name, value in arrays.items()},
            {name: value if _lies_ready(value) or value.dtype != np.float32 else _ready(value) for name, value in gradients.items()},
            request,
            requests,
            {name: value if _lies_ready(value, float32=True) else _ready(value) for name, value in states.items()},
            native,
            shared_arg_names,
        )
    return _made(core, made, {**shared, **arrays}, gradients, {**shared, **states})


def simple_bind(
    model: Any,
    grad_req: str | Mapping[str, str] | Sequence[str] = "write",
    dtypes: Mapping[str, Any] | None = None,
    storage: Mapping[str, str] | None = None,
    shared_exec: Executor | None = None,
    options: SessionOptions | None = None,
    device: str = "",
    group2ctx: Mapping[str, str] | None = None,
    argument_devices: Mapping[str, str] | None = None,
    grad_storage: Mapping[str, str] | None = None,
    shared_arg_names: Sequence[str] | None = None,
    shared_buffer: dict[str, np.ndarray] | None = None,
    **shapes: Sequence[int],
) -> Executor:
    """Like bind(), with arrays of zeros for inputs of these shapes, and of shapes that follow from shared symbols.

    Parameters have the model's values. The other arguments are those of bind().

    :param dtypes: dtypes of inputs, by name; by default the model's. Parameters have the model's dtypes.
    :param shared_buffer: arrays by name whose memory is used for inputs and, under "grad of NAME", for gradients of inputs, if it is large
        enough; otherwise new arrays are added to it. Executors that run one after the other can share it.
    """
    core = _core_of(model, shared_exec, options, device, group2ctx, argument_devices, storage, grad_storage)
    native, shared = _shared(core, shared_exec, shared_arg_names)
    with _value_errors():
        made = _treadle.Executor.simple_bind(core.graphs, shapes, dict(dtypes or {}), *_requests_of(core, grad_req), shared_buffer, native, shared_arg_names)
    return _made(core, made, dict(shared), {}, shared)

"""Graph executors in the way of MXNet: arrays are bound to names once, and forward() and backward() work on them in place."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import _treadle
from ._treadle import NodeArg, SessionOptions, SparseTensor
from .errors import Error
from .joint_module import JointModule
from .session import Session

__all__ = ["Executor", "bind", "simple_bind"]

_REQUESTS = ("null", "write", "add")
_STORAGES = ("default", "csr", "row_sparse")


def _to_storage(value: Any, storage: str) -> Any:
    """The value as a tensor of that storage type; arrays and SciPy's matrices are converted."""
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
    """Whether the library can read and write the array as it lies."""
    if isinstance(value, SparseTensor):
        return True
    if type(value) is not np.ndarray or not value.flags.carray or not value.dtype.isnative:
        return False
    return value.dtype == np.float32 if float32 else value.dtype.kind in "biufc"


def _ready(value: Any) -> np.ndarray:
    """The same numbers, where the library can read them."""
    return np.array(_to_dense(value), np.float32, order="C")


def _expect_writable(value: Any, what: str) -> None:
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        raise ValueError(f"{what} is written to, and its array is read-only")


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(np.asarray(value.dense_shape()).tolist()) if isinstance(value, SparseTensor) else tuple(np.shape(value))


def _bytes_of(model: Any) -> bytes:
    if isinstance(model, (bytes, bytearray, memoryview)):
        return bytes(model)
    if hasattr(model, "SerializeToString"):  # an onnx.ModelProto
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
    """A dict in place of keywords would be taken for True."""
    if not isinstance(value, (bool, np.bool_, int)):
        raise TypeError(f"{name} is True or False, got {type(value).__name__}; {what} are given by name: x=..., or **{{'input.1': ...}}")
    return bool(value)


def _check_input_names(given: Mapping[str, Any], core: _Core, what: str) -> None:
    for name in given:
        if name in core.parameters:
            raise ValueError(f"{what} is given for {name!r}, which is a parameter and has the model's")
        if name not in core.input_names:
            raise ValueError(f"{what} is given for {name!r}, which is no input; the inputs are {', '.join(core.input_names)}")


def _determined_shapes(inputs: Sequence[NodeArg], given: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """The shapes of the inputs that follow from those given, by the symbols that they share; without the inputs whose do not."""
    extents: dict[Any, int] = {}
    for info in inputs:
        pairs = zip(info.shape, given.get(info.name, ()), strict=False)
        extents.update((symbol, extent) for symbol, extent in pairs if isinstance(symbol, str))  # None: an extent without a name
    shapes = {}
    for info in inputs:
        shape = [extent if isinstance(extent, int) else extents.get(extent) for extent in info.shape]
        if info.name in given:
            shapes[info.name] = tuple(given[info.name])
        elif None not in shape:
            shapes[info.name] = tuple(extent for extent in shape if extent is not None)
    return shapes


@dataclass(frozen=True)
class _Devices:
    """Where the nodes of an executor run."""

    device: str = ""
    group2ctx: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)
    storage: Mapping[str, str] = field(default_factory=dict)  # of arguments, in whose memory these are

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
    """What executors of different shapes share: the compiled graphs."""

    def __init__(self, model: Any, options: SessionOptions | None, devices: _Devices, sparse_gradients: Sequence[str] = ()) -> None:
        self.sparse_gradients = tuple(sparse_gradients)  # of parameters, by rows
        self.model = _bytes_of(model)
        self.devices = devices
        self.options = options
        self.session: Session | None = None  # of passes that are not for training, where the library asks for one
        self._watchers: list[Callable[[Any], None]] = []
        self._applied = devices.apply(options)
        native = _treadle.Model.from_bytes(self.model)
        self.graphs = _treadle.ExecutorGraphs(native, self._applied, list(sparse_gradients), self._make_session)
        self.inputs: Sequence[NodeArg] = self.session.inputs if self.session is not None else native.inputs
        # Everything floating-point that can be trained, and the running statistics, as the model has them.
        self.parameters: dict[str, np.ndarray] = self.graphs.parameters
        self.states: dict[str, np.ndarray] = self.graphs.states
        self.input_names = [info.name for info in self.inputs]
        self.float_inputs = [info.name for info in self.inputs if info.type == "tensor(float)"]
        evaluation = self.graphs.evaluation
        self.evaluation = None if evaluation is None else JointModule._of(evaluation, self.inputs)
        self._training: dict[tuple[tuple[str, str], ...], JointModule] = {}

    def _make_session(self) -> _treadle.Session:
        self.session = Session(self.model, self._applied)
        return self.session._sess

    def training(self, requests: Mapping[str, str]) -> JointModule:
        """The joint graph with these gradients."""
        key = tuple(requests.items())
        if key not in self._training:
            self._training[key] = JointModule._of(self.graphs.training(dict(requests)), self.inputs)
            for watcher in list(self._watchers):
                watcher(self._training[key])
        return self._training[key]

    def watch(self, observer: Callable[[Any], None]) -> None:
        """Calls the observer with every graph, those that are made later too."""
        self._watchers.append(observer)
        for graph in (self.session, self.evaluation, *self._training.values()):
            if graph is not None:
                observer(graph)

    def unwatch(self, observer: Callable[[Any], None]) -> None:
        """Ends watch()."""
        self._watchers.remove(observer)


class Executor:
    """A model with arrays bound to its arguments: inputs, parameters (floating-point initializers) and auxiliary states (running statistics).

    Made by bind() and simple_bind(). The arrays of arg_dict, grad_dict and aux_dict are the ones that were bound: what is written to them holds
    from the next forward() on. backward() reads those of arg_dict again, so write them behind it. Not for use by several threads at once.
    """

    def __init__(
        self,
        core: _Core,
        args: dict[str, np.ndarray],
        grads: dict[str, Any],
        requests: dict[str, str],
        states: dict[str, np.ndarray],
    ) -> None:
        self._core = core
        self._manager = core  # of whose graphs profiles are taken
        self.arg_dict = args
        self.grad_dict = grads
        self.aux_dict = states
        self._requests = {name: requests.get(name, "null") for name in (*core.input_names, *core.parameters)}
        for name, value in grads.items():
            _expect_writable(value, f"the gradient of {name!r}")
        # What the library has: the arrays themselves where it can use them as they lie, otherwise copies that are made for each pass.
        self._bound = {name: value if self._is_ready(name, value) else None for name, value in args.items()}
        self._bound_grads = {name: value if _lies_ready(value) else None for name, value in grads.items()}
        self._bound_states = {name: value if _lies_ready(value, float32=True) else None for name, value in states.items()}
        self._executor = _treadle.Executor.bind(
            core.graphs,
            {name: self._handed(name, value) for name, value in args.items()},
            {name: value if _lies_ready(value) else _ready(value) for name, value in grads.items()},
            self._requests,
            {name: value if _lies_ready(value, float32=True) else _ready(value) for name, value in states.items()},
        )
        self._awaits_backward = self._is_partial = self._is_partial_train = False
        self.outputs: list[np.ndarray] = []
        self._output_names = core.graphs.output_names

    def _is_ready(self, name: str, value: Any) -> bool:
        return _lies_ready(value, float32=name in self._core.parameters)

    def _handed(self, name: str, value: Any) -> Any:
        return _ready(value) if name in self._core.parameters and not self._is_ready(name, value) else value

    def _hand_over(self, is_train: bool) -> None:
        """Arrays that have taken the place of others since the last pass, and those that have to be copied for each."""
        for name, value in self.arg_dict.items():
            if self._bound[name] is not value:
                self._executor.set_argument(name, self._handed(name, value))
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
        self._core.training(self._requests)  # profiles of the process know of it from now on
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
        """The last outputs by name."""
        return dict(zip(self._output_names, self.outputs, strict=True)) if self.outputs else {}

    def forward(self, is_train: bool = False, **inputs: Any) -> list[np.ndarray]:
        """Computes the outputs.

        :param is_train: keep what backward() needs; normalisations use the batch's statistics and update the running ones.
        :param inputs: copied into the arrays of these arguments first.
        """
        is_train = _flag(is_train, "is_train", "inputs")
        self._copy_inputs(inputs)
        self._hand_over(is_train)
        self._awaits_backward = False
        self._executor.forward(is_train)
        self._end_forward(is_train)
        return self.outputs

    def partial_forward(self, step: int, is_train: bool = False, **inputs: Any) -> int:
        """Runs one step of the forward pass: a node of the optimised graph (for training over devices, a piece of work). Step 0 begins a pass;
        the others follow in order, and `outputs` are those of the pass when none are left::

            left = executor.partial_forward(0)
            for step in range(1, left + 1):
                left = executor.partial_forward(step)

        Passes that are not for training take place on the host, whatever `group2ctx` says.

        :param is_train, inputs: as in forward(); they count at step 0.
        :returns: how many steps are left; 0 for a step behind the last.
        :raises ValueError: a step is left out or done twice.
        """
        is_train = _flag(is_train, "is_train", "inputs")
        if step == 0:
            self._copy_inputs(inputs)
            self._hand_over(is_train)
            self._awaits_backward = False
            self._is_partial, self._is_partial_train = True, is_train
        try:
            left = self._executor.partial_forward(step, is_train)
        except Error as error:
            if error.code == "invalid_argument" and "does not follow" in str(error):
                raise ValueError(str(error)) from None
            raise
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
                self.arg_dict[name] = _to_storage(value, storage)  # stored elements differ in number

    def backward(self, out_grads: Sequence[Any] | Any | None = None) -> None:
        """Computes gradients into the arrays of grad_dict: in place of what is there ("write") or on top of it ("add").

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
        # ascontiguousarray makes vectors of scalars.
        self._executor.backward([np.ascontiguousarray(gradient, np.float32).reshape(np.shape(gradient)) for gradient in out_grads])
        for name, value in self._bound_grads.items():
            if name in self._core.sparse_gradients:  # stored rows differ in number
                self.grad_dict[name] = self._bound_grads[name] = self._executor.gradient(name)
            elif value is None:
                np.copyto(self.grad_dict[name], np.asarray(self._executor.gradient(name)))

    def reshape(self, partial_shaping: bool = False, allow_up_sizing: bool = False, **shapes: Sequence[int]) -> Executor:
        """An executor for inputs of other shapes, which shares parameters, states, and as much memory of the inputs as there is.

        Inputs that are not named have the shape that follows from the symbols they share with those that are.

        :param partial_shaping: inputs that are not named may change; those whose shape does not follow keep theirs.
        :param allow_up_sizing: new memory may be made for inputs that grow.
        :raises ValueError: an input that is not named changes or cannot be told, or one grows, without leave.
        """
        partial_shaping, allow_up_sizing = (
            _flag(value, name, "shapes") for name, value in (("partial_shaping", partial_shaping), ("allow_up_sizing", allow_up_sizing))
        )
        args, grads = dict(self.arg_dict), dict(self.grad_dict)
        _check_input_names(shapes, self._core, "a shape")
        determined = _determined_shapes(self._core.inputs, shapes)
        for name in self._core.input_names:
            old_shape, shape = _shape(self.arg_dict[name]), determined.get(name)
            if name not in shapes and not partial_shaping:
                if shape is None:
                    raise ValueError(f"the shape of {name!r} is not given, and partial_shaping is off")
                if shape != old_shape:
                    raise ValueError(f"{name!r} would change from {old_shape} to {shape}, and partial_shaping is off")
            if shape is None or (name not in shapes and shape == old_shape):
                continue
            for arrays in (args, grads):
                if name not in arrays:
                    continue
                stored: Any = arrays[name]
                if isinstance(stored, SparseTensor):  # nothing to share
                    dtype = np.asarray(stored.values()).dtype
                    arrays[name] = _to_storage(np.zeros(shape, dtype), self._core.devices.storage[name])
                    continue
                old, size = arrays[name], int(np.prod(shape))
                if size <= old.size:
                    arrays[name] = old.reshape(-1)[:size].reshape(shape)
                elif allow_up_sizing:
                    arrays[name] = np.zeros(shape, old.dtype)
                else:
                    raise ValueError(f"{name!r} grows from {old.shape} to {shape}, and allow_up_sizing is off")
        return Executor(self._core, args, grads, self._requests, self.aux_dict)

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
        """Calls `callback(name, array)` with every output of a node in forward() and backward(); with `monitor_all` with inputs of nodes, too.
        Values that the graph optimiser would have removed are computed for it. Executors that share a graph share the monitor.
        """
        watch = None if callback is None else (lambda event: callback(event.value, event.array))
        _treadle.monitor_graphs(self._core.graphs, watch, "*", monitor_all)

    def optimized_model(self) -> bytes:
        """The forward pass, simplified by the passes of the executor's options, as an ONNX model. Fused operators are not in it."""
        return self._core.graphs.optimized_model()

    def end_profiling(self) -> list[str]:
        """Ends what `options.enable_profiling` began. Executors that reshape() made share it.

        Returns the paths of the profiles: of the forward passes, and of each graph that training has made. Empty without profiling.
        """
        return self._core.graphs.end_profiling()

    @property
    def memory_bytes(self) -> int:
        """Weights, packed weights and planned activations of the forward pass, after a first run."""
        return self._core.graphs.memory_bytes


def _make(core: _Core, args: dict[str, Any], grads: Any, grad_req: Any, aux_states: Any) -> Executor:
    names = [*core.input_names, *core.parameters]
    storage = core.devices.storage
    bound = {name: _to_storage(args[name], storage.get(name, "default")) for name in names}
    bound = {name: value if isinstance(value, SparseTensor) else np.asarray(value) for name, value in bound.items()}
    dense = {name: np.asarray(value.values()) if isinstance(value, SparseTensor) else value for name, value in bound.items()}  # for dtypes
    if isinstance(grad_req, str):
        requests = dict.fromkeys([*core.float_inputs, *core.parameters], grad_req)
    else:
        requests = _by_name(grad_req, names, "gradient requests")
    for name, request in requests.items():
        if request not in _REQUESTS:
            raise ValueError(f"the gradient request of {name!r} is {request!r}; there are {', '.join(_REQUESTS)}")
        if request != "null" and dense[name].dtype != np.float32:
            raise ValueError(f"{name!r} is {dense[name].dtype}; gradients exist for float32 only")
    given = _by_name(grads, names, "gradient arrays")
    gradients: dict[str, Any] = {}
    for name, request in requests.items():
        if request == "null":
            continue
        if name in core.sparse_gradients:
            shape = _shape(bound[name])
            none = SparseTensor.row_sparse_from_numpy(np.array(shape, np.int64), np.zeros((0, *shape[1:]), np.float32), np.zeros(0, np.int64))
            gradients[name] = given.get(name, none)
            if not isinstance(gradients[name], SparseTensor) or _shape(gradients[name]) != shape:
                raise ValueError(f"the gradient of {name!r} is row_sparse; give a SparseTensor of the shape {shape}, or none")
            continue
        gradients[name] = given[name] if name in given else np.zeros(_shape(bound[name]), np.float32)
        if gradients[name].shape != _shape(bound[name]) or gradients[name].dtype != np.float32:
            raise ValueError(f"the gradient array of {name!r} is {gradients[name].dtype}{gradients[name].shape}, not float32{_shape(bound[name])}")
    states = {name: np.array(value) for name, value in core.states.items()}
    states.update({name: np.asarray(value) for name, value in _by_name(aux_states, list(states), "auxiliary states").items()})
    return Executor(core, bound, gradients, requests, states)


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
    """The executor's that is shared, or a new one."""
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


def _shared_arrays(core: _Core, shared_exec: Executor, shared_arg_names: Sequence[str] | None) -> dict[str, Any]:
    """Parameters and states of the shared executor that the new one reads and writes too."""
    own = {**core.parameters, **core.states}
    theirs = {**shared_exec.arg_dict, **shared_exec.aux_dict}
    if shared_arg_names is None:
        names = [name for name in own if name in theirs]
        if not names and own:
            raise ValueError(f"shared_exec has no parameter of this model; its parameters are {', '.join(shared_exec._core.parameters)}")
    else:
        names = list(shared_arg_names)
        if unknown := [name for name in names if name not in own or name not in theirs]:
            raise ValueError(f"{unknown[0]!r} is no parameter of both executors; those are {', '.join(name for name in own if name in theirs)}")
    for name in names:
        if _shape(theirs[name]) != own[name].shape:
            raise ValueError(f"{name!r} is {_shape(theirs[name])} in shared_exec and {own[name].shape} in the model; shared_arg_names can leave it out")
    return {name: theirs[name] for name in names}


def _from_buffer(buffer: dict[str, np.ndarray] | None, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros within the array of that name, where there is one of enough elements; otherwise the buffer gets a new one."""
    if buffer is None:
        return np.zeros(shape, dtype)
    size, found = int(np.prod(shape)), buffer.get(name)
    if found is None or found.dtype != dtype or found.size < size or not found.flags.c_contiguous:
        found = buffer[name] = np.zeros(shape, dtype)
    array = found.reshape(-1)[:size].reshape(shape)
    array[...] = 0
    return array


def _bind(
    core: _Core,
    args: Mapping[str, Any] | Sequence[Any],
    grads: Any,
    grad_req: Any,
    aux_states: Mapping[str, Any] | Sequence[Any] | None,
    shared_exec: Executor | None,
    shared_arg_names: Sequence[str] | None = None,
) -> Executor:
    """With parameters and states of the shared executor, or the model's, where no others are given."""
    names = [*core.input_names, *core.parameters]
    given = _by_name(args, names, "arguments")
    if shared_arg_names is not None and shared_exec is None:
        raise ValueError("shared_arg_names needs the shared_exec that has them")
    shared = {} if shared_exec is None else _shared_arrays(core, shared_exec, shared_arg_names)
    defaults = {name: shared[name] if name in shared else array.copy() for name, array in core.parameters.items()}
    missing = [name for name in core.input_names if name not in given]
    if missing:
        raise ValueError(f"no array for {', '.join(missing)}")
    if shared_exec is not None:
        states = {name: array for name, array in shared.items() if name in core.states}
        aux_states = {**states, **_by_name(aux_states, list(core.states), "auxiliary states")}
    return _make(core, {name: given.get(name, defaults.get(name)) for name in names}, grads, grad_req, aux_states)


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
    :param grads: where gradients are put; made where they are missing.
    :param grad_req: "null", "write" or "add", for all or by name.
    :param aux_states: running statistics; the model's where they are missing.
    :param shared_exec: an executor whose parameters and states are used where no others are given, by name; one of the same model also shares
        its compiled graph. Its options, devices and storage types are the new one's.
    :param shared_arg_names: the parameters and states that are shared; by default all that both models have.
    :param options: of the forward pass and of training, which refuses some of them (docs/sessions.md).
    :param device: default device: "cpu" (if empty), "sim" or "sim:NAME".
    :param group2ctx: devices by group. A node names its group by the key "ctx_group" of its metadata (`NodeProto.metadata_props`).
    :param argument_devices: devices of inputs and parameters, by name; nodes without a group follow their operands.
    :param storage: storage types of inputs and parameters, by name: "csr", "row_sparse" or "default". They are inferred for what follows; a
        node that takes no sparse operand gets a dense one, and the logger "treadle" is told. Such arguments are `SparseTensor`s (arrays and
        SciPy's matrices are converted). Training computes with dense ones.
    :param grad_storage: storage types of gradients, by name: "row_sparse" for tables that nothing but Gather along the first axis reads. `grad_dict`
        then has a new `SparseTensor` after each backward(), of the rows that were read; "add" adds rows.
    """
    core = _core_of(model, shared_exec, options, device, group2ctx, argument_devices, storage, grad_storage)
    return _bind(core, args, grads, grad_req, aux_states, shared_exec, shared_arg_names)


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
    """As bind(), with arrays made for inputs of these shapes (zeros), or of those that follow from the symbols they share.

    Parameters have the model's values. The other arguments are those of bind().

    :param dtypes: of inputs, by name; the model's by default. Parameters have the model's.
    :param shared_buffer: arrays by name in which inputs, and gradients of inputs under "grad of NAME", are laid where they fit; new ones are put
        into it. Executors that take turns share its memory.
    """
    core = _core_of(model, shared_exec, options, device, group2ctx, argument_devices, storage, grad_storage)
    _check_input_names(shapes, core, "a shape")
    _check_input_names(dtypes or {}, core, "a dtype")
    types = {"float": np.float32, "double": np.float64, "int64": np.int64, "int32": np.int32, "bool": np.bool_}
    types = {f"tensor({name})": dtype for name, dtype in types.items()}
    args = {}
    determined = _determined_shapes(core.inputs, shapes)
    for info in core.inputs:
        shape = determined.get(info.name)
        if shape is None or len(shape) != len(info.shape):
            raise ValueError(f"the shape of {info.name!r} is {info.shape}, given {shapes.get(info.name)}; give one without symbols")
        dtype = (dtypes or {}).get(info.name, types.get(info.type, np.float32))
        args[info.name] = _from_buffer(shared_buffer, info.name, shape, np.dtype(dtype))
    grads = None
    if shared_buffer is not None:
        request = {name: grad_req for name in core.float_inputs} if isinstance(grad_req, str) else _by_name(grad_req, [*core.input_names, *core.parameters], "gradient requests")
        wanted = [name for name in core.float_inputs if request.get(name, "null") != "null"]
        grads = {name: _from_buffer(shared_buffer, f"grad of {name}", args[name].shape, np.dtype(np.float32)) for name in wanted}
    return _bind(core, args, grads, grad_req, None, shared_exec, shared_arg_names)

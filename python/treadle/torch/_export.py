"""Exports a module to an ONNX model whose inputs are the module's inputs, parameters and buffers, by an example of the inputs."""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import logging
import time
import warnings
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import torch
from torch import nn
from torch.jit._trace import TracerWarning
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ._state import State, state_of, trains_statistics
from ._structure import flatten, unflatten

_OPSET = 18


class _ReadsTheOriginal(RuntimeError):
    """The trace of a copied module has read tensors of the original module."""


class NotExported(RuntimeError):
    """Neither exporter could make a model of the module; the message says why."""


@dataclass
class Exported:
    """A model, and how its inputs and outputs relate to the module's."""

    model: onnx.ModelProto
    exporter: str
    outputs: Hashable  # the structure of the outputs
    shapes: list[list[int | str]]  # shapes of the inputs: extents, symbols, or expressions of symbols
    bounds: dict[str, tuple[int, float]]  # the smallest and the largest value of each symbol
    seconds: float


@dataclass
class _Held:
    module: nn.Module
    state: State
    structure: Hashable  # the structure of the inputs
    outputs: Hashable = None


class _Flat(nn.Module):
    """The module as a function of tensors: its inputs, then its parameters and buffers."""

    def __init__(self, module: nn.Module, state: State, structure: Hashable) -> None:
        super().__init__()
        # The module is in an object of its own. Exporters would turn the parameters of a child module into constants, and would restore the
        # value of a plain attribute.
        self.held = _Held(module, state, structure)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        held = self.held
        num_inputs = len(tensors) - len(held.state.tensors)
        args, kwargs = unflatten(held.structure, iter(tensors[:num_inputs]))
        with held.state.replaced_by(tensors[num_inputs:]):
            result = held.module.forward(*args, **kwargs)
        leaves: list[torch.Tensor] = []
        held.outputs = flatten(result, leaves, "the outputs")
        if not leaves:
            raise NotExported("the outputs hold no tensor")
        return tuple(leaves)


@contextlib.contextmanager
def _as_exported(module: nn.Module) -> Iterator[None]:
    """Sets PyTorch up for an export. Normalisations in training are exported in evaluation mode, since the joint module computes and keeps their
    statistics.
    """
    switched = [owner for owner in module.modules() if trains_statistics(owner)]
    fast_path = torch.backends.mha.get_fastpath_enabled()
    loggers = {name: logging.getLogger(name).level for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")}
    for owner in switched:
        owner.training = False
    # PyTorch's fast path calls a single operator for a whole attention layer, and ONNX has no such operator.
    torch.backends.mha.set_fastpath_enabled(False)
    for name in loggers:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), torch.no_grad(), torch.autocast("cpu", enabled=False):
            warnings.simplefilter("ignore")
            yield
    finally:
        for owner in switched:
            owner.training = True
        torch.backends.mha.set_fastpath_enabled(fast_path)
        for name, level in loggers.items():
            logging.getLogger(name).setLevel(level)


def _copy_of(module: nn.Module, state: State) -> tuple[nn.Module, State] | None:
    """Copies the module, but not its tensors; None if it cannot be copied in this way.

    Tracing replaces parameters by other tensors. In the original module, other threads would see these.
    """
    try:
        made = copy.deepcopy(module, {id(tensor): tensor for tensor in state.tensors})
    except Exception:  # attributes may raise anything
        return None
    own = state_of(made)
    same = own.names == state.names and all(a is b for a, b in zip(own.tensors, state.tensors, strict=True))
    return (made, own) if same else None


def _names(count: int, state: State) -> list[str]:
    return [f"input:{i}" for i in range(count)] + [f"state:{name}" for name in state.names]


def _first_line(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:300]}" if text else type(error).__name__


def _size_one_is_dynamic() -> contextlib.AbstractContextManager[Any]:
    """Lets dynamic extents stay symbols even if they are 1 in the example; otherwise a batch of one would become a constant."""
    config: Any = importlib.import_module("torch.fx.experimental._config")
    return config.patch(backed_size_oblivious=True) if hasattr(config, "backed_size_oblivious") else contextlib.nullcontext()


def _written_inputs(graph: torch.fx.Graph) -> list[str]:
    """Returns the inputs to which operators of the graph write, directly or through a view."""
    shown: dict[torch.fx.Node, torch.fx.Node] = {}  # maps each view to the value whose memory it uses
    written: dict[str, None] = {}
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None:
            continue
        for argument, value in zip(schema.arguments, node.args, strict=False):
            if argument.alias_info is None or not isinstance(value, torch.fx.Node):
                continue
            shown[node] = whole = shown.get(value, value)
            if argument.alias_info.is_write and whole.op == "placeholder":
                written[whole.name] = None
    return list(written)


@contextlib.contextmanager
def _named_layers(module: nn.Module) -> Iterator[None]:
    """Tells torch.export the path of each part of the module when it is called. Profiles show these; torch.export knows only those of children."""
    tracing: Any = importlib.import_module("torch.fx.experimental.proxy_tensor")
    if not hasattr(tracing, "get_proxy_mode"):
        yield
        return
    paths = {part: path for path, part in module.named_modules() if path}

    def stack() -> dict[str, tuple[str, type]] | None:  # returns the stack of the tracer that is active on this thread
        return getattr(getattr(tracing.get_proxy_mode(), "tracer", None), "module_stack", None)

    def begin(part: nn.Module, _: Any) -> None:
        if part in paths and (names := stack()) is not None:
            names[paths[part]] = (paths[part], type(part))

    def end(part: nn.Module, *_: Any) -> None:
        if part in paths and (names := stack()) is not None:
            names.pop(paths[part], None)

    hooks = [register_module_forward_pre_hook(begin), register_module_forward_hook(end, always_call=True)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _by_torch_export(flat: _Flat, tensors: tuple[torch.Tensor, ...], names: list[str], dynamic: Sequence[set[int]],
                     original: State | None) -> Exported:  # fmt: skip
    """:param original: the state of the module of which `flat` holds a copy; forward() may read that module by a closure"""
    shapes = [{axis: torch.export.Dim.AUTO for axis in sorted(axes)} or None for axes in dynamic]
    shapes += [None] * (len(tensors) - len(shapes))
    with _size_one_is_dynamic(), _named_layers(flat.held.module):
        program = torch.export.export(flat, tensors, dynamic_shapes=(tuple(shapes),), strict=False)
    if original is not None:
        places = {tensor.untyped_storage().data_ptr() for tensor in original.tensors if tensor.numel() > 0}
        if any(isinstance(found, torch.Tensor) and found.untyped_storage().data_ptr() in places for found in program.constants.values()):
            raise _ReadsTheOriginal
    written = _written_inputs(program.graph)
    if written:
        placed = dict(zip(program.graph_signature.user_inputs, names, strict=False))
        raise NotExported(f"forward() writes to {', '.join(placed.get(name, name) for name in written)}")
    made = torch.onnx.export(program, dynamo=True, optimize=False, verbose=False, input_names=names)
    if made is None:
        raise NotExported("torch.onnx.export gave no program")
    bounds = {str(symbol): (int(limits.lower), float(limits.upper)) for symbol, limits in program.range_constraints.items()}
    return Exported(made.model_proto, "torch.export", flat.held.outputs, [], bounds, 0)


def _by_tracing(flat: _Flat, tensors: tuple[torch.Tensor, ...], names: list[str]) -> Exported:
    """Exports by tracing, which turns extents into constants: the model is valid for these shapes only. Control flow must not depend on values."""
    file: Any = io.BytesIO()
    tensors = tuple([tensor.clone() for tensor in tensors])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", TracerWarning)
        torch.onnx.export(flat, tensors, file, dynamo=False, opset_version=_OPSET, input_names=names, do_constant_folding=False,
                          training=torch.onnx.TrainingMode.PRESERVE)  # fmt: skip
    written = [name for name, tensor in zip(names, tensors, strict=True) if tensor._version > 0]
    if written:
        raise NotExported(f"forward() writes to {', '.join(written)}")
    return Exported(onnx.load_from_string(file.getvalue()), "TorchScript", flat.held.outputs, [], {}, 0)


def _of_itself(module: nn.Module, state: State, structure: Hashable, tensors: tuple[torch.Tensor, ...], names: list[str],
               dynamic: Sequence[set[int]]) -> Exported:  # fmt: skip
    flat = _Flat(module, state, structure)
    with _as_exported(module):
        try:
            return _by_torch_export(flat, tensors, names, dynamic, None)
        except NotExported:
            raise
        except Exception as first:  # exporters may raise anything
            try:
                return _by_tracing(flat, tensors, names)
            except Exception as second:
                raise NotExported(f"torch.export: {_first_line(first)}; TorchScript: {_first_line(second)}") from first


def export(module: nn.Module, state: State, structure: Hashable, leaves: Sequence[torch.Tensor], dynamic: Sequence[set[int]]) -> Exported:
    """Exports the module's graph in its present mode.

    :param dynamic: for each input the axes whose extents may change in later calls.
    :raises NotExported: the message contains the reasons of both exporters.
    """
    started = time.perf_counter()
    tensors = tuple([tensor.detach() for tensor in (*leaves, *state.tensors)])
    names = _names(len(leaves), state)
    made = None
    if own := _copy_of(module, state):
        flat = _Flat(*own, structure)
        with _as_exported(own[0]), contextlib.suppress(Exception):  # if this fails, the export of the module itself reports the reason
            made = _by_torch_export(flat, tensors, names, dynamic, state)
    if made is None:
        made = _of_itself(module, state, structure, tensors, names, dynamic)
    inputs = {value.name: value for value in made.model.graph.input}
    for i, leaf in enumerate(leaves):
        info = inputs.get(f"input:{i}")
        dims = info.type.tensor_type.shape.dim if info is not None else []
        if made.exporter != "torch.export" or len(dims) != leaf.dim():
            made.shapes.append(list(leaf.shape))
        else:
            made.shapes.append([dim.dim_param if dim.HasField("dim_param") else dim.dim_value for dim in dims])
    made.seconds = time.perf_counter() - started
    return made

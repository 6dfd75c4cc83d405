"""Tracks a module's parameters, buffers and attributes, and whether any of them has changed."""

from __future__ import annotations

import types
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, types.FunctionType, types.BuiltinFunctionType, type)
_NO_HOLDERS = (nn.Module, torch.Tensor, type, types.ModuleType, types.FunctionType, types.MethodType)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_BatchNorm = nn.modules.batchnorm._BatchNorm


def trains_statistics(module: nn.Module) -> bool:
    """Returns True if the forward pass of this module itself updates running statistics."""
    return isinstance(module, _BatchNorm) and module.training and module.track_running_stats and module.running_mean is not None


class ReplacedTensor(RuntimeError):
    """A forward pass has replaced parameters or buffers of the module."""


@dataclass
class State:
    """A module's tensors, each listed once with all places where it is stored, since modules may share weights."""

    names: list[str] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    places: list[list[tuple[dict[str, Any], str]]] = field(default_factory=list)  # for each tensor: dictionaries that hold it, and its keys
    recurrent: list[nn.RNNBase] = field(default_factory=list)  # modules that also keep their weights in a list of their own
    parameters: list[torch.Tensor] = field(default_factory=list)  # the first part of `tensors`: parameters and plain attributes
    statistics: list[str] = field(default_factory=list)  # names of the running means and variances that training updates
    counters: list[torch.Tensor] = field(default_factory=list)  # the buffers num_batches_tracked of the modules that have these statistics

    @contextmanager
    def replaced_by(self, tensors: tuple[torch.Tensor, ...]) -> Iterator[None]:
        """Replaces the module's tensors by others within a block."""
        self._put(tensors)
        try:
            _refresh_flat_weights(self.recurrent)
            yield
            for name, tensor, places in zip(self.names, tensors, self.places, strict=True):
                if any(table.get(key) is not tensor for table, key in places):
                    raise ReplacedTensor(f'forward() puts another tensor in the place of "{name}"')
        finally:
            self._put(self.tensors)
            _refresh_flat_weights(self.recurrent)

    def _put(self, tensors: Any) -> None:
        for tensor, places in zip(tensors, self.places, strict=True):
            for table, key in places:
                table[key] = tensor


def _refresh_flat_weights(modules: list[nn.RNNBase]) -> None:
    for module in modules:
        module._flat_weights = [getattr(module, name, None) for name in module._flat_weights_names]


def state_of(module: nn.Module) -> State:
    """Returns the module's parameters, then tensors that are plain attributes, then buffers."""
    state = State()
    found: dict[int, int] = {}
    for kind in ("_parameters", "", "_buffers"):
        for prefix, owner in module.named_modules():
            table = owner.__dict__[kind] if kind else owner.__dict__
            for key, tensor in table.items():
                if not isinstance(tensor, torch.Tensor):
                    continue
                if id(tensor) not in found:
                    found[id(tensor)] = len(state.tensors)
                    state.names.append(f"{prefix}.{key}" if prefix else key)
                    state.tensors.append(tensor)
                    state.places.append([])
                state.places[found[id(tensor)]].append((table, key))
        if kind == "":
            state.parameters = list(state.tensors)
    for owner in module.modules():
        if isinstance(owner, nn.RNNBase):
            state.recurrent.append(owner)
        if trains_statistics(owner):
            state.statistics += [state.names[found[id(owner.__dict__["_buffers"][key])]] for key in ("running_mean", "running_var")]
            if owner.num_batches_tracked is not None:
                state.counters.append(owner.__dict__["_buffers"]["num_batches_tracked"])
    return state


def _plain(value: Any) -> Hashable:
    """Returns a hashable form of an attribute: plain values themselves, containers by their contents, other objects by their identity."""
    if isinstance(value, _PLAIN):
        return (type(value), value)
    if isinstance(value, (list, tuple)):
        return tuple([_plain(item) for item in value])
    if isinstance(value, (set, frozenset)):
        return frozenset(_plain(item) for item in value)
    if isinstance(value, dict):
        return tuple([(str(key), _plain(item)) for key, item in value.items()])
    if isinstance(value, torch.Tensor):
        return ("tensor", value.dtype, tuple(value.shape))
    return id(value)


def _is_holder(value: Any) -> bool:
    """Returns True if the value is an object with attributes, such as a configuration."""
    return hasattr(value, "__dict__") and not isinstance(value, _NO_HOLDERS)


def attributes_of(module: nn.Module) -> Hashable:
    """Returns all that an export depends on besides the inputs: modules, their modes and plain attributes, dtypes and shapes of tensors."""
    described = []
    for name, owner in module.named_modules():
        plain = []
        for key, value in owner.__dict__.items():
            if key in ("_modules", "forward"):
                continue
            plain.append((key, _plain(vars(value)) if _is_holder(value) else _plain(value)))
        described.append((name, type(owner), tuple(plain)))
    return tuple(described)


def snapshot_of(module: nn.Module) -> list[tuple[Any, Any, tuple[Any, ...]]]:
    """Returns the argument of _treadle.holds_the_same(): every container of attributes with its keys and values."""
    containers: list[Any] = []
    for owner in module.modules():
        containers.append(owner.__dict__)
        for value in owner.__dict__.values():
            if isinstance(value, (dict, list)):
                containers.append(value)
            elif _is_holder(value):
                containers.append(vars(value))
    return [(held, None, tuple(held)) if isinstance(held, list) else (held, tuple(held), tuple(held.values())) for held in containers]


def obstacle(module: nn.Module, state: State) -> str | None:
    """Returns the reason for which PyTorch must run the module, whatever its graph is; None if there is none."""
    for name, owner in module.named_modules():
        of = f"{name or 'the module'} ({type(owner).__name__})"
        for hooks in _HOOKS:
            if owner.__dict__.get(hooks):
                return f"{of} has hooks ({hooks.strip('_')}), which a graph would not call; hooks on the treadle.torch.Module itself are called"
        if isinstance(owner, nn.SyncBatchNorm) and owner.training:
            return f"{of} exchanges statistics between processes"
        if trains_statistics(owner) and owner.momentum is None:
            return f"{of} keeps a cumulative average (momentum=None)"
    for name, tensor in zip(state.names, state.tensors, strict=True):
        if tensor.device.type != "cpu":
            return f'"{name}" is on the device {tensor.device}; Treadle computes on the CPU'
        if tensor.layout != torch.strided:
            return f'"{name}" has the layout {tensor.layout}'
        if tensor.requires_grad and tensor.dtype != torch.float32:
            return f'"{name}" is {tensor.dtype}; gradients exist for float32'
    return None

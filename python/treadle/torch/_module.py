"""Defines treadle.torch.Module."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from .. import _clients
from ._manager import Event, Manager, describe
from ._plan import Options

_OWN = ("_wrapped", "_manager", "_options")
# Dictionaries of attributes that the wrapper shares with the wrapped module.
_SHARED = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


class Module(nn.Module):
    """Wraps a module, and computes its forward and backward passes by Treadle's graphs. Training loop, loss and optimizer remain PyTorch's.

    ::

        model = treadle.torch.Module(model)
        optimizer = torch.optim.AdamW(model.parameters())
        for images, labels in loader:
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    Parameters, buffers, `state_dict()`, `train()`, attributes and methods are the wrapped module's own. A module that cannot be exported, or a part
    of one, runs in PyTorch, and a `FallbackWarning` says once why; explain() returns the log.

    :param module: the wrapped module. It is not copied, and can still be used by itself.
    :param num_threads: number of threads of the graphs; by default PyTorch's (`torch.get_num_threads()`) when the wrapper is made.
    :param pack_weights: make the weights constants of graphs that evaluate without gradients, from the second call with the same weights on.
        They are packed again after every change that PyTorch counts: an optimizer's step, `copy_()`, `load_state_dict()`. It does not count
        writes through `.data`; call repack() after these.
    :param gradient_group_mb: give gradients to autograd in groups of at least this many megabytes, each as soon as the backward pass has computed it
        (0: one by one). Hooks on parameters then run while other gradients are computed, and may free gradients. By default groups have 4 MB if
        `torch.distributed` runs with several processes; otherwise autograd gets all gradients at the end, because each group costs some time.
    :param memory_fraction: the part, up to 1, of the activations' usual memory that a forward and backward pass may use, if there is a plan for it:
        the backward pass then computes values a second time, with the same bits. 0: no limit.
    :param recompute_fraction: the part, up to 1, of both passes' estimated time that may be spent on computing values a second time, so that
        activations take less memory, with the same bits. None: up to 0.1, as long as a percent of the time saves four percent of that memory.
    :param device: where graphs run: "cpu" (if empty), "gpu" or "gpu:N" (Vulkan). Tensors are PyTorch's own on the CPU, so that parameters, inputs and
        gradients are copied in every run.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        num_threads: int | None = None,
        pack_weights: bool = False,
        gradient_group_mb: float | None = None,
        memory_fraction: float = 0.0,
        recompute_fraction: float | None = None,
        device: str = "",
    ) -> None:
        if isinstance(module, Module):
            raise TypeError("the module is a treadle.torch.Module already")
        if not isinstance(module, nn.Module):
            raise TypeError(f"a torch.nn.Module is expected, got a {type(module).__name__}")
        if gradient_group_mb is not None and not gradient_group_mb >= 0:
            raise ValueError(f"gradient_group_mb is {gradient_group_mb}; a number of megabytes from 0 on is expected")
        for name, fraction in (("memory_fraction", memory_fraction), ("recompute_fraction", recompute_fraction)):
            if fraction is not None and not 0 <= fraction <= 1:
                raise ValueError(f"{name} is {fraction}; a number from 0 to 1 is expected")
        super().__init__()
        attributes = self.__dict__
        for name in _SHARED:
            attributes[name] = module.__dict__[name]
        attributes["training"] = module.training
        attributes["_wrapped"] = module
        options = Options(num_threads or torch.get_num_threads(), pack_weights, gradient_group_mb, memory_fraction, recompute_fraction, device)
        attributes["_options"] = {**asdict(options), "num_threads": num_threads}
        attributes["_manager"] = Manager(module, options)
        _clients.add(attributes["_manager"])

    @property
    def wrapped(self) -> nn.Module:
        """The module itself; calling it runs PyTorch."""
        module: nn.Module = self.__dict__["_wrapped"]
        return module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """See the wrapped module."""
        return self.__dict__["_manager"].run(args, kwargs)

    def repack(self) -> None:
        """Packs weights again, after writes that PyTorch does not count (see `pack_weights`)."""
        self.__dict__["_manager"].repack()

    def train(self, mode: bool = True) -> Module:
        """See the wrapped module."""
        self.wrapped.train(mode)
        self.__dict__["training"] = mode
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the wrapped module's state, whose names have no prefix."""
        return self.wrapped.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """See the wrapped module."""
        return self.wrapped.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.wrapped._load_from_state_dict(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "__class__" or (name in self.__dict__ and name not in _SHARED and name not in self.wrapped.__dict__):
            object.__setattr__(self, name, value)
        else:
            setattr(self.wrapped, name, value)
            if name == "training":
                self.__dict__["training"] = value

    def __delattr__(self, name: str) -> None:
        delattr(self.wrapped, name)

    def __getitem__(self, index: Any) -> Any:
        return self.wrapped[index]  # type: ignore[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.wrapped)  # type: ignore[call-overload, no-any-return]

    def __deepcopy__(self, memo: dict[int, Any]) -> Module:
        return Module(copy.deepcopy(self.wrapped, memo), **self.__dict__["_options"])

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuild, (self.wrapped, self.__dict__["_options"])

    def __repr__(self) -> str:
        return f"treadle.torch.Module({self.wrapped!r})"


def _rebuild(module: nn.Module, options: dict[str, Any]) -> Module:
    return Module(module, **options)


@dataclass(frozen=True)
class Explanation:
    """Lists a module's exports with their times and reasons, and the parts that run in PyTorch. `str()` returns the log, one line for each event."""

    manager: Manager

    @property
    def events(self) -> list[Event]:
        """The events of the whole module, in order."""
        return self.manager.events

    @property
    def parts(self) -> dict[str, Explanation]:
        """Parts for which graphs are tried because the whole module runs in PyTorch."""
        return {name: Explanation(part) for name, part in self.manager.parts}

    @property
    def num_graphs(self) -> int:
        """The number of graphs made so far, including those of parts."""
        return sum(event.what == "exported" for event in self.events) + sum(part.num_graphs for part in self.parts.values())

    def lines(self) -> Iterator[str]:
        """The lines of the log."""
        return describe(self.manager)

    def __str__(self) -> str:
        return "\n".join(self.lines()) or "not called yet"


def explain(module: Module) -> Explanation:
    """Returns the log of a module's exports and fallbacks."""
    if not isinstance(module, Module):
        raise TypeError(f"a treadle.torch.Module is expected, got a {type(module).__name__}")
    return Explanation(module.__dict__["_manager"])

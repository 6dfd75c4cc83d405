"""The graph transition manager, which selects the graph for each call, exports a module again if it has changed, and lets PyTorch run the rest."""

from __future__ import annotations

import itertools
import math
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from .. import _python_calls, _treadle
from ..errors import Error, OutOfMemory
from ._export import NotExported, export
from ._plan import Options, Plan, make_plan
from ._state import State, attributes_of, obstacle, snapshot_of, state_of
from ._structure import UnsupportedStructure, flatten, flatten_call, unflatten

_is_compiling = torch.compiler.is_compiling
_tracing_state, _is_transformed = torch._C._get_tracing_state, torch._C._are_functorch_transforms_active
_unchanged = _treadle.holds_the_same
_is_autocast_enabled, _is_grad_enabled = torch.is_autocast_enabled, torch.is_grad_enabled
_AUTOCAST = {torch.bfloat16: "bfloat16", torch.float16: "float16"}  # precision of products and convolutions
_MAX_GRAPHS = 12  # most exports of one module: if something changes with every call, exports would never end
_MAX_ATTRIBUTES = 256  # most states of a module's attributes: if one changes with every call, they would fill the memory
_TOLERANCE = 2e-3  # allowed difference of an output, relative to its largest magnitude


class FallbackWarning(UserWarning):
    """Warns that a module, or a part of one, runs in PyTorch."""


@dataclass
class Event:
    """One entry of the manager's log: what it decided for a call, and why."""

    what: str
    why: str
    seconds: float = 0.0
    exporter: str = ""
    differences: float | None = None

    def __str__(self) -> str:
        text = f"{self.what}: {self.why}"
        if self.exporter:
            text += f" ({self.exporter}, {self.seconds:.2f} s"
            if self.differences is None:
                text += "; outputs drawn at random, not compared)"
            else:
                text += f"; outputs within {self.differences:.1e} of PyTorch's)"
        return text


class _Key(NamedTuple):
    structure: Hashable
    dtypes: Hashable
    requires_grad: Hashable
    grad_mode: bool
    attributes: int  # a number for each state of the module's attributes
    precision: str = ""


_REASONS = {
    "structure": "the inputs' structure or a constant among them changed",
    "dtypes": "dtypes or ranks of inputs changed",
    "requires_grad": "other tensors require gradients",
    "grad_mode": "gradients were switched on or off",
    "attributes": "the module changed: its mode (train or eval), an attribute, or the form of a tensor",
    "precision": "autocast was switched on or off, or to another dtype",
}


def _difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Returns the largest difference, relative to the largest magnitude; infinite if an element is finite in only one of the tensors."""
    finite = torch.isfinite(theirs)
    if not torch.equal(torch.isfinite(ours), finite):
        return math.inf
    if not bool(finite.any()):
        return 0.0
    largest = float(theirs[finite].double().abs().max())
    gap = float((ours[finite].double() - theirs[finite].double()).abs().max())
    return gap / largest if largest > 0 else gap


@contextmanager
def _refuse_autocast_within() -> Iterator[None]:
    """Refuses autocast within the module. A graph has one precision, so values that the module computes in another one, mostly float32, would be
    rounded.
    """
    enter: Callable[[Any], Any] = torch.autocast.__enter__
    thread = threading.get_ident()

    def refuse(autocast: torch.autocast) -> Any:
        if threading.get_ident() != thread:
            return enter(autocast)
        raise NotExported("it switches autocast by itself, within a call under autocast")

    torch.autocast.__enter__ = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autocast.__enter__ = enter  # type: ignore[method-assign]


class _RangesOfChildren:
    """Within a block, marks each child that PyTorch runs as a range named by its path, in profiles that record Python calls."""

    _entered: ClassVar[list[_RangesOfChildren]] = []

    def __init__(self, module: nn.Module) -> None:
        self._paths = {child: path for path, child in module.named_modules() if path} if _python_calls.are_on() else {}
        self._open = threading.local()
        self._hooks: list[Any] = []

    def __enter__(self) -> None:
        if self._paths:
            self._entered.append(self)
            self._set(True)

    def __exit__(self, *_: object) -> None:
        if self._paths:
            self._entered.remove(self)
            self._set(False)

    @classmethod
    @contextmanager
    def suspended(cls) -> Iterator[None]:
        """Removes the hooks within a block, because the exporter must not see them."""
        entered = list(cls._entered)
        for ranges in entered:
            ranges._set(False)
        try:
            yield
        finally:
            for ranges in entered:
                ranges._set(True)

    def _set(self, on: bool) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = [register_module_forward_pre_hook(self._begin), register_module_forward_hook(self._end, always_call=True)] if on else []

    def _begin(self, child: nn.Module, _: Any) -> None:
        if child in self._paths:
            made = _treadle.profile_range(f"{self._paths[child]} ({type(child).__name__})")
            made.__enter__()
            self._open.__dict__.setdefault("ranges", []).append((child, made))

    def _end(self, child: nn.Module, *_: Any) -> None:
        ranges = self._open.__dict__.get("ranges", [])
        if ranges and ranges[-1][0] is child:
            ranges.pop()[1].__exit__(None, None, None)


# These functions begin and end ranges, so that recorded calls of the functions would partly overlap the ranges.
_python_calls.hide(_RangesOfChildren._begin)
_python_calls.hide(_RangesOfChildren._end)


@dataclass
class Manager:
    """Runs one module, by a graph if possible, otherwise in PyTorch."""

    module: nn.Module
    options: Options
    name: str = ""
    events: list[Event] = field(default_factory=list)
    parts: list[tuple[str, Manager]] = field(default_factory=list)  # children that run as graphs although the whole module runs in PyTorch
    observers: list[Callable[[Any], None]] = field(default_factory=list)  # get each new graph's client; `parts` share this list

    def __post_init__(self) -> None:
        self._plans: dict[_Key, list[Plan]] = {}
        self._known: dict[Hashable, Plan] = {}
        self._refused: dict[Hashable, str] = {}  # reasons by key, or by key and shapes if other shapes have a graph
        self._lock = threading.RLock()
        self._snapshot: Any = None
        self._attributes = 0
        self._all_attributes: dict[Hashable, int] = {}
        self._numbers = itertools.count()
        self._obstacle: str | None = None
        self._state = State()

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Computes the module's results for these inputs."""
        if not self.name and _python_calls.are_on():  # _RangesOfChildren marks the parts of a module
            with _treadle.profile_range(type(self.module).__name__):
                return self._run(args, kwargs)
        return self._run(args, kwargs)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _is_compiling() or _tracing_state() is not None:  # a tracer is calling the module
            return self.module.forward(*args, **kwargs)
        if _is_transformed():
            return self._in_torch(args, kwargs, "a transformation of torch.func traces it", lasting=False)
        leaves: list[torch.Tensor] = []
        try:
            structure = flatten_call(args, kwargs, leaves)
        except UnsupportedStructure as error:
            return self._in_torch(args, kwargs, str(error))
        precision = ""
        if _is_autocast_enabled("cpu"):
            precision = _AUTOCAST.get(torch.get_autocast_dtype("cpu"), "")
            if not precision:
                return self._in_torch(args, kwargs, f"autocast to {torch.get_autocast_dtype('cpu')}", lasting=False)
            # With autocast, outputs of other modules can have 16 bits, but graphs take float32.
            leaves = [leaf.float() if leaf.dtype in _AUTOCAST else leaf for leaf in leaves]
        if self._snapshot is None or not _unchanged(self._snapshot):
            self._look()
        if self._obstacle is not None:
            return self._in_torch(args, kwargs, self._obstacle)
        state = self._state
        requires = None
        if _is_grad_enabled():
            requires = (*[tensor.requires_grad for tensor in state.parameters], *[leaf.requires_grad for leaf in leaves])
            if True not in requires:
                requires = None
        place = (structure, requires, self._attributes, precision, *[(leaf.dtype, leaf.shape, leaf.is_cpu) for leaf in leaves])
        plan = self._known.get(place)
        if plan is None:
            key = _Key(structure, tuple([(leaf.dtype, leaf.dim(), leaf.device.type) for leaf in leaves]), requires, requires is not None, self._attributes, precision)
            refused = self._refused.get(place) or self._refused.get(key)
            if refused is not None:
                return self._in_torch(args, kwargs, refused)
            try:
                with self._lock:
                    plan = self._find(key, structure, leaves)
            except OutOfMemory as error:  # the next call may find enough memory
                return self._in_torch(args, kwargs, str(error), lasting=False)
            except (NotExported, UnsupportedStructure, Error) as error:
                result = self._in_torch(args, kwargs, str(error))  # if PyTorch fails too, the call was wrong, and no refusal is stored
                self._refused[place if self._plans.get(key) else key] = str(error)
                return result
            if len(self._known) > 4096:
                self._known.clear()
            self._known[place] = plan
        if plan.state is not state:
            plan.bind(state)
        return plan.run(leaves)

    def watch(self, observer: Callable[[Any], None]) -> None:
        """Calls the observer with every graph that exists or is made later: a joint module, or a session with packed weights."""
        with self._lock:
            self.observers.append(observer)
            for client in self._clients():
                observer(client)

    def unwatch(self, observer: Callable[[Any], None]) -> None:
        """Stops calls of the observer."""
        with self._lock:
            self.observers.remove(observer)

    def _clients(self) -> Iterator[Any]:
        for plans in self._plans.values():
            for plan in plans:
                yield plan.joint
                if plan.packing is not None and plan.packing.session is not None:
                    yield plan.packing.session
        for _, part in self.parts:
            yield from part._clients()

    def repack(self) -> None:
        """Drops packed weights, including those of parts."""
        for plans in self._plans.values():
            for plan in plans:
                if plan.packing is not None:
                    plan.packing.forget()
        for _, part in self.parts:
            part.repack()

    def _look(self) -> None:
        """Reads the module's present attributes and tensors."""
        self._attributes = self._number_of(attributes_of(self.module))
        self._state = state_of(self.module)
        self._obstacle = obstacle(self.module, self._state)
        self._snapshot = snapshot_of(self.module)
        self._known.clear()

    def _number_of(self, attributes: Hashable) -> int:
        if len(self._all_attributes) >= _MAX_ATTRIBUTES:  # there are too many states: an attribute probably counts calls
            used = {key.attributes for key, plans in self._plans.items() if plans}
            self._all_attributes = {known: number for known, number in self._all_attributes.items() if number in used}
            self._refused.clear()
        if attributes not in self._all_attributes:
            self._all_attributes[attributes] = next(self._numbers)
        return self._all_attributes[attributes]

    def _find(self, key: _Key, structure: Hashable, leaves: list[torch.Tensor]) -> Plan:
        plans = self._plans.setdefault(key, [])
        for plan in plans:
            if plan.description.accepts(leaves):
                return plan
        if sum(map(len, self._plans.values())) >= _MAX_GRAPHS:
            raise NotExported(f"it was exported {_MAX_GRAPHS} times, and has changed again: {self._why(key, leaves)}")
        for leaf in leaves:
            if leaf.device.type != "cpu" or leaf.layout != torch.strided:
                raise NotExported(f"an input is {leaf.layout} on the device {leaf.device}")
            if key.grad_mode and leaf.requires_grad and leaf.dtype != torch.float32:
                raise NotExported(f"an input that requires a gradient is {leaf.dtype}; gradients exist for float32")
        why = self._why(key, leaves)
        with _RangesOfChildren.suspended():
            exported = export(self.module, self._state, structure, leaves, self._dynamic(plans, leaves))
        started = time.perf_counter()
        plan = make_plan(exported, self._state, leaves, key.grad_mode, self.options, key.precision)
        if plan.packing is not None:
            plan.packing.observers = self.observers
        difference = self._check(plan, structure, leaves, key.precision)
        seconds = exported.seconds + time.perf_counter() - started
        self.events.append(Event("exported", why, seconds, exported.exporter, difference))
        plans.append(plan)
        for observer in self.observers:
            observer(plan.joint)
        return plan

    @staticmethod
    def _dynamic(plans: Sequence[Plan], leaves: Sequence[torch.Tensor]) -> list[set[int]]:
        """Returns the axes whose extents may change in later calls: batch and sequence, for images only the batch, and all axes whose
        extents have changed already.
        """
        axes = [set(range(min(leaf.dim(), 1 if leaf.dim() > 3 else 2))) for leaf in leaves]
        for plan in plans:
            for dynamic, leaf, shape in zip(axes, leaves, plan.description.shapes, strict=True):
                dynamic.update(axis for axis, expected in enumerate(shape) if expected != leaf.shape[axis])
        return axes

    def _why(self, key: _Key, leaves: Sequence[torch.Tensor]) -> str:
        if not any(self._plans.values()):
            return "the first call"
        if self._plans.get(key):
            return f"no graph takes the shapes {', '.join(str(tuple(leaf.shape)) for leaf in leaves)}"
        known = [other for other, plans in self._plans.items() if plans]
        differing = min(([name for name in _Key._fields if getattr(other, name) != getattr(key, name)] for other in known), key=len)
        return "; ".join(_REASONS[name] for name in differing if name != "requires_grad" or "grad_mode" not in differing)

    def _in_eager(self, structure: Hashable, leaves: Sequence[torch.Tensor], dtype: torch.dtype | None) -> list[torch.Tensor]:
        """Returns the outputs that PyTorch computes, without changes to buffers and generators.

        :param dtype: autocast's dtype; None: without autocast
        """
        state = self._state
        copies = [*state.parameters, *[buffer.clone() for buffer in state.tensors[len(state.parameters) :]]]
        outputs: list[torch.Tensor] = []
        args, kwargs = unflatten(structure, iter([leaf.detach() for leaf in leaves]))
        with torch.no_grad(), torch.random.fork_rng(devices=[]), state.replaced_by(tuple(copies)), torch.autocast("cpu", dtype, enabled=dtype is not None):
            with _refuse_autocast_within() if dtype is not None else nullcontext():
                flatten(self.module.forward(*args, **kwargs), outputs)
        return outputs

    def _check(self, plan: Plan, structure: Hashable, leaves: Sequence[torch.Tensor], precision: str) -> float | None:
        """Returns the largest difference between an output and PyTorch's, relative to its largest magnitude; None if outputs are random.

        Under autocast the graph may differ from float32 about as much as PyTorch itself does. Its outputs get PyTorch's dtypes.
        """
        if plan.description.random and not precision:
            return None
        expected = self._in_eager(structure, leaves, None)
        tolerances = [_TOLERANCE] * len(expected)
        if precision:
            rounded = self._in_eager(structure, leaves, next(dtype for dtype, name in _AUTOCAST.items() if name == precision))
            if [made.shape for made in rounded] != [made.shape for made in expected]:
                raise NotExported("an output has another shape under autocast")
            plan.description.dtypes = [made.dtype if made.dtype in _AUTOCAST else None for made in rounded]
            tolerances = [max(_TOLERANCE, 2 * _difference(made, theirs)) for made, theirs in zip(rounded, expected, strict=True)]
        if plan.description.random:
            return None
        with torch.no_grad():
            outputs = plan.forward(leaves, None, update=False)[1]
        worst = 0.0
        for place, theirs, tolerance in zip(plan.description.outputs, expected, tolerances, strict=True):
            ours = outputs[place]
            if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
                raise NotExported(f"an output of the graph is {ours.dtype}{tuple(ours.shape)}, PyTorch's is {theirs.dtype}{tuple(theirs.shape)}")
            difference = _difference(ours, theirs)
            if math.isinf(difference):
                raise NotExported("an output of the graph is infinite or NaN where PyTorch's is not")
            if difference > tolerance:
                raise NotExported(f"an output of the graph differs from PyTorch's by {difference:.1e} of its largest magnitude")
            worst = max(worst, difference)
        return worst

    def _in_torch(self, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str, lasting: bool = True) -> Any:
        """Runs the call in PyTorch. `lasting`: the reason applies to later calls too, so graphs of the module's parts are tried."""
        if all(event.why != reason for event in self.events):
            if lasting and not self.parts:
                self.parts = [(path, Manager(child, self.options, path, observers=self.observers)) for path, child in _parts_of(self.module)]
            self.events.append(Event("in PyTorch", reason))
            which = f'the part "{self.name}" ({type(self.module).__name__})' if self.name else type(self.module).__name__
            kept = f"; {len(self.parts)} of its parts are tried by themselves" if self.parts and lasting else ""
            warnings.warn(f"treadle.torch: {which} runs in PyTorch: {reason}{kept}", FallbackWarning, stacklevel=6)
        with self._parts_by_graphs(), _RangesOfChildren(self.module):
            return self.module.forward(*args, **kwargs)

    @contextmanager
    def _parts_by_graphs(self) -> Iterator[None]:
        with ExitStack() as stack:
            for _, part in self.parts:
                stack.enter_context(part.in_place())
            yield

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within a block, calls of this part run by its graphs."""
        attributes = self.module.__dict__
        if "forward" in attributes:  # the attribute is set by the program, or by this manager if a module calls itself
            yield
            return
        attributes["forward"] = self._part_forward
        try:
            yield
        finally:
            del attributes["forward"]

    def _part_forward(self, *args: Any, **kwargs: Any) -> Any:
        own = self.module.__dict__.pop("forward")
        try:
            return self.run(args, kwargs)
        finally:
            self.module.__dict__["forward"] = own


def _parts_of(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yields children that have children themselves, since smaller ones are not worth a graph. Lists of modules are replaced by their elements."""
    for name, child in module.named_children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            yield from _parts_of(child, f"{prefix}{name}.")
        elif any(True for _ in child.children()):
            yield f"{prefix}{name}", child


def describe(manager: Manager, indent: str = "") -> Iterator[str]:
    """Yields the lines of the log, one for each event, including those of parts."""
    for event in manager.events:
        yield f"{indent}{event}"
    for name, part in manager.parts:
        yield f'{indent}part "{name}" ({type(part.module).__name__}):'
        yield from describe(part, indent + "  ")


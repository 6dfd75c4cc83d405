"""The plan by which an exported graph runs, and the autograd functions that run it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import onnx
import torch
from torch._C import _from_dlpack, _to_dlpack
from torch.autograd.graph import increment_version

from .. import _treadle
from .._treadle import OrtValue, RunOptions, SessionOptions
from ._export import Exported
from ._packed import Packing
from ._state import State
from ._structure import TENSOR, unflatten

SECOND_ORDER = (
    "treadle.torch: the gradients of a treadle.torch.Module cannot be differentiated again; "
    "call the wrapped module (Module.wrapped) where second-order gradients are needed"
)


_GROUP_MB = 4.0  # megabytes of gradients that autograd gets together if processes sum them


# These functions are looked up only once, because Python calls take most of the time of a small module's step.
_profiler_enabled: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]
_current_task, _is_grad_enabled, _data_ptr = torch._C._current_graph_task_id, torch.is_grad_enabled, torch.Tensor.data_ptr


def in_range(name: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """Calls the function within a range of torch.profiler, if that is recording, and returns the result."""
    if not _profiler_enabled():
        return call(*arguments)
    with torch.profiler.record_function(name):
        return call(*arguments)


class _Current(threading.local):
    """The thread's options, set by run_options()."""

    options: RunOptions | None = None


_current = _Current()


@contextmanager
def run_options(options: RunOptions | None) -> Iterator[RunOptions | None]:
    """Sets options of runs within a block: cancellation, a deadline, checks for NaN, dumps, metadata. They apply to the graphs of every
    `treadle.torch.Module` that this thread calls, and to the backward passes of these calls, even after the block or on other threads.

    ::

        options = treadle.RunOptions()
        options.check_finite = "nan"
        with treadle.torch.run_options(options):
            loss = criterion(model(images), labels)
        loss.backward()

    :param options: the options; None: no options, even within another such block
    """
    before, _current.options = _current.options, options
    try:
        yield options
    finally:
        _current.options = before


@dataclass(frozen=True)
class Options:
    """The arguments that a treadle.torch.Module was made with."""

    num_threads: int = 0
    pack_weights: bool = False
    gradient_group_mb: float | None = None
    memory_fraction: float = 0.0
    recompute_fraction: float | None = None
    device: str = ""


@dataclass
class Description:
    """How inputs become feeds, what is differentiated, and how outputs are restored."""

    structure: Hashable  # the structure of the outputs
    shapes: list[list[int | str]]  # shapes of the inputs, as in Exported
    bounds: dict[str, tuple[int, float]]
    feeds: list[tuple[str, int]]  # the joint module's inputs, in its order: ("input" or "state", index)
    held: list[tuple[str, int]]  # name and index of tensors that the joint module reads in place, without being fed
    wanted: list[tuple[str, int]]  # the values whose gradients are wanted: ("input" or "state", index)
    groups: list[list[int]]  # groups of indices into `wanted` whose gradients autograd gets together, in the order of the backward pass
    outputs: list[int]  # for each output of the module, its index among the run's outputs
    dtypes: list[torch.dtype | None]  # for each output of the module, its dtype under autocast; None: unchanged
    num_differentiable: int  # number of the run's outputs that have gradients; they come first
    statistics: list[int]  # indices of the running statistics that a run writes
    random: bool

    def accepts(self, leaves: Sequence[torch.Tensor]) -> bool:
        """Returns True if the graph was exported for inputs with these extents."""
        symbols: dict[str, int] = {}
        later = []
        for leaf, shape in zip(leaves, self.shapes, strict=True):
            for extent, expected in zip(leaf.shape, shape, strict=True):
                if isinstance(expected, int):
                    if extent != expected:
                        return False
                elif not expected.isidentifier():
                    later.append((extent, expected))
                elif symbols.setdefault(expected, extent) != extent:
                    return False
        if any(not low <= symbols.get(symbol, low) <= high for symbol, (low, high) in self.bounds.items()):
            return False
        return all(_value(expression, symbols) == extent for extent, expression in later)


def _value(expression: str, symbols: dict[str, int]) -> int | None:
    try:
        return int(eval(expression, {"__builtins__": {}}, symbols))  # torch.export's expressions: sums, products, quotients of symbols
    except (NameError, SyntaxError, TypeError):
        return None


def _reached(model: onnx.ModelProto, names: set[str]) -> set[str]:
    """Returns the names of all values that depend on these."""
    reached = set(names)
    for node in model.graph.node:
        if not reached.isdisjoint(node.input) or any(not reached.isdisjoint(_captured(a.g)) for a in node.attribute if a.HasField("g")):
            reached.update(node.output)
    return reached


def _captured(graph: onnx.GraphProto) -> set[str]:
    names = {name for node in graph.node for name in node.input}
    return names.union(*(_captured(attribute.g) for node in graph.node for attribute in node.attribute if attribute.HasField("g")))


@dataclass
class Plan:
    """A compiled graph and its description. Holds the module's parameters and buffers by reference."""

    description: Description
    joint: Any
    state: State
    exported: Exported
    options: Options
    held: list[Any] = field(default_factory=list)  # feeds of a run, with None where each call puts its inputs
    input_feeds: list[tuple[int, int]] = field(default_factory=list)  # pairs: index of a feed, and index of the call's input for that feed
    loose_feeds: list[tuple[int, torch.Tensor]] = field(default_factory=list)  # pairs: index of a feed, and its non-contiguous tensor
    loose_held: dict[str, torch.Tensor] = field(default_factory=dict)  # held tensors that the joint module gets as contiguous copies
    addresses: list[int] = field(default_factory=list)
    watched: list[torch.Tensor] = field(default_factory=list)
    statistics: list[torch.Tensor] = field(default_factory=list)
    one_group: list[list[int]] = field(default_factory=list)  # the groups of gradients if there is only one group
    wanted: list[Any] = field(default_factory=list)  # tensors that need gradients, with None where each call puts its inputs
    wanted_inputs: list[tuple[int, int]] = field(default_factory=list)  # pairs: index in `wanted`, and index of the call's input
    packing: Packing | None = None  # set if the graph is for evaluation and the option pack_weights is on

    def bind(self, state: State) -> None:
        """Binds the plan to the module's present tensors."""
        self.state = state
        self.held, self.input_feeds, self.loose_feeds, self.watched = [], [], [], []
        for place, (kind, index) in enumerate(self.description.feeds):
            self.held.append(None)
            if kind == "input":
                self.input_feeds.append((place, index))
                continue
            tensor = state.tensors[index]
            self.watched.append(tensor)
            if tensor.is_contiguous():
                self.held[-1] = OrtValue.from_dlpack(_to_dlpack(tensor.detach()))
            else:
                self.loose_feeds.append((place, tensor))
        held = {name: state.tensors[index] for name, index in self.description.held}
        self.watched += held.values()
        self.joint.hold({name: _held(tensor) for name, tensor in held.items()})
        self.loose_held = {name: tensor for name, tensor in held.items() if not tensor.is_contiguous()}
        self.addresses = list(map(_data_ptr, self.watched))
        self.statistics = [state.tensors[index] for index in self.description.statistics]
        self.wanted = [None if kind == "input" else state.tensors[index] for kind, index in self.description.wanted]
        self.one_group = [list(range(len(self.wanted)))]
        self.wanted_inputs = [(place, index) for place, (kind, index) in enumerate(self.description.wanted) if kind == "input"]

    def feeds(self, leaves: Sequence[torch.Tensor]) -> list[Any]:
        """Returns the values of the joint module's inputs, in its order."""
        if list(map(_data_ptr, self.watched)) != self.addresses:
            self.bind(self.state)
        made = self.held.copy()
        for place, index in self.input_feeds:
            made[place] = _to_dlpack(leaves[index])
        for place, tensor in self.loose_feeds:
            made[place] = _to_dlpack(tensor.detach())
        if self.loose_held:
            self.joint.hold({name: _held(tensor) for name, tensor in self.loose_held.items()})
        return made

    def forward(
        self, leaves: Sequence[torch.Tensor], draw: int | None, update: bool = True, options: RunOptions | None = None
    ) -> tuple[Any, list[torch.Tensor]]:
        """Runs the forward pass. Returns the run, which waits for its gradients, and its outputs."""
        run, capsules = in_range("treadle::forward", self.joint.forward_in_order, self.feeds(leaves), draw, update, options)
        if update and self.statistics:
            for tensor in self.statistics:
                increment_version(tensor)
            if self.state.counters:
                torch._foreach_add_(self.state.counters, 1)
        return run, list(map(_from_dlpack, capsules))

    def groups(self) -> list[list[int]]:
        """Returns groups of indices into `wanted`. There are several if the option asks for them or several processes sum gradients, so that autograd
        gets some gradients while others are being computed.
        """
        groups = self.description.groups
        if len(groups) > 1 and self.options.gradient_group_mb is None:
            distributed = torch.distributed
            if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
                return self.one_group
        return groups

    def run(self, leaves: Sequence[torch.Tensor]) -> Any:
        """Runs the module and returns its outputs, with an autograd graph if gradients are wanted."""
        description, options = self.description, _current.options
        packed = in_range("treadle::forward", self.packing.run, leaves, self.state, options) if self.packing is not None else None
        if packed is not None:
            return unflatten(description.structure, iter(self.cast(packed)))
        # The seed comes from PyTorch's random generator, so that torch.manual_seed() and checkpoint() control dropout.
        draw = int(torch.empty((), dtype=torch.int64).random_()) if description.random else None
        if not description.wanted:
            outputs: Sequence[torch.Tensor] = self.forward(leaves, draw, options=options)[1]
        else:
            wanted = self.wanted.copy()
            for place, index in self.wanted_inputs:
                wanted[place] = leaves[index]
            others = [leaf for leaf in leaves if not leaf.requires_grad]
            groups = self.groups()
            call = _Call(self, leaves, draw, groups[0], options)
            behind: list[torch.Tensor] = []
            for group in groups[:0:-1]:
                behind = [_apply_later(call, group, *behind, *[wanted[place] for place in group])]
            outputs = _apply(call, *behind, *[wanted[place] for place in groups[0]], *others)
        if description.structure is TENSOR and not description.dtypes:
            return outputs[description.outputs[0]]
        return unflatten(description.structure, iter(self.cast([outputs[place] for place in description.outputs])))

    def cast(self, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Casts outputs to the dtypes that they have under autocast. PyTorch casts, so gradients come back in float32."""
        dtypes = self.description.dtypes
        return [output if dtype is None else output.to(dtype) for output, dtype in zip(outputs, dtypes, strict=True)] if dtypes else outputs


def _held(tensor: torch.Tensor) -> OrtValue:
    """Returns a value that uses the tensor's memory, or a copy if the tensor is not contiguous."""
    return OrtValue.from_dlpack(_to_dlpack(tensor.detach()))


class _Checkpointed:
    """Supports forward passes within `torch.utils.checkpoint(use_reentrant=False)`.

    PyTorch's checkpoint() sets hooks on tensors that a graph saves. In the backward pass, the hooks call the function again to compute these
    tensors. So the first forward pass releases its run, and saves a number among its tensors. The second pass replaces this by its own number, and
    the backward pass continues with the run of the second pass.
    """

    def __init__(self) -> None:
        self.again: dict[int, _Call] = {}  # second passes by their numbers, until the backward pass takes them
        self.numbers = itertools.count()

    def hook(self) -> str:
        """Returns "first" or "again" within a forward pass of checkpoint(), otherwise an empty string."""
        hooks = _top_hooks(True)
        if hooks is None or getattr(hooks[0], "__module__", "") != "torch.utils.checkpoint":
            return ""
        return "again" if hooks[0].__qualname__.startswith("_recomputation_hook") else "first"

    def note(self, call: _Call, hook: str) -> torch.Tensor:
        """Returns the number that a forward pass saves among its tensors."""
        number = next(self.numbers)
        if hook == "again" and _current_task() != -1:
            self.again[number] = call
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self.forget(number))
        elif hook == "first":
            call.let_go()
        return torch.tensor(number)

    def forget(self, number: int) -> None:
        """Drops the second pass at the end of a backward pass, which may have stopped before it reached this run."""
        self.again.pop(number, None)

    def take(self, number: int) -> _Call:
        """Returns the second pass with this number, and forgets it."""
        if number not in self.again:
            raise RuntimeError("treadle.torch: a checkpointed function has not called the module again in the backward pass")
        return self.again.pop(number)


_checkpointed = _Checkpointed()
# Returns the innermost hooks for saved tensors. Older versions of PyTorch lack this function: the result is then None, and a module does
# not notice that checkpoint() will call it again, so that the first pass keeps its run.
_top_hooks: Callable[[bool], Any] = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)


class _Call:
    """The data of one forward pass, which autograd keeps until its graph is freed."""

    __slots__ = ("addresses", "draw", "first", "has_note", "in_groups", "is_checkpointed", "leaves", "options", "plan", "run", "state", "under_way")

    def __init__(self, plan: Plan, leaves: Sequence[torch.Tensor], draw: int | None, first: list[int], options: RunOptions | None) -> None:
        """:param first: the group of gradients that autograd gets first; without groups, all"""
        self.plan, self.leaves, self.draw, self.first, self.options = plan, leaves, draw, first, options
        self.in_groups = len(first) < len(plan.wanted)
        self.has_note = False
        self.run: Any = None
        self.is_checkpointed = False
        self.state: list[torch.Tensor] = []  # parameters and buffers that the forward pass was fed
        self.addresses: list[int] = []  # their addresses in the forward pass
        self.under_way: dict[int, Any] = {}  # runs that are within a backward pass, by the pass's number

    def let_go(self) -> None:
        """Releases the run and the inputs, because a second forward pass will compute them again."""
        self.run, self.leaves, self.is_checkpointed = None, [], True
        self.plan.joint.trim()

    def go_on_from(self, again: _Call) -> None:
        """Takes over the run of the second forward pass."""
        self.run, self.leaves, self.state, self.addresses = again.run, again.leaves, again.state, again.addresses
        again.run = None

    def begin_backward(self, grad_outputs: Sequence[torch.Tensor | None]) -> Any:
        """Begins the run's backward pass within a pass of autograd. A second pass (retain_graph) first computes the forward pass again."""
        run, self.run = self.run, None
        if run is None:
            run, _ = self.plan.forward(self.leaves, self.draw, update=False, options=self.options)
        elif list(map(_data_ptr, self.state)) != self.addresses:
            self.move_feeds(run)
        grads = grad_outputs[: self.plan.description.num_differentiable]
        run.begin_backward([None if grad is None else _to_dlpack(grad) for grad in grads])
        if self.in_groups:  # autograd comes back for the other groups, or ends before it has asked for all of them
            current = _current_task()
            self.under_way[current] = run
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self.under_way.pop(current, None))
        return run

    def move_feeds(self, run: Any) -> None:
        """Tells the run new addresses of parameters: sharding (fully_shard) frees parameters after the forward pass, and gathers them again before
        the backward pass.
        """
        places = [place for place, (kind, _) in enumerate(self.plan.description.feeds) if kind == "state"]
        for place, tensor, address in zip(places, self.state, self.addresses, strict=False):
            if tensor.data_ptr() == address:
                continue
            if tensor.untyped_storage().size() < tensor.numel() * tensor.element_size():
                raise RuntimeError("treadle.torch: a parameter has been freed since the forward pass, and is not back for the backward pass")
            run.move_feed(place, _to_dlpack(tensor.detach().contiguous()))

    def gradients(self, run: Any, group: list[int], is_last: bool) -> list[torch.Tensor | None]:
        """Runs the backward pass as far as these gradients need it, and returns them."""
        made = [None if capsule is None else _from_dlpack(capsule) for capsule in in_range("treadle::backward", run.advance_backward, group)]
        if is_last and self.is_checkpointed:
            del run
            self.plan.joint.trim()  # frees memory for the other calls that autograd must still repeat
        if _is_grad_enabled():  # true if the caller passed create_graph=True
            given = [grad for grad in made if grad is not None]
            refused = torch._C._functions.DelayedError(SECOND_ORDER.encode(), len(given))(*[g.requires_grad_() for g in given])
            refusing = iter([refused] if isinstance(refused, torch.Tensor) else refused)
            made = [None if grad is None else next(refusing) for grad in made]
        return made


class _Step(torch.autograd.Function):
    """The autograd function of a call: forward runs to the Yield, and backward continues from there to the first group of gradients."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """:param tensors: the result of _LaterGradients, if there are later groups; the tensors of the first group; other inputs"""
        call.run, outputs = call.plan.forward(call.leaves, call.draw, options=call.options)
        call.state, call.addresses = call.plan.watched, call.plan.addresses
        ctx.call = call
        if hook := _checkpointed.hook():
            call.has_note = True
            tensors = (_checkpointed.note(call, hook), *tensors)
        ctx.save_for_backward(*tensors)  # lets PyTorch detect freed graphs, and tensors that were changed in place since then
        ctx.set_materialize_grads(False)
        if plain := outputs[call.plan.description.num_differentiable :]:
            ctx.mark_non_differentiable(*plain)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        call, tensors = ctx.call, ctx.saved_tensors
        if call.has_note:
            number, *tensors = tensors
            call.go_on_from(_checkpointed.take(int(number)))
        made = call.gradients(call.begin_backward(grad_outputs), call.first, not call.in_groups)
        behind = [torch.zeros(())] if call.in_groups else []
        return (None, *behind, *made, *[None] * (len(tensors) - len(behind) - len(made)))


class _LaterGradients(torch.autograd.Function):
    """The autograd function of a group of gradients that the backward pass computes after others. Its result is a dummy input of the step, or of the
    preceding group, so that autograd first runs the hooks and all-reduces of those gradients.
    """

    @staticmethod
    def forward(ctx: Any, call: _Call, group: list[int], *tensors: torch.Tensor) -> torch.Tensor:
        """:param tensors: the result of the next group, if there is one; the tensors of this group"""
        ctx.call, ctx.group, ctx.is_last = call, group, len(tensors) == len(group)
        ctx.save_for_backward(*tensors)
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        ctx.saved_tensors  # noqa: B018  raises if the graph has been freed
        under_way, current = ctx.call.under_way, _current_task()
        made = ctx.call.gradients(under_way.pop(current) if ctx.is_last else under_way[current], ctx.group, ctx.is_last)
        return (None, None, *([] if ctx.is_last else [torch.zeros(())]), *made)


# The base class's apply() does not search the arguments for wrappers of torch.func, which takes half a microsecond per argument. The
# arguments contain no wrappers, because PyTorch runs modules under transformations of torch.func.
_apply: Any = super(torch.autograd.Function, _Step).apply
_apply_later: Any = super(torch.autograd.Function, _LaterGradients).apply


def _may_be_held(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.dim() > 0 and tensor.numel() > 0 and tensor.is_contiguous()


def make_plan(exported: Exported, state: State, leaves: Sequence[torch.Tensor], needs_gradients: bool, options: Options, precision: str = "") -> Plan:
    """Builds the joint graph of an exported module.

    :param needs_gradients: False: the graph has no backward pass.
    :param precision: precision of products, convolutions and their gradients; float32 by default.
    :raises treadle.Error: an operator is missing, or one has no gradient.
    """
    model = exported.model
    graph_outputs = [value.name for value in model.graph.output]
    places = {f"input:{i}": ("input", i) for i in range(len(leaves))}
    places.update({f"state:{name}": ("state", i) for i, name in enumerate(state.names)})
    present = {value.name for value in model.graph.input}
    wanted: list[str] = []
    if needs_gradients:
        wanted = [f"input:{i}" for i, leaf in enumerate(leaves) if leaf.requires_grad]
        wanted += [f"state:{name}" for name, tensor in zip(state.names, state.tensors, strict=True) if tensor.requires_grad]
        wanted = [name for name in wanted if name in present]
    reached = _reached(model, set(wanted))
    floats = {value.name for value in model.graph.output if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT}
    names = list(dict.fromkeys(graph_outputs))
    differentiable = [name for name in names if name in reached and name in floats]
    plain = [name for name in names if name not in differentiable]
    statistics = [f"state:{name}" for name in state.statistics if f"state:{name}" in present]
    # In evaluation, the graph reads these tensors in place. Kernels then pack them once, and again only after their elements have changed.
    held = {}
    if not differentiable and not statistics:
        tensors = zip(state.names, state.tensors, strict=True)
        held = {f"state:{name}": index for index, (name, tensor) in enumerate(tensors) if f"state:{name}" in present and _may_be_held(tensor)}
    session = SessionOptions()
    session.intra_op_num_threads = options.num_threads
    session.device = options.device
    session.precision = precision
    session.memory_fraction = options.memory_fraction
    if options.recompute_fraction is not None:
        session.recompute_fraction = options.recompute_fraction
    joint = _treadle.JointModule(
        _treadle.Model.from_bytes(model.SerializeToString()),
        differentiable,
        wanted if differentiable else [],
        [],
        ["*"] if model.graph.initializer else [],
        options.num_threads,
        session=session,
        plain_outputs=plain,
        states=statistics,
        unbiased_variance=True,
        zero_gradients=False,
        forward_only=not differentiable,
        held={name: _held(state.tensors[index]) for name, index in held.items()},
    )
    order = [*differentiable, *plain]
    description = Description(
        structure=exported.outputs,
        shapes=exported.shapes,
        bounds=exported.bounds,
        feeds=[places[name] for name in joint.input_names],
        held=[(name, held[name]) for name in joint.held_names],
        wanted=[places[name] for name in joint.gradient_names] if differentiable else [],
        groups=joint.gradient_groups(int((_GROUP_MB if options.gradient_group_mb is None else options.gradient_group_mb) * 2**20)),
        outputs=[order.index(name) for name in graph_outputs],
        dtypes=[],
        num_differentiable=len(differentiable),
        statistics=[state.names.index(name) for name in state.statistics],
        random=joint.is_random,
    )
    plan = Plan(description, joint, state, exported, options)
    # On a GPU, a joint module can have another precision than float32, but a session with packed weights cannot.
    may_pack = not precision or options.device in ("", "cpu")
    if options.pack_weights and may_pack and not differentiable and not statistics and not joint.is_random:
        plan.packing = Packing(exported, session)
    plan.bind(state)
    return plan

"""One description of a run, and the autograd function that runs by it."""

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


_GROUP_MB = 4.0  # of gradients that reach autograd together, where processes sum them


# Looked up once: a step of a small module takes as long as its calls of Python.
_profiler_enabled: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]
_current_task, _is_grad_enabled, _data_ptr = torch._C._current_graph_task_id, torch.is_grad_enabled, torch.Tensor.data_ptr


def in_range(name: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the results of the call, which is a range of torch.profiler if that records."""
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
    """Options for the graphs of every `treadle.torch.Module` that this thread calls within the block, and for the backward passes of these calls,
    wherever those take place: cancellation, a deadline, checks for NaN, dumps, metadata.

    ::

        options = treadle.RunOptions()
        options.check_finite = "nan"
        with treadle.torch.run_options(options):
            loss = criterion(model(images), labels)
        loss.backward()

    :param options: None lifts those of a block around this one.
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


@dataclass
class Description:
    """How inputs become feeds, what is differentiated, and how outputs are restored."""

    structure: Hashable  # of the outputs
    shapes: list[list[int | str]]  # of the inputs; see Exported
    bounds: dict[str, tuple[int, float]]
    feeds: list[tuple[str, int]]  # in the joint module's order: ("input" or "state", place)
    held: list[tuple[str, int]]  # name and place of tensors that the joint module reads where they lie, without being fed
    wanted: list[tuple[str, int]]  # whose gradients are asked for; likewise
    groups: list[list[int]]  # places in `wanted`: what reaches autograd together, in the order in which a backward pass makes it
    outputs: list[int]  # per output of the module: its place among what a run hands out
    dtypes: list[torch.dtype | None]  # likewise: what it becomes under autocast; None: it stays as it is
    num_differentiable: int  # outputs of a run, which come first
    statistics: list[int]  # places of the running statistics that a run writes
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
        return int(eval(expression, {"__builtins__": {}}, symbols))  # what torch.export has written: sums, products, quotients of symbols
    except (NameError, SyntaxError, TypeError):
        return None


def _reached(model: onnx.ModelProto, names: set[str]) -> set[str]:
    """Values that depend on these."""
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
    held: list[Any] = field(default_factory=list)  # feeds with None where inputs go
    input_feeds: list[tuple[int, int]] = field(default_factory=list)  # (feed, input)
    loose_feeds: list[tuple[int, torch.Tensor]] = field(default_factory=list)  # tensors that are not contiguous
    loose_held: dict[str, torch.Tensor] = field(default_factory=dict)  # likewise; the joint module has copies of them
    addresses: list[int] = field(default_factory=list)
    watched: list[torch.Tensor] = field(default_factory=list)
    statistics: list[torch.Tensor] = field(default_factory=list)
    one_group: list[list[int]] = field(default_factory=list)  # of all gradients
    wanted: list[Any] = field(default_factory=list)  # tensors whose gradients are asked for; None where inputs go
    wanted_inputs: list[tuple[int, int]] = field(default_factory=list)  # (place in `wanted`, input)
    packing: Packing | None = None  # of evaluation, where it is asked for

    def bind(self, state: State) -> None:
        """Takes the tensors as they are now."""
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
        """The joint module's inputs, in its order."""
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
        """Converts the module's results to the outputs of the call."""
        run, capsules = in_range("treadle::forward", self.joint.forward_in_order, self.feeds(leaves), draw, update, options)
        if update and self.statistics:
            for tensor in self.statistics:
                increment_version(tensor)
            if self.state.counters:
                torch._foreach_add_(self.state.counters, 1)
        return run, list(map(_from_dlpack, capsules))

    def groups(self) -> list[list[int]]:
        """Places in `wanted`: several groups, where it is asked for or several processes sum gradients, so that they reach autograd while others are
        still to be computed."""
        groups = self.description.groups
        if len(groups) > 1 and self.options.gradient_group_mb is None:
            distributed = torch.distributed
            if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
                return self.one_group
        return groups

    def run(self, leaves: Sequence[torch.Tensor]) -> Any:
        """The module's outputs; with a graph behind them where gradients are wanted."""
        description, options = self.description, _current.options
        packed = in_range("treadle::forward", self.packing.run, leaves, self.state, options) if self.packing is not None else None
        if packed is not None:
            return unflatten(description.structure, iter(self.cast(packed)))
        # From PyTorch's generator, so that torch.manual_seed() and checkpoint() decide over dropout.
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
        """Casts inputs to the dtypes that autocast gives them. The casts are PyTorch's, whose gradients come back in float32."""
        dtypes = self.description.dtypes
        return [output if dtype is None else output.to(dtype) for output, dtype in zip(outputs, dtypes, strict=True)] if dtypes else outputs


def _held(tensor: torch.Tensor) -> OrtValue:
    """The tensor's own memory; a copy if it is not contiguous."""
    return OrtValue.from_dlpack(_to_dlpack(tensor.detach()))


class _Checkpointed:
    """Forward passes within `torch.utils.checkpoint(use_reentrant=False)`.

    It has hooks on what a graph saves. The graph of the first pass gets to its tensors in the backward pass only, where the hooks call the
    function again for them. So the first pass lets its run go, and saves a number with its tensors. What stands in that place afterwards is the
    number of the second pass, whose run goes on from there.
    """

    def __init__(self) -> None:
        self.again: dict[int, _Call] = {}  # second passes by their numbers, until the first one's graph comes for them
        self.numbers = itertools.count()

    def hook(self) -> str:
        """"first" or "again"; an empty text outside of such calls."""
        hooks = _top_hooks(True)
        if hooks is None or getattr(hooks[0], "__module__", "") != "torch.utils.checkpoint":
            return ""
        return "again" if hooks[0].__qualname__.startswith("_recomputation_hook") else "first"

    def note(self, call: _Call, hook: str) -> torch.Tensor:
        """The data that a forward pass saves with its tensors."""
        number = next(self.numbers)
        if hook == "again" and _current_task() != -1:
            self.again[number] = call
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self.forget(number))
        elif hook == "first":
            call.let_go()
        return torch.tensor(number)

    def forget(self, number: int) -> None:
        """Called at the end of a backward pass, which may have stopped before it reached this run."""
        self.again.pop(number, None)

    def take(self, number: int) -> _Call:
        """The second pass."""
        if number not in self.again:
            raise RuntimeError("treadle.torch: a checkpointed function has not called the module again in the backward pass")
        return self.again.pop(number)


_checkpointed = _Checkpointed()
# Older PyTorchs do not tell; runs are kept there.
_top_hooks: Callable[[bool], Any] = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)


class _Call:
    """One forward pass, until its graph is freed."""

    __slots__ = ("addresses", "draw", "first", "has_note", "in_groups", "is_checkpointed", "leaves", "options", "plan", "run", "state", "under_way")

    def __init__(self, plan: Plan, leaves: Sequence[torch.Tensor], draw: int | None, first: list[int], options: RunOptions | None) -> None:
        """:param first: the group of gradients that reaches autograd first; all, or there are others behind."""
        self.plan, self.leaves, self.draw, self.first, self.options = plan, leaves, draw, first, options
        self.in_groups = len(first) < len(plan.wanted)
        self.has_note = False
        self.run: Any = None
        self.is_checkpointed = False
        self.state: list[torch.Tensor] = []  # parameters and buffers that the forward pass is fed
        self.addresses: list[int] = []  # where they lie then
        self.under_way: dict[int, Any] = {}  # runs that stand within a backward pass, by the pass

    def let_go(self) -> None:
        """Reads the data that the forward pass has saved for the backward pass."""
        self.run, self.leaves, self.is_checkpointed = None, [], True
        self.plan.joint.trim()

    def go_on_from(self, again: _Call) -> None:
        """A second forward pass that has computed the same."""
        self.run, self.leaves, self.state, self.addresses = again.run, again.leaves, again.state, again.addresses
        again.run = None

    def begin_backward(self, grad_outputs: Sequence[torch.Tensor | None]) -> Any:
        """The run, in a pass of autograd's; a second one (retain_graph) computes the forward pass again."""
        run, self.run = self.run, None
        if run is None:
            run, _ = self.plan.forward(self.leaves, self.draw, update=False, options=self.options)
        elif list(map(_data_ptr, self.state)) != self.addresses:
            self.move_feeds(run)
        grads = grad_outputs[: self.plan.description.num_differentiable]
        run.begin_backward([None if grad is None else _to_dlpack(grad) for grad in grads])
        if self.in_groups:  # the pass comes back for the others, or ends before it has asked for all of them
            current = _current_task()
            self.under_way[current] = run
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self.under_way.pop(current, None))
        return run

    def move_feeds(self, run: Any) -> None:
        """Whoever shards parameters (fully_shard) frees them after the forward pass, and gathers them again for the backward pass."""
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
            self.plan.joint.trim()  # for the calls that are still to be computed again
        if _is_grad_enabled():  # create_graph=True
            given = [grad for grad in made if grad is not None]
            refused = torch._C._functions.DelayedError(SECOND_ORDER.encode(), len(given))(*[g.requires_grad_() for g in given])
            refusing = iter([refused] if isinstance(refused, torch.Tensor) else refused)
            made = [None if grad is None else next(refusing) for grad in made]
        return made


class _Step(torch.autograd.Function):
    """Forward stops at the Yield, backward goes on from it, as far as the first group of gradients."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """:param tensors: the value of the groups behind, if there are any; those of the first group; other inputs."""
        call.run, outputs = call.plan.forward(call.leaves, call.draw, options=call.options)
        call.state, call.addresses = call.plan.watched, call.plan.addresses
        ctx.call = call
        if hook := _checkpointed.hook():
            call.has_note = True
            tensors = (_checkpointed.note(call, hook), *tensors)
        ctx.save_for_backward(*tensors)  # for PyTorch's checks: freed graphs, and tensors written to in the meantime
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
    """A group of gradients that the backward pass makes after others. Autograd does with those what is to be done (hooks, all-reduces) before it
    comes here: the value, which says nothing, is an input of the step or of the group before."""

    @staticmethod
    def forward(ctx: Any, call: _Call, group: list[int], *tensors: torch.Tensor) -> torch.Tensor:
        """:param tensors: the value of the groups behind, if there are any; those of the group."""
        ctx.call, ctx.group, ctx.is_last = call, group, len(tensors) == len(group)
        ctx.save_for_backward(*tensors)
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        ctx.saved_tensors  # noqa: B018  raises for a graph that has been freed
        under_way, current = ctx.call.under_way, _current_task()
        made = ctx.call.gradients(under_way.pop(current) if ctx.is_last else under_way[current], ctx.group, ctx.is_last)
        return (None, None, *([] if ctx.is_last else [torch.zeros(())]), *made)


# Function.apply() itself, without its search for wrappers of torch.func among the arguments, half a microsecond each; there are none: a module
# under a transformation of torch.func is traced by it.
_apply: Any = super(torch.autograd.Function, _Step).apply
_apply_later: Any = super(torch.autograd.Function, _LaterGradients).apply


def _may_be_held(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.dim() > 0 and tensor.numel() > 0 and tensor.is_contiguous()


def make_plan(exported: Exported, state: State, leaves: Sequence[torch.Tensor], needs_gradients: bool, options: Options, precision: str = "") -> Plan:
    """Builds the joint graph of an exported module.

    :param needs_gradients: without, there is no backward pass.
    :param precision: of products and convolutions, and of their gradients; float32 by default.
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
    # What evaluation reads in every call stays where it is: kernels pack it once, and again when its elements have changed.
    held = {}
    if not differentiable and not statistics:
        tensors = zip(state.names, state.tensors, strict=True)
        held = {f"state:{name}": index for index, (name, tensor) in enumerate(tensors) if f"state:{name}" in present and _may_be_held(tensor)}
    session = SessionOptions()
    session.intra_op_num_threads = options.num_threads
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
    if options.pack_weights and not differentiable and not statistics and not joint.is_random:
        plan.packing = Packing(exported, session)
    plan.bind(state)
    return plan

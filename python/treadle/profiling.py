"""Profiles the time and memory of runs: of a session, a trainer, a joint module or a `treadle.torch.Module`.

    with treadle.profile(session) as p:
        for _ in range(20):
            with treadle.profile.range("batch"):
                session.run(None, feeds)
    print(p.table())
    p.save("report.html")
"""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast

from . import _clients, _notebook, _python_calls, _treadle
from .errors import InvalidArgument
from .session import Session

if TYPE_CHECKING:
    from .executor import Executor
    from .joint_module import JointModule
    from .torch import Module
    from .train import Trainer

    Client: TypeAlias = Session | Trainer | JointModule | Executor | Module

__all__ = ["KernelPhase", "LoadPhase", "MeasuredMemory", "MemoryTimeline", "Profile", "ProfileComparison", "ProfileMark", "ProfiledLayer", "ProfiledNode", "ProfiledOperand", "ProfiledRange", "PoolThread", "ProfileSchedule", "UnusedKernel", "profile"]


@dataclass(frozen=True)
class KernelPhase:
    """A step within a node's kernel (`kernel_phases=True`): "pack", "compute", "epilogue" and others."""

    name: str
    calls: float
    """Number of times that a thread enters the phase in a run, summed over all threads."""
    median_ms: float
    """Time in a run, summed over the threads, without nested phases."""
    share: float
    """The phase's share of the time of all phases of the node, 0 to 1."""


@dataclass(frozen=True)
class ProfiledOperand:
    """A value that a node reads or writes."""

    name: str
    dtype: str | None
    shape: tuple[int, ...] | None
    """The extents in the last run; None if they depend on data."""
    strides: tuple[int, ...] | None
    """Strides in elements, by axis. Rows are not contiguous if the value is part of another value's rows."""
    constant: bool
    value: str | None
    """The operand's value, if it is a number or at most 16 numbers and known without a run: "0.5", "[2, -1]"."""
    shares: str | None
    """Name of the value whose memory this value uses: it is a view of that value, or is written over it."""


@dataclass(frozen=True)
class UnusedKernel:
    """A kernel of a node's operator that does not compute the node."""

    name: str
    why: str
    """The reason: the kernel declines the node, or comes after the kernel that computes it."""


@dataclass(frozen=True)
class ProfiledNode:
    """A node of the optimised graph, which may stand for several nodes of the model. Unknown numbers are None."""

    name: str
    op_type: str
    kernel: str | None
    phase: str | None
    """The part of a training step to which the node belongs: "forward", "backward", "communication" or "optimizer"."""
    sources: tuple[str, ...]
    """Names of the model's nodes for which this node stands. Empty if it is the model's node of the same name."""
    layers: tuple[str, ...]
    """Layers of the model that contain the node, outer ones first: ("layer1", "layer1.0", "layer1.0.conv1")."""
    input_shapes: tuple[tuple[int, ...] | None, ...]
    output_shapes: tuple[tuple[int, ...] | None, ...]
    calls: float
    """Number of calls in a run."""
    median_ms: float
    p10_ms: float
    p90_ms: float
    share: float
    """The node's share of the run's time, 0 to 1."""
    flops: float | None
    bytes: float | None
    gflops: float | None
    gb_per_s: float | None
    of_peak: float | None
    """The least time that the machine could take, divided by the node's time."""
    inputs: tuple[ProfiledOperand, ...] = ()
    outputs: tuple[ProfiledOperand, ...] = ()
    kernel_phases: tuple[KernelPhase, ...] = ()
    """Phases of the node's kernel, in the order of their first begin; empty without `kernel_phases=True`, or if the kernel marks no
    phases."""
    passes: tuple[str, ...] = ()
    """Names of the passes that made the node, in order; empty without `passes=True`."""
    unused_kernels: tuple[UnusedKernel, ...] = ()
    """The other kernels of the node's operator, and why they do not compute the node; empty without `passes=True`."""
    forward: tuple[str, ...] = ()
    """For a backward node: the forward nodes whose gradients the node computes."""
    sequence: int | None = None
    """For a forward node: the node's number among forward nodes. For a backward node: the number of its last forward node."""
    barrier_ms: float = 0.0
    """Time that threads waited at the ends of the node's loops, in a run."""
    ready_ms: float | None = None
    """Time from the begin of a run until all inputs of the node exist. None for nodes in the bodies of Loop, Scan and If."""
    waited_ms: float | None = None
    """Time from `ready_ms` until the node begins, in which it waits for a thread or for nodes before it."""


@dataclass(frozen=True)
class PoolThread:
    """The activity of a thread that takes part in nodes during the recorded runs. The shares sum to 1."""

    name: str
    calls: bool
    """True if the program calls runs on this thread. Its shares then refer to the time of these runs."""
    running: float
    no_ready_work: float
    barrier: float
    """Share of the time in which the thread has done its part of a loop and waits for other threads."""
    asleep: float


@dataclass(frozen=True)
class ProfiledRange:
    """A range that the program marked. It comprises all calls of the range within the same outer ranges. Times are in milliseconds."""

    name: str
    path: tuple[str, ...]
    """Names of the ranges around this one, outer ones first, and its own name."""
    calls: int
    median_ms: float
    total_ms: float
    self_ms: float
    """Time of all calls, without nested ranges."""
    runs_ms: float
    """Time of the recorded runs in all calls."""
    python: bool = False
    """True if the range is a function that Python called (`python_calls=True`). Its name is then "function (folder/file.py:12)", or
    "module.function" for a C function."""


@dataclass(frozen=True)
class ProfileMark:
    """A moment that the program marked (`treadle.profile.mark`)."""

    name: str
    ms: float
    """Time since the profile began."""
    thread: str


@dataclass(frozen=True)
class ProfiledLayer:
    """A layer of the model: a PyTorch module, or a common part of nodes' names that are paths. Its times are the sums over its nodes."""

    name: str
    """The layer's name, such as "layer1.0.conv1"."""
    path: tuple[str, ...]
    """Names of the layers around this one, outer ones first, and its own name."""
    phase: str | None
    """The part of a training step to which the times belong: "forward", "backward", "communication" or "optimizer"."""
    nodes: int
    mean_ms: float
    """Mean time in a run, summed over threads."""
    self_ms: float
    """Mean time in a run without the layers within this one."""
    share: float
    """The layer's share of the run's time, 0 to 1."""


@dataclass(frozen=True)
class LoadPhase:
    """A part of loading, which consists of reading the model, making the session and binding the first extents."""

    name: str
    path: tuple[str, ...]
    """Names of the phases around this one, outer ones first, and its own name."""
    calls: int
    start_ms: float
    """Time at which the first call began, counted from the begin of reading the model."""
    total_ms: float


@dataclass(frozen=True)
class MeasuredMemory:
    """Memory that was allocated during the profile (`memory=True`). Sizes are in bytes, by class: "weights", "packed", "activations",
    "scratch", "io"; in training also "parameters", "gradients" and "optimizer_state".
    """

    before: dict[str, int]
    """Bytes that were held when the profile began."""
    peak_bytes: int
    peak_ms: float
    """Time of the peak, counted from the begin of the profile."""
    at_peak: dict[str, int]
    holders: tuple[tuple[str | None, str, int], ...]
    """What was held at the peak: the name of a value or node (None if it is not known), its class and its bytes. These are the 200 largest,
    the largest first."""
    times_ms: tuple[float, ...]
    """Times of the points in `timeline`, at most 4,000. If there are more, each point is the one with the most bytes in a section of the
    time."""
    timeline: dict[str, tuple[int, ...]]
    """Bytes that were held at each of `times_ms`, by class."""
    num_events: int
    refused: tuple[tuple[str | None, str, int], ...]
    """Name, class and bytes of each allocation that failed because there was no room."""
    num_more_holders: int = 0
    """Number of things that were held at the peak and are not in `holders`."""
    more_holders_bytes: int = 0


@dataclass(frozen=True)
class MemoryTimeline:
    """The planned contents of the arena during a run. Sizes are in bytes. Weights and outputs are not in the arena."""

    nodes: tuple[str, ...]
    """Names of the nodes, one for each step of the run."""
    activation_bytes: tuple[int, ...]
    """Bytes of the values that are needed at each step of the run. In training, only values that the forward pass computes count."""
    scratch_bytes: tuple[int, ...]
    peak_step: int
    peak_bytes: int
    at_peak: dict[str, int]
    """Bytes of the values that are needed at the peak, by name, the largest first. A node's scratch memory has the name of the node."""
    arena_bytes: int
    """The planned size, which exceeds `peak_bytes` if buffers do not fit together or are aligned."""
    lower_bound_bytes: int
    """A lower bound of `arena_bytes`, which no plan can fall below."""
    measured: MeasuredMemory | None = None
    """The allocations that were measured; None without `memory=True`."""
    live: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Bytes that are needed at each step of the run, by class: "activations" and "scratch", in training also "gradients" and
    "optimizer_state"."""


@dataclass(frozen=True)
class ProfileComparison:
    """The comparison of two profiles."""

    text: str
    data: dict[str, Any]
    """The comparison as JSON, as `treadle profile --diff A.json B.json --json` prints it."""

    @property
    def verdict(self) -> str:
        """The verdict for the whole run: "faster", "slower", "unchanged" or "cannot tell"."""
        return str(self.data["run"]["verdict"])

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class ProfileSchedule:
    """Selects the recorded steps of a loop. Each cycle has `wait` and `warmup` steps without the recorder, and then `active` recorded steps.

    PyTorch needs warm-up steps to start its tracer. Here they only fill the caches after work between cycles.
    """

    wait: int = 0
    warmup: int = 0
    active: int = 1
    repeat: int = 0
    """Number of cycles; 0 repeats them without end."""

    def __post_init__(self) -> None:
        if self.active < 1 or min(self.wait, self.warmup, self.repeat) < 0:
            raise InvalidArgument(
                f"wait={self.wait}, warmup={self.warmup}, active={self.active}, repeat={self.repeat}: "
                "active is at least 1, the others at least 0",
                code="invalid_argument",
            )

    def records(self, step: int) -> bool:
        """Returns True if the step with this number (from 0) is recorded."""
        cycle, place = divmod(step, self.wait + self.warmup + self.active)
        return (self.repeat == 0 or cycle < self.repeat) and place >= self.wait + self.warmup


def _numbered(path: str, number: int) -> str:
    """Returns the name of the file for the graph with this number: "run.profile" for the first, "run.2.profile" for the second."""
    root, extension = os.path.splitext(path)
    return path if number == 1 or not path else f"{root}.{number}{extension}"


_RECORDING = b"TREADLE PROFILE\n"  # the first bytes of files written by `stream_to`


class Profile:
    """A profile, as `treadle.profile` records it or as a file of `treadle profile --json` contains it (`Profile.load`)."""

    def __init__(
        self,
        client: Client | None = None,
        *,
        peaks: bool = True,
        schedule: ProfileSchedule | None = None,
        memory: bool = False,
        kernel_phases: bool = False,
        python_calls: bool = False,
        stream_to: str | os.PathLike[str] | None = None,
        passes: bool = False,
        max_events: int = 50_000_000,
        when_full: Literal["stop", "ring"] = "stop",
    ) -> None:
        if when_full not in ("stop", "ring"):
            raise InvalidArgument(f'when_full is "stop" or "ring", got {when_full!r}', code="invalid_argument")
        if max_events < 1:
            raise InvalidArgument(f"max_events is at least 1, got {max_events}", code="invalid_argument")
        self._client = client
        self._peaks = peaks
        self._schedule = schedule
        self._stream_to = os.fspath(stream_to) if stream_to is not None else ""
        if stream_to is not None and not self._stream_to:
            raise InvalidArgument("stream_to is a path, got an empty one", code="invalid_argument")
        self._python_calls = python_calls
        self._limits = (max_events, when_full == "ring", memory, passes, kernel_phases, python_calls)
        self._lazy: Callable[[], _treadle.NativeProfile] | None = None
        self._num_steps = 0
        self._lock = threading.Lock()
        # For each recorded client (session, trainer or graph of a module): its profiler, and the name of the profiler's file.
        self._recorded: list[tuple[Any, _treadle.NativeProfiler, str]] = []
        self._native: _treadle.NativeProfile | None = None
        self._parts: list[Profile] = []  # profiles of the graphs of a module or process, including graphs that did not run
        self._graphs: list[Profile] | None = None

    def __enter__(self) -> Profile:
        if self._client is None:
            raise InvalidArgument("a profile that was loaded records nothing", code="invalid_argument")
        self._num_steps = 0
        self._recorded.clear()
        graphs = _graphs_of(self._client)
        if graphs is None:
            self._start(self._client)
        else:
            graphs.watch(self._start)
        if self._python_calls:
            try:
                _python_calls.start()
            except BaseException:
                if graphs is not None:
                    graphs.unwatch(self._start)
                self._recorded.clear()
                raise
        return self

    def _start(self, client: Any) -> None:
        with self._lock:
            file = _numbered(self._stream_to, len(self._recorded) + 1)
        profiler = _treadle.start_profiler(_native_client(client), *self._limits, file)
        with self._lock:
            if self._schedule is not None and not self._schedule.records(self._num_steps):
                profiler.pause()
            self._recorded.append((client, profiler, file))

    def step(self) -> None:
        """Ends a step of the `schedule`; runs that begin from now on belong to the next step."""
        if self._schedule is None:
            raise InvalidArgument("the profile has no schedule: treadle.profile(..., schedule=treadle.ProfileSchedule(...))", code="invalid_argument")
        with self._lock:
            self._num_steps += 1
            for _, profiler, _ in self._recorded:
                if self._schedule.records(self._num_steps):
                    profiler.resume()
                else:
                    profiler.pause()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None
    ) -> None:
        if self._client is None:
            return
        if self._python_calls:
            _python_calls.stop()
        graphs = _graphs_of(self._client)
        if graphs is not None:
            graphs.unwatch(self._start)
        with self._lock:
            recorded, self._recorded = self._recorded, []  # releases the profilers and their memory
        for _, profiler, _ in recorded:
            profiler.pause()
        if graphs is None:
            self._take(*recorded[0])
            return
        self._graphs = self._native = None
        self._parts = []
        for item in recorded:
            part = Profile(item[0], peaks=self._peaks)
            part._take(*item)
            self._parts.append(part)
        if error is None and (not self._stream_to or not recorded):  # files are read when the profile is used
            self._first_graph()

    @property
    def graphs(self) -> list[Profile]:
        """If the client is a `treadle.torch.Module` or an executor, the profiles of its graphs that ran, the one with the most time first;
        this object itself is the profile of the first one. If the profile is of the process, the profiles of its clients that ran.
        """
        if self._graphs is None:
            self._graphs = sorted((part for part in self._parts if part._read().recorded), key=lambda part: -part._total_ms())
        return self._graphs

    def _first_graph(self) -> Profile:
        if not self.graphs:
            what = "no session, trainer or module of the process ran" if isinstance(self._client, _clients.Process) else "no graph of the module or executor ran: of a module, treadle.torch.explain(module) says why"
            raise InvalidArgument(what, code="invalid_argument")
        return self.graphs[0]

    def _take(self, client: Any, profiler: _treadle.NativeProfiler, file: str) -> None:
        of = (client._model_path or "" if isinstance(client, Session) else "", self._peaks)
        if file:
            profiler.flush()  # raises an error if the profiler could not write the file
            # The file may be long, so the profile reads it only when the program uses the profile.
            self._lazy = lambda: _treadle.read_profile_recording(file, *of)
        else:
            self._native = profiler.take(*of)

    def _total_ms(self) -> float:
        native = self._read()
        return native.recorded * native.median_ms

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Loads a profile that was saved as .json or .json.gz, or that `stream_to` wrote. Only a profile that `stream_to` wrote has single
        events.
        """
        made = cls()
        with open(path, "rb") as file:
            if file.read(len(_RECORDING)) == _RECORDING:
                made._native = _treadle.read_profile_recording(os.fspath(path))
                return made
        contents = pathlib.Path(path).read_bytes()
        made._native = _treadle.NativeProfile.read((gzip.decompress(contents) if str(path).endswith(".gz") else contents).decode())
        return made

    def _read(self) -> _treadle.NativeProfile:
        if self._lazy is not None:
            lazy, self._lazy = self._lazy, None
            self._native = lazy()
        if self._native is None and self._parts:
            self._native = self._first_graph()._read()
        if self._native is None:
            raise InvalidArgument("nothing has been recorded yet: leave the `with` block first", code="invalid_argument")
        return self._native

    @property
    def data(self) -> dict[str, Any]:
        """The whole profile, as `treadle profile --json` prints it."""
        return dict(json.loads(self._read().json))

    @property
    def nodes(self) -> list[ProfiledNode]:
        """Nodes in the order of the plan."""
        return self._read().nodes

    @property
    def where(self) -> dict[str, float]:
        """What the time of a typical run was spent on, in milliseconds; the parts sum to the run's time."""
        return self._read().where

    @property
    def pool(self) -> list[PoolThread]:
        """Threads that took part in nodes; empty if runs had one thread."""
        return self._read().pool

    @property
    def ranges(self) -> list[ProfiledRange]:
        """Ranges that the program marked with `treadle.profile.range`; outer ranges come before those within them."""
        return self._read().ranges

    @property
    def marks(self) -> list[ProfileMark]:
        """The first 100,000 moments that the program marked with `treadle.profile.mark`, in the order of time."""
        return self._read().marks

    @property
    def layers(self) -> list[ProfiledLayer]:
        """Layers of the model in the order in which runs reach them, in training separately for each phase. Empty if the model's nodes name
        no layers.
        """
        return self._read().layers

    @property
    def load_phases(self) -> list[LoadPhase]:
        """The phases of loading; outer phases come before those within them."""
        return self._read().load_phases

    @property
    def events_lost(self) -> int:
        """The number of events that were lost because there was no room for them (`max_events`). Runs with lost events are left out."""
        return self._read().events_lost

    def memory(self) -> MemoryTimeline:
        """Returns the planned contents of the main graph's arena, per step and at the peak. Its `measured` are actual allocations.

        The result has no steps if nothing was planned because nothing ran, no value is in the arena, or the nodes ran on a device.
        """
        return cast(MemoryTimeline, self._read().memory())

    def table(self, top: int = 25, sort: str = "time", memory: bool = False) -> str:
        """Formats nodes, operators, what a run's time was spent on, and memory for the terminal.

        `top`: number of nodes shown, 0 for all. `sort`: "time", "order", "name", "calls", "gflops", "bandwidth" or "peak".
        `memory`: also show the arena's contents at its peak and during the run.
        """
        return self._read().table(top, sort, memory)

    def tree(self, depth: int = 0, nodes: bool = True) -> str:
        """Formats a run as a tree for the terminal: phases of a step, layers and nodes, each with its total time and its time without children.

        `depth`: levels shown below the run, 0 for all. `nodes`: also show nodes within their layers.
        """
        return self._read().tree(depth, nodes)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file in the format that its name's ending selects; with ".gz" after it, compressed.

        - .html: a page that needs no network; .json: the data; .csv: a line for each node
        - .pftrace: every event, for ui.perfetto.dev; .trace.json: the same in the format of PyTorch's profiler; .onnxruntime.json: in the format of
          ONNX Runtime's
        - .folded: collapsed stacks, for flame graphs; .speedscope.json: for speedscope.app

        A profile loaded from .json has no single events, so it can only be written as .html, .json and .csv.
        """
        target = pathlib.Path(path)
        compressed = target.suffix == ".gz"
        contents = self._read().contents(str(target.with_suffix("") if compressed else target))
        target.write_bytes(gzip.compress(contents.data, compresslevel=3) if compressed else contents.data)

    def _repr_html_(self) -> str | None:
        if self._native is None and self._lazy is None and not self._parts:
            return None  # there is no profile yet, so the notebook shows the object's name
        return _notebook.shown(self.table(), self._read().contents("report.html").tobytes())

    def compare(self, before: Profile, tolerance: float = 0.03, top: int = 25) -> ProfileComparison:
        """Compares with an earlier profile. Only changes that exceed the noise, by 99 % confidence intervals of medians, are shown."""
        text, data = self._read().compare(before._read(), tolerance, top)
        return ProfileComparison(text, json.loads(data))


_python_calls.hide(Profile.__exit__)


class _Graphs(Protocol):
    """Records a `treadle.torch.Module`, whose graphs are clients that are made when the module is called."""

    def watch(self, observer: Any) -> None: ...
    def unwatch(self, observer: Any) -> None: ...


_PROCESS: Any = _clients.Process()


def _graphs_of(client: Any) -> _Graphs | None:
    graphs: _Graphs | None = getattr(client, "__dict__", {}).get("_manager")
    return graphs if hasattr(graphs, "watch") else None


def _native_client(client: Any) -> Any:
    if isinstance(client, _treadle.JointModule):
        return client
    for attribute in ("_sess", "_trainer", "_module"):
        native = getattr(client, attribute, None)
        if isinstance(native, (_treadle.Session, _treadle.Trainer, _treadle.JointModule)):
            return native
    raise InvalidArgument(
        f"a session, a trainer, a joint module, an executor or a treadle.torch.Module is expected, not {type(client).__name__}",
        code="invalid_argument",
    )


class _ProfileFunction:
    """Implements `treadle.profile(...)`, `treadle.profile.range(name)` and `treadle.profile.mark(name)`."""

    def __call__(
        self,
        client: Client | None = None,
        *,
        peaks: bool = True,
        schedule: ProfileSchedule | None = None,
        memory: bool = False,
        kernel_phases: bool = False,
        python_calls: bool = False,
        stream_to: str | os.PathLike[str] | None = None,
        passes: bool = False,
        max_events: int = 50_000_000,
        when_full: Literal["stop", "ring"] = "stop",
    ) -> Profile:
        """Records runs within a `with` block, on all threads: runs of a session, steps of a trainer, forward and backward passes of a joint module
        or a `treadle.torch.Module`. Several profiles may be taken at the same time, also of the same client. Without a client, all clients are
        recorded that the process has or makes within the block; `p.graphs` then has a profile of each that ran.

        `peaks=False` leaves out the measurement of the machine's peak rates (0.3 s), and all comparisons with these.
        `schedule`: which steps are recorded; the loop calls `p.step()` at the end of each.
        `memory`: also record allocations and releases: `p.memory().measured`.
        `kernel_phases`: also record phases in kernels on each thread, such as packing and epilogues: `node.kernel_phases`, and in trace files.
        `python_calls`: also record Python calls, including C functions: in `p.ranges`, within the calls that made them, and in trace files. From
        Python 3.12 on, calls on all threads are recorded; before, calls on this thread and on those that begin within the block.
        `stream_to`: a file to which events are written while they are recorded, for recordings of any length. `Profile.load` reads it, also
        after the process was killed. For a module, "run.profile" is the first graph's file, "run.2.profile" the second one's, and so on.
        `passes`: nodes name the passes that made them, and why other kernels do not compute them. The graph is optimised again for this when the
        block ends. Not for compiled models.
        `max_events`: capacity in events of 24 bytes, for the whole process. `when_full`: "stop" drops new events, "ring" the oldest ones. In both
        cases `p.events_lost` counts the lost events, and runs with lost events are left out.
        """
        return Profile(
            _PROCESS if client is None else client,
            peaks=peaks,
            schedule=schedule,
            memory=memory,
            kernel_phases=kernel_phases,
            python_calls=python_calls,
            stream_to=stream_to,
            passes=passes,
            max_events=max_events,
            when_full=when_full,
        )

    @staticmethod
    def range(name: str) -> _treadle.ProfileRange:
        """Marks a range of the program in all open profiles: `with treadle.profile.range("load batch"):`. Ranges may nest, and may be on any
        thread.
        """
        made: _treadle.ProfileRange = _treadle.profile_range(name)
        return made

    @staticmethod
    def mark(name: str) -> None:
        """Marks this moment in all open profiles: `treadle.profile.mark("epoch 3")`. May be called on any thread."""
        _treadle.profile_mark(name)


profile = _ProfileFunction()
profile.range = _treadle.profile_range  # type: ignore[method-assign]  # replaces the method, so that a range costs no additional Python call

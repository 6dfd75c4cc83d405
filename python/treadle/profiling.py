"""Where the time and memory of runs went: of a session, a trainer or a joint module.

    with treadle.profile(session) as p:
        for _ in range(20):
            session.run(None, feeds)
    print(p.table())
    p.save("report.html")
"""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _treadle
from .errors import InvalidArgument
from .session import InferenceSession

if TYPE_CHECKING:
    from .train import JointModule, Trainer

__all__ = ["MemoryTimeline", "Profile", "ProfileComparison", "ProfiledNode", "ProfileSchedule", "profile"]


@dataclass(frozen=True)
class ProfiledNode:
    """A node as it ran, after fusion. What cannot be known is None."""

    name: str
    op_type: str
    kernel: str | None
    phase: str | None
    """Of a training step: "forward", "backward" or "optimizer"."""
    sources: tuple[str, ...]
    """Nodes of the model as read that it stands for; empty: the one of its own name."""
    input_shapes: tuple[tuple[int, ...] | None, ...]
    output_shapes: tuple[tuple[int, ...] | None, ...]
    calls: float
    """In one run."""
    median_ms: float
    p10_ms: float
    p90_ms: float
    share: float
    """Of the run, 0 to 1."""
    flops: float | None
    bytes: float | None
    gflops: float | None
    gb_per_s: float | None
    of_peak: float | None
    """What the machine could take over what the node took."""

    @classmethod
    def _of(cls, node: dict[str, Any]) -> ProfiledNode:
        def shapes(operands: list[dict[str, Any]]) -> tuple[tuple[int, ...] | None, ...]:
            return tuple(tuple(o["shape"]) if "shape" in o else None for o in operands)

        ms = node.get("ms", {})
        return cls(
            name=node["name"],
            op_type=node["op"],
            kernel=node.get("kernel"),
            phase=node.get("phase"),
            sources=tuple(node.get("sources", ())),
            input_shapes=shapes(node["inputs"]),
            output_shapes=shapes(node["outputs"]),
            calls=node.get("calls", 0.0),
            median_ms=ms.get("median", 0.0),
            p10_ms=ms.get("p10", 0.0),
            p90_ms=ms.get("p90", 0.0),
            share=node.get("share", 0.0),
            flops=node.get("flops"),
            bytes=node.get("bytes"),
            gflops=node.get("gflops"),
            gb_per_s=node.get("gb_per_s"),
            of_peak=node.get("of_peak"),
        )


@dataclass(frozen=True)
class MemoryTimeline:
    """The arena over a run. Sizes are in bytes; weights and outputs lie elsewhere."""

    nodes: tuple[str, ...]
    """Of each step."""
    activation_bytes: tuple[int, ...]
    """Of values alive at each step."""
    scratch_bytes: tuple[int, ...]
    peak_step: int
    peak_bytes: int
    at_peak: dict[str, int]
    """What is alive at the peak, by name: the largest first. Scratch has the name of its node."""
    arena_bytes: int
    """As planned. More than `peak_bytes` where buffers do not fit together, or are aligned."""
    lower_bound_bytes: int
    """No plan can do with less."""


@dataclass(frozen=True)
class ProfileComparison:
    """Two profiles side by side."""

    text: str
    data: dict[str, Any]
    """As `treadle profile --diff A.json B.json --json` prints it."""

    @property
    def verdict(self) -> str:
        """Of the whole run: "faster", "slower", "unchanged" or "cannot tell"."""
        return str(self.data["run"]["verdict"])

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class ProfileSchedule:
    """Which steps of a loop are recorded: of each cycle the last `active`, behind `wait` and `warmup` steps that run without the recorder.

    PyTorch's warm-up steps pay for its tracer to get ready. Here they are for the caches after whatever happens between cycles.
    """

    wait: int = 0
    warmup: int = 0
    active: int = 1
    repeat: int = 0
    """Cycles; 0: without end."""

    def __post_init__(self) -> None:
        if self.active < 1 or min(self.wait, self.warmup, self.repeat) < 0:
            raise InvalidArgument(
                f"wait={self.wait}, warmup={self.warmup}, active={self.active}, repeat={self.repeat}: "
                "active is at least 1, the others at least 0",
                code="invalid_argument",
            )

    def records(self, step: int) -> bool:
        """Whether the step of this number, from 0, is recorded."""
        cycle, place = divmod(step, self.wait + self.warmup + self.active)
        return (self.repeat == 0 or cycle < self.repeat) and place >= self.wait + self.warmup


class Profile:
    """What `treadle.profile` records, or what a file of `treadle profile --json` holds (`Profile.load`)."""

    def __init__(
        self,
        client: InferenceSession | Trainer | JointModule | None = None,
        *,
        peaks: bool = True,
        schedule: ProfileSchedule | None = None,
    ) -> None:
        self._client = client
        self._peaks = peaks
        self._schedule = schedule
        self._num_steps = 0
        self._json: str | None = None
        self._native: _treadle.NativeProfile | None = None

    def __enter__(self) -> Profile:
        if self._client is None:
            raise InvalidArgument("a profile that was loaded records nothing", code="invalid_argument")
        _treadle.start_profiling(_native_client(self._client))
        self._num_steps = 0
        self._follow_schedule()
        return self

    def _follow_schedule(self) -> None:
        if self._client is None or self._schedule is None:
            return
        change = _treadle.resume_profiling if self._schedule.records(self._num_steps) else _treadle.pause_profiling
        change(_native_client(self._client))

    def step(self) -> None:
        """Ends a step of the `schedule`: runs that begin from now on are the next one's."""
        if self._schedule is None:
            raise InvalidArgument("the profile has no schedule: treadle.profile(..., schedule=treadle.ProfileSchedule(...))", code="invalid_argument")
        self._num_steps += 1
        self._follow_schedule()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None
    ) -> None:
        if self._client is None:
            return
        client = _native_client(self._client)
        _treadle.pause_profiling(client)
        name, threads, float32 = "", 0, True
        if isinstance(self._client, InferenceSession):
            options = self._client.get_session_options()
            name, threads = self._client._model_path or "", options.intra_op_num_threads
            float32 = options.precision in ("", "float32")
        self._native = _treadle.take_profile(client, name, threads if self._peaks else None, float32)
        self._json = self._native.json

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """A profile that was saved as .json or .json.gz."""
        made = cls()
        contents = pathlib.Path(path).read_bytes()
        made._json = (gzip.decompress(contents) if str(path).endswith(".gz") else contents).decode()
        _treadle.profile_table(made._json, 1, "time", False)  # raises for what is no profile
        return made

    def _text(self) -> str:
        if self._json is None:
            raise InvalidArgument("nothing has been recorded yet: leave the `with` block first", code="invalid_argument")
        return self._json

    @property
    def data(self) -> dict[str, Any]:
        """All of it, as `treadle profile --json` prints it."""
        return dict(json.loads(self._text()))

    @property
    def nodes(self) -> list[ProfiledNode]:
        """Nodes in the order of the plan."""
        return [ProfiledNode._of(node) for node in self.data["nodes"]]

    @property
    def where(self) -> dict[str, float]:
        """Parts of a typical run, in milliseconds; they sum to the whole."""
        return {part["title"]: part["ms"] for part in self.data["where"]}

    def memory(self) -> MemoryTimeline:
        """What the planned arena of the main graph holds, step by step, and at its peak."""
        memory = self.data["memory"]
        if "peak" not in memory:
            raise InvalidArgument("no memory was planned: nothing ran, or on a device", code="invalid_argument")
        nodes, peak = self.data["nodes"], memory["peak"]
        return MemoryTimeline(
            nodes=tuple(nodes[i]["name"] for i in memory["steps"]),
            activation_bytes=tuple(memory["live"]["activations"]),
            scratch_bytes=tuple(memory["live"]["scratch"]),
            peak_step=peak["step"],
            peak_bytes=peak["bytes"],
            at_peak={value["name"]: value["bytes"] for value in peak["values"]},
            arena_bytes=memory["arena_bytes"],
            lower_bound_bytes=memory["arena_lower_bound_bytes"],
        )

    def table(self, top: int = 25, sort: str = "time", memory: bool = False) -> str:
        """Nodes, operators, where a run went, and memory, for the terminal.

        `top`: nodes shown, 0 for all. `sort`: "time", "order", "name", "calls", "gflops", "bandwidth" or "peak".
        `memory`: also what the arena holds at its peak and over the run.
        """
        return _treadle.profile_table(self._text(), top, sort, memory)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file, by the end of its name; with ".gz" behind it, compressed.

        - .html: a page that needs no network; .json: the data; .csv: a line for each node
        - .pftrace: every event, for ui.perfetto.dev; .trace.json: the same in the words of PyTorch's profiler; .onnxruntime.json: in those of
          ONNX Runtime's
        - .folded: collapsed stacks, for flame graphs; .speedscope.json: for speedscope.app

        A profile that was loaded has no single events: it is written as .html, .json and .csv only.
        """
        target = pathlib.Path(path)
        compressed = target.suffix == ".gz"
        contents = _treadle.profile_file(str(target.with_suffix("") if compressed else target), self._text(), self._native)
        target.write_bytes(gzip.compress(contents, compresslevel=3) if compressed else contents)

    def compare(self, before: Profile, tolerance: float = 0.03, top: int = 25) -> ProfileComparison:
        """What has changed since `before`, beyond the noise: intervals of medians at 99 %."""
        text, data = _treadle.compare_profiles(before._text(), self._text(), tolerance, top)
        return ProfileComparison(text, json.loads(data))


def _native_client(client: InferenceSession | Trainer | JointModule) -> Any:
    for attribute in ("_sess", "_trainer", "_module"):
        native = getattr(client, attribute, None)
        if isinstance(native, (_treadle.Session, _treadle.Trainer, _treadle.JointModule)):
            return native
    raise InvalidArgument(
        f"a session, a trainer or a joint module is expected, got a {type(client).__name__}", code="invalid_argument"
    )


def profile(
    client: InferenceSession | Trainer | JointModule, *, peaks: bool = True, schedule: ProfileSchedule | None = None
) -> Profile:
    """Records runs in a `with` block, whoever makes them: of a session, a trainer (steps), or a joint module (forward and backward parts).

    `peaks=False` leaves out the measurement of what the machine reaches (0.3 s), and with it all that is said of the peak.
    `schedule`: which steps are recorded; the loop calls `p.step()` at the end of each.
    """
    return Profile(client, peaks=peaks, schedule=schedule)

"""Tests Python calls in profiles, and profiles that are written while they are recorded."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
import typing
from collections.abc import Iterator

import numpy as np
import pytest
from onnx import TensorProto, helper

import treadle

FEEDS = {"x": np.ones((5, 8), np.float32)}


@pytest.fixture(scope="module")
def session() -> treadle.InferenceSession:
    graph = helper.make_graph(
        [helper.make_node("Exp", ["x"], ["e"], "exp"), helper.make_node("ReduceSum", ["e"], ["y"], "sum")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    return treadle.InferenceSession(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())


def fib(n: int) -> int:
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def numbers(count: int) -> Iterator[int]:
    yield from range(count)


def fails(depth: int) -> None:
    if depth == 0:
        raise ValueError("at the bottom")
    fails(depth - 1)


def serve(session: treadle.InferenceSession) -> None:
    session.run(None, FEEDS)


def calls_of(profile: treadle.Profile, function: str) -> int:
    """Returns the number of calls of a function from all callers. Python functions' names are followed by their place in brackets."""
    return sum(r.calls for r in profile.ranges if r.python and (r.name == function or r.name.startswith(function + " (")))


def profiled(session: treadle.InferenceSession, work: typing.Callable[[], typing.Any], **options: typing.Any) -> treadle.Profile:
    with treadle.profile(session, peaks=False, python_calls=True, **options) as made:
        work()
    return made


def test_every_call_is_counted(session: treadle.InferenceSession) -> None:
    profile = profiled(session, lambda: [fib(10), sorted([3, 1, 2]), [serve(session) for _ in range(4)]])
    assert calls_of(profile, "fib") == 177  # 2 F(11) - 1
    assert calls_of(profile, "serve") == 4
    assert calls_of(profile, "builtins.sorted") == 1
    assert not [r for r in profile.ranges if "__exit__" in r.name], "the profiler's own calls"
    (served,) = [r for r in profile.ranges if r.name.startswith("serve (")]
    assert "test_profile_python.py" in served.name
    assert 0 < served.runs_ms <= served.total_ms  # the runs take place within the call
    assert sys.getprofile() is None


def test_stacks_nest_with_nodes(session: treadle.InferenceSession, tmp_path: pathlib.Path) -> None:
    def work() -> None:
        with treadle.profile.range("batch"):
            serve(session)

    profile = profiled(session, work)
    assert not [r for r in profile.ranges if "profile_range" in r.name or "__exit__" in r.name], "the calls of the range itself"
    (served,) = [r for r in profile.ranges if r.name.startswith("serve (")]
    assert "batch" in served.path and any("work" in name for name in served.path)
    profile.save(tmp_path / "p.folded")
    stacks = [line.rsplit(" ", 1)[0].split(";") for line in (tmp_path / "p.folded").read_text().splitlines()]
    node = profile.nodes[0]
    deepest = [s for s in stacks if s[-1] == f"{node.op_type} {node.name}"]
    assert deepest and all(any(f.startswith("serve (") for f in s) and "batch" in s and "run" in s for s in deepest)
    profile.save(tmp_path / "p.speedscope.json")
    assert any(f["name"].startswith("serve (") for f in json.loads((tmp_path / "p.speedscope.json").read_text())["shared"]["frames"])
    profile.save(tmp_path / "p.trace.json")
    events = json.loads((tmp_path / "p.trace.json").read_text())["traceEvents"]
    assert any(e.get("cat") == "python_function" and e["name"].startswith("serve (") for e in events)
    assert "serve (" in profile.table()


def test_generators_and_exceptions_end(session: treadle.InferenceSession) -> None:
    def work() -> None:
        assert list(numbers(3)) == [0, 1, 2]
        closed = numbers(5)
        next(closed)
        closed.close()
        for _ in range(2):
            with pytest.raises(ValueError):
                fails(3)
        try:
            [].pop()
        except IndexError:
            pass
        serve(session)

    profile = profiled(session, work)
    assert calls_of(profile, "fails") == 8
    # Each resumption of a generator up to its yield or end counts: four of the first, two of the second.
    assert calls_of(profile, "numbers") == 6
    assert calls_of(profile, "list.pop") == 1
    # Calls after an exception are not shown within the calls that it ended.
    (served,) = [r for r in profile.ranges if r.name.startswith("serve (")]
    assert not any(name.startswith(("fails", "numbers")) or "pop" in name for name in served.path)


def test_threads_and_what_is_under_way_at_the_end(session: treadle.InferenceSession) -> None:
    release, entered = threading.Event(), threading.Event()

    def waits() -> None:
        entered.set()
        release.wait()

    threads = [threading.Thread(target=lambda: [serve(session) for _ in range(3)]) for _ in range(2)]
    waiting = threading.Thread(target=waits)
    with treadle.profile(session, peaks=False, python_calls=True) as profile:
        for thread in (*threads, waiting):
            thread.start()
        for thread in threads:
            thread.join()
        entered.wait()
    release.set()
    waiting.join()
    assert calls_of(profile, "serve") == 6
    assert calls_of(profile, "test_threads_and_what_is_under_way_at_the_end.<locals>.waits") == 1 or calls_of(profile, "waits") == 1
    assert len(profile.data["runs"]) and profile.data["runs"]["recorded"] == 6


def test_profiles_that_do_not_ask_have_none(session: treadle.InferenceSession) -> None:
    with treadle.profile(session, peaks=False) as plain, treadle.profile(session, peaks=False, python_calls=True) as asked:
        serve(session)
    assert not [r for r in plain.ranges if r.python]
    assert calls_of(asked, "serve") == 1


def test_memory_is_bounded_and_the_loss_counted(session: treadle.InferenceSession) -> None:
    profile = profiled(session, lambda: fib(18), max_events=2048)
    assert profile.events_lost > 4000


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="sys.monitoring has tools for several")
def test_another_profiler_is_not_pushed_aside(session: treadle.InferenceSession) -> None:
    def other(*_: object) -> None: ...

    sys.setprofile(other)
    try:
        with pytest.raises(treadle.Error, match="another profiler"):
            profiled(session, lambda: None)
        assert sys.getprofile() is other
    finally:
        sys.setprofile(None)
    assert calls_of(profiled(session, lambda: serve(session)), "serve") == 1


class Monitoring:
    """Imitates sys.monitoring as documented, as far as the profiler uses it."""

    PROFILER_ID = 2
    events = types.SimpleNamespace(
        **{name: 1 << i for i, name in enumerate(["PY_START", "PY_RESUME", "PY_THROW", "PY_RETURN", "PY_YIELD", "PY_UNWIND", "CALL", "C_RETURN", "C_RAISE"])}
    )

    def __init__(self) -> None:
        self.tools: dict[int, str] = {2: "another"}
        self.callbacks: dict[int, typing.Any] = {}
        self.on = 0

    def get_tool(self, tool: int) -> str | None:
        return self.tools.get(tool)

    def use_tool_id(self, tool: int, name: str) -> None:
        assert tool not in self.tools
        self.tools[tool] = name

    def free_tool_id(self, tool: int) -> None:
        del self.tools[tool]

    def register_callback(self, tool: int, event: int, callback: typing.Any) -> None:
        assert self.tools[tool] == "treadle"
        self.callbacks[event] = callback

    def set_events(self, tool: int, events: int) -> None:
        assert self.tools[tool] == "treadle"
        self.on = events

    def fire(self, name: str, *arguments: typing.Any) -> None:
        event = getattr(self.events, name)
        group = self.events.CALL if name in ("C_RETURN", "C_RAISE") else event
        assert self.on & group
        self.callbacks[event](*arguments)


def test_monitoring_callbacks(session: treadle.InferenceSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monitoring = Monitoring()
    monkeypatch.setattr(sys, "monitoring", monitoring, raising=False)
    with treadle.profile(session, peaks=False, python_calls=True) as profile:
        assert monitoring.tools == {2: "another", 3: "treadle"}
        outer, inner, generator = serve.__code__, fib.__code__, numbers.__code__
        monitoring.fire("C_RETURN", outer, 0, threading.Lock().__exit__)  # the call is within start(), which is not recorded
        monitoring.fire("PY_RETURN", treadle._python_calls.start.__code__, 0, None)
        monitoring.fire("PY_RETURN", calls_of.__code__, 0, None)  # began before the recording
        monitoring.fire("PY_START", outer, 0)
        with treadle.profile.range("range") as made:
            pass
        for callable_of_range in (treadle.profile.range, made.__exit__, type(made).__exit__):  # these are the profiler's own calls
            monitoring.fire("CALL", outer, 1, callable_of_range, made)
            monitoring.fire("C_RETURN", outer, 1, callable_of_range, made)
        monitoring.fire("CALL", outer, 2, fib, 3)  # a Python function reports its start itself
        monitoring.fire("PY_START", inner, 0)
        monitoring.fire("CALL", inner, 2, len, [])
        monitoring.fire("C_RETURN", inner, 2, len, [])
        monitoring.fire("CALL", inner, 4, int, "x")
        monitoring.fire("C_RAISE", inner, 4, int, "x")
        monitoring.fire("PY_UNWIND", inner, 4, ValueError())
        monitoring.fire("PY_START", generator, 0)
        monitoring.fire("PY_YIELD", generator, 2, 1)
        monitoring.fire("PY_THROW", generator, 2, ValueError())
        monitoring.fire("PY_UNWIND", generator, 2, ValueError())
        monitoring.fire("CALL", outer, 6, sorted, [])  # the end of this call is never reported
        monitoring.fire("PY_RETURN", outer, 8, None)
        session.run(None, FEEDS)
    assert monitoring.tools == {2: "another"} and monitoring.on == 0 and not any(monitoring.callbacks.values())
    paths = {tuple(name.split(" ")[0] for name in r.path): r.calls for r in profile.ranges}
    assert paths == {
        ("serve",): 1,
        ("serve", "range"): 1,
        ("serve", "fib"): 1,
        ("serve", "fib", "builtins.len"): 1,
        ("serve", "fib", "builtins.int"): 1,
        ("serve", "numbers"): 2,
        ("serve", "builtins.sorted"): 1,
    }


def test_recordings_are_read_again(session: treadle.InferenceSession, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.profile"
    with treadle.profile(session, peaks=False, python_calls=True, kernel_phases=True, stream_to=path) as profile:
        for _ in range(50):
            serve(session)
    assert profile.data["runs"]["recorded"] == 50
    read = treadle.Profile.load(path)
    assert read.data["runs"]["recorded"] == 50
    assert [(n.name, n.calls) for n in read.nodes] == [(n.name, n.calls) for n in profile.nodes]
    assert calls_of(read, "serve") == calls_of(profile, "serve") == 50
    for ending in ("pftrace", "trace.json", "folded", "speedscope.json", "onnxruntime.json", "html", "csv", "json"):
        read.save(tmp_path / f"p.{ending}")
    made = subprocess.run(
        [sys.executable, "-m", "treadle", "profile", str(path), "-o", str(tmp_path / "q.pftrace")], capture_output=True, text=True, check=True
    )
    assert "50 recorded runs" in made.stdout
    assert (tmp_path / "q.pftrace").stat().st_size > 50 * 20


def test_a_killed_process_leaves_its_profile(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "killed.profile"
    program = textwrap.dedent(
        f"""
        import numpy as np, onnx, treadle
        from onnx import TensorProto, helper
        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 4]) for n in "xy")
        graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"], "exp")], "g", [x], [y])
        session = treadle.InferenceSession(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())
        with treadle.profile(session, stream_to={str(path)!r}):
            runs = 0
            while True:
                session.run(None, {{"x": np.ones((4, 4), np.float32)}})
                runs += 1
                if runs == 2000:
                    print("many", flush=True)
        """
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "many\n"
    # A part may be incomplete until the next one begins.
    sizes: set[int] = set()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and len([size for size in sizes if size > 50_000]) < 3:
        time.sleep(0.05)
        sizes.add(path.stat().st_size)
    process.send_signal(signal.SIGKILL)
    process.wait()
    profile = treadle.Profile.load(path)
    (node,) = profile.nodes
    assert profile.data["runs"]["recorded"] >= 500 and node.calls == 1 and node.input_shapes == ((4, 4),)


def test_a_full_disk_is_an_error_at_the_end(tmp_path: pathlib.Path) -> None:
    program = textwrap.dedent(
        f"""
        import os, resource, time, numpy as np, treadle
        from onnx import TensorProto, helper
        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 4]) for n in "xy")
        graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"], "exp")], "g", [x], [y])
        session = treadle.InferenceSession(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())
        runs = 0
        try:
            with treadle.profile(session, stream_to={str(tmp_path / "full.profile")!r}):
                session.run(None, {{"x": np.ones((4, 4), np.float32)}})
                for _ in range(600):  # until the first part is in the file
                    if os.path.getsize({str(tmp_path / "full.profile")!r}) > 1000:
                        break
                    time.sleep(0.1)
                time.sleep(0.3)
                limit = os.path.getsize({str(tmp_path / "full.profile")!r}) + 60_000
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
                for runs in range(1, 20_001):
                    session.run(None, {{"x": np.ones((4, 4), np.float32)}})
        except treadle.Error as error:
            print(runs, error)
        """
    )
    text = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert text.startswith("20000 ") and "File too large" in text and "full.profile" in text
    assert treadle.Profile.load(tmp_path / "full.profile").data["runs"]["recorded"] > 0


def test_what_does_not_go_together_is_refused(session: treadle.InferenceSession, tmp_path: pathlib.Path) -> None:
    with pytest.raises(treadle.Error, match="keep_last"), treadle.profile(session, when_full="ring", stream_to=tmp_path / "a"):
        pass
    with pytest.raises(treadle.Error, match="cannot write"), treadle.profile(session, stream_to=tmp_path / "none" / "a", python_calls=True):
        pass
    assert sys.getprofile() is None


def test_modules_of_pytorch_are_ranges() -> None:
    torch = pytest.importorskip("torch")
    import treadle.torch

    class Inner(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x: typing.Any) -> typing.Any:
            return torch.relu(self.linear(x))

    class Outer(torch.nn.Module):  # type: ignore[misc, name-defined]
        """A module with data-dependent control flow, which no exporter supports."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = Inner(), torch.nn.Linear(8, 4)

        def forward(self, x: typing.Any) -> typing.Any:
            y = self.first(x)
            return self.last(y) if float(y.sum()) > -1e9 else y

    x = torch.ones(3, 8)
    whole, parts = treadle.torch.Module(Inner().eval()), treadle.torch.Module(Outer().eval())
    with torch.no_grad():
        whole(x)
        with pytest.warns(treadle.torch.FallbackWarning):
            parts(x)
        with treadle.profile(whole, peaks=False, python_calls=True) as profile:
            for _ in range(3):
                whole(x)
                parts(x)
    ranges = {r.path[-1]: r for r in profile.ranges if not r.python}
    assert {name: r.calls for name, r in ranges.items()} == {"Inner": 3, "Outer": 3, "first (Inner)": 3, "last (Linear)": 3}
    assert "Outer" in ranges["first (Inner)"].path and "Outer" in ranges["last (Linear)"].path
    assert ranges["Inner"].runs_ms > 0
    assert not torch.nn.modules.module._global_forward_hooks

"""Tests `treadle profile --attach`: profiles of a running process, requested by another process."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import textwrap
import time
import types
import typing
from collections.abc import Iterator

import pytest

import small_models

SERVER = """
import sys, threading, numpy as np, treadle, treadle.train
options = treadle.SessionOptions()
options.intra_op_num_threads = 1
large, small = (treadle.InferenceSession(sys.argv[1], options) for _ in range(2))
print("ready", flush=True)
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
runs = 0
while not stop.is_set():
    large.run(None, {"x": np.ones((8, 8, 28, 28), np.float32)})
    small.run(None, {"x": np.ones((1, 8, 28, 28), np.float32)})
    runs += 1
print("ended", runs, flush=True)
"""


class Server:
    def __init__(self, process: subprocess.Popen[str], environment: dict[str, str], model: pathlib.Path, sharing: pathlib.Path) -> None:
        self.process, self.environment, self.model, self.sharing = process, environment, model, sharing

    def attach(self, *arguments: str, status: int | None = 0) -> str:
        command = [sys.executable, "-m", "treadle", "profile", *arguments]
        run = subprocess.run(command, capture_output=True, text=True, timeout=120, env=self.environment)
        assert status is None or run.returncode == status, run.stderr
        return run.stdout + run.stderr


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("attach")
    model = folder / "conv.onnx"
    model.write_bytes(small_models.convolution_classifier(normalises=True))
    sharing = folder / "jobs"
    environment = dict(os.environ, TREADLE_SHARING_DIR=str(sharing), TREADLE_JOB_CLASS="guaranteed", TREADLE_JOB_NAME="serve")
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(SERVER), str(model)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    yield Server(process, {name: value for name, value in environment.items() if not name.startswith("TREADLE_JOB")}, model, sharing)
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline().startswith("ended "), "runs went on"
    assert process.wait(60) == 0
    assert not list(sharing.glob("profile-*")), "recordings are removed"


def profile_of(text: str) -> dict[str, typing.Any]:
    return dict(json.loads(text[text.index("{") : text.rindex("}") + 1]))


def test_a_process_is_profiled_while_it_runs(server: Server, tmp_path: pathlib.Path) -> None:
    text = server.attach("--attach", str(server.process.pid), "--seconds", "1", "--json", "-o", str(tmp_path / "p.trace.json"))
    data = profile_of(text)
    assert data["runs"]["recorded"] > 1
    convolution = next(node for node in data["nodes"] if "Conv" in node["op"])
    assert convolution["outputs"][0]["shape"][0] == 8, "that of the two sessions with the most time"
    assert all(node["calls"] == 1 for node in data["nodes"])
    assert sum(part["share"] for part in data["where"]) == pytest.approx(1, abs=1e-4)
    assert text.count("also ran, but less: serve") == 1
    assert data["peaks"]["threads"] == data["environment"]["threads"] == 1, "of the session, not of this process"
    assert data["peaks"]["gflops"] > 0
    assert 0 < convolution["of_peak"] and convolution["gflops"] > 0
    steps = [event for event in json.loads((tmp_path / "p.trace.json").read_text())["traceEvents"] if event["name"].startswith("ProfilerStep#")]
    assert len(steps) == data["runs"]["recorded"]


def test_it_may_be_asked_again_and_for_more(server: Server) -> None:
    data = profile_of(server.attach("--attach", "serve", "--seconds", "0.5", "--json", "--memory", "--kernel-phases"))
    assert data["runs"]["recorded"] > 1
    assert data["memory"]["measured"]["events"] > 0
    assert any("kernel_phases" in node for node in data["nodes"])


def test_who_has_no_job_is_named(server: Server) -> None:
    assert 'no process, job id or job name of this user is "nobody"' in server.attach("--attach", "nobody", status=1)
    # This process exists, but has no job.
    assert f'is "{os.getpid()}"' in server.attach("--attach", str(os.getpid()), status=1)


@pytest.mark.parametrize("option", ["model.onnx", "--stream=f", "--runs=3", "--warmup=1", "--no-remedies", "--threads=2", "--option=use_mmap=1", "--tolerance=0.1"])
def test_what_would_be_ignored_is_refused(server: Server, option: str) -> None:
    named = option.split("=")[0]
    expected = "model" if named == "model.onnx" else named
    assert f"--attach records what another process runs: {expected} does not go with it" in server.attach("--attach", "serve", option, status=1)


def test_one_process_at_a_time_asks(server: Server) -> None:
    command = [sys.executable, "-m", "treadle", "profile", "--attach", "serve", "--seconds", "30", "--json"]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=server.environment)
    while not list(server.sharing.glob("profile-*")):
        time.sleep(0.01)
    for file in server.sharing.glob("profile-*"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "another process records job" in server.attach("--attach", "serve", status=1)
    # After Ctrl-C, the program shows the profile so far.
    first.send_signal(signal.SIGINT)
    out, error = first.communicate(timeout=60)
    assert first.returncode == 0, error
    assert profile_of(out)["runs"]["recorded"] >= 1
    assert not list(server.sharing.glob("profile-*"))


def left_in(server: Server) -> list[str]:
    return sorted(file.name for file in server.sharing.iterdir() if file.name.startswith(("profile-", "asker-")))


def test_a_job_stops_recording_for_an_asker_that_is_killed(server: Server) -> None:
    command = [sys.executable, "-m", "treadle", "profile", "--attach", "serve", "--seconds", "3000"]
    asker = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=server.environment)
    deadline = time.monotonic() + 60
    while not list(server.sharing.glob("profile-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert list(server.sharing.glob("profile-*"))
    asker.kill()
    asker.wait()
    while list(server.sharing.glob("profile-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list(server.sharing.glob("profile-*"))
    time.sleep(0.5)
    assert not list(server.sharing.glob("profile-*")), "runs that begin later are not recorded either"
    # The next request must work.
    assert profile_of(server.attach("--attach", "serve", "--seconds", "0.3", "--json"))["runs"]["recorded"] >= 1
    assert left_in(server) == []


def test_what_both_have_left_is_removed_by_the_next(server: Server) -> None:
    for name in ("profile-999999-7-0.part", "profile-999999-7-1.recording", "profile-1-8-0.incomplete", "asker-999999-7"):
        (server.sharing / name).write_text("left")
    server.attach("--attach", "serve", "--seconds", "0.2", "--json")
    assert left_in(server) == []


def test_files_of_others_are_left_alone(server: Server) -> None:
    names = ("profile-", "profile-x-1", "profile-1-2", "profile", "asker-", "asker-1", "asker-1-2-3", "other")
    for name in names:
        (server.sharing / name).write_text("mine")
    server.attach("--attach", "serve", "--seconds", "0.2", "--json")
    for name in names:
        assert (server.sharing / name).read_text() == "mine"
        (server.sharing / name).unlink()


ENDING = """
import os, pathlib, sys, time, numpy as np, treadle
options = treadle.SessionOptions()
options.intra_op_num_threads = 1
session = treadle.InferenceSession(sys.argv[1], options)
def run():
    session.run(None, {"x": np.ones((1, 8, 28, 28), np.float32)})
    time.sleep(0.01)
print("ready", flush=True)
if sys.argv[2] == "after runs":
    while not list(pathlib.Path(sys.argv[3]).glob("profile-*")):
        run()
    for _ in range(20):
        run()
else:
    sys.stdin.readline()
time.sleep(0.5)
if sys.argv[4] == "slowly":
    del session
else:
    os._exit(0)
"""


def ended_meanwhile(server: Server, when: str, how: str) -> tuple[int, int, str, str]:
    """Returns the process's id, and the requesting command's exit status, output and errors."""
    environment = dict(server.environment, TREADLE_JOB_CLASS="guaranteed", TREADLE_JOB_NAME="ending")
    command = [sys.executable, "-c", textwrap.dedent(ENDING), str(server.model), when, str(server.sharing), how]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    command = [sys.executable, "-m", "treadle", "profile", "--attach", str(process.pid), "--seconds", "60", "--json"]
    asker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=server.environment)
    if when == "before a run":
        time.sleep(3)  # there is no sign that the request was made
        process.stdin.write("\n")
        process.stdin.flush()
    assert process.wait(60) == 0
    out, error = asker.communicate(timeout=30)
    return process.pid, asker.returncode, out, error


@pytest.mark.parametrize("how", ["slowly", "at once"])
def test_a_process_that_ends_meanwhile(server: Server, how: str) -> None:
    _, status, out, error = ended_meanwhile(server, "after runs", how)
    assert status == 0, error
    assert profile_of(out)["runs"]["recorded"] >= 20
    assert "of 60 s: what was written until then is shown" in error
    assert not list(server.sharing.glob("profile-*"))


def test_a_process_that_ends_before_a_run(server: Server) -> None:
    for _ in range(5):
        pid, status, _, error = ended_meanwhile(server, "before a run", "at once")
        assert status == 1
        if "no process" not in error:  # otherwise the process had ended before the request
            break
    assert f"process {pid} (ending) ended after" in error and "before a run of it was recorded" in error


IDLE = """
import sys, time, numpy as np, treadle
session = treadle.InferenceSession(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
"""


def test_a_process_that_does_nothing_is_an_error(server: Server) -> None:
    environment = dict(server.environment, TREADLE_JOB_CLASS="guaranteed", TREADLE_JOB_NAME="idle")
    process = subprocess.Popen([sys.executable, "-c", IDLE, str(server.model)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert 'no run of "idle" began and ended within 0.2 s' in server.attach("--attach", "idle", "--seconds", "0.2", status=1)
    process.communicate("\n", timeout=60)


TRAINING = """
import os, sys, numpy as np, treadle, treadle.train
trainer = treadle.train.Trainer(sys.argv[1])
batch, labels = {"x": np.ones((4, 8, 28, 28), np.float32)}, np.zeros(4, np.int64)
trainer.step(batch, labels)
child = os.fork()
print("ready", flush=True) if child else None
while os.getppid() == int(sys.argv[2]) if child else os.getppid() != 1:
    trainer.step(batch, labels)
"""


def test_a_trainer_and_its_forked_child(server: Server) -> None:
    environment = dict(server.environment, TREADLE_JOB_CLASS="guaranteed", TREADLE_JOB_NAME="training")
    command = [sys.executable, "-c", textwrap.dedent(TRAINING), str(server.model), str(os.getpid())]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        # Waits until both processes have the job's name.
        deadline = time.monotonic() + 60
        while sum(job.name == "training" for job in jobs_in(server)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        text = server.attach("--attach", "training", "--seconds", "1.5", "--json")
        data = profile_of(text)
        assert {node["phase"] for node in data["nodes"] if "phase" in node} >= {"forward", "backward", "optimizer"}
        assert text.count("also ran, but less: training, process") == 1
        assert data["model"].startswith("training, process ")
    finally:
        process.kill()
        process.wait()


def jobs_in(server: Server) -> list[types.SimpleNamespace]:
    run = subprocess.run([sys.executable, "-m", "treadle", "jobs", "--json"], capture_output=True, text=True, env=server.environment, check=True)
    return [types.SimpleNamespace(**job) for job in json.loads(run.stdout)]

"""Tests `treadle bench` as load generator, and what commands say of numbers that make no sense."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

DIGITS = pathlib.Path(__file__).resolve().parents[2] / "examples/digits/digits.onnx"


@pytest.fixture
def call(program, tmp_path):
    return lambda *arguments: subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, cwd=tmp_path)


def measured(call, *arguments):
    done = call("bench", DIGITS, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_one_client_is_the_default(call):
    found = measured(call, "--runs", 40, "--warmup", 2)
    assert (found["clients"], found["streams"], found["runs"], found["warmup_runs"]) == (1, 1, 40, 2)
    latency = found["latency_ms"]
    order = [latency[key] for key in ("min", "median", "p90", "p95", "p99", "p99.9", "max")]
    assert order == sorted(order) and order[0] > 0
    assert found["runs_per_second"] > 0 and "waiting_ms" not in found


def test_clients_share_the_runs_and_the_streams(call):
    found = measured(call, "--runs", 60, "--clients", 3, "--streams", 2, "--threads", 1)
    assert (found["clients"], found["streams"], found["threads"], found["runs"]) == (3, 2, 1, 60)
    assert found["warmup_runs"] == 9
    assert measured(call, "--runs", 10, "--streams", 2)["clients"] == 2
    text = call("bench", DIGITS, "--runs", 10, "--streams", 2, "--threads", 1).stdout
    assert "(1 thread a stream, 10 runs)" in text and "2 on 2 streams" in text and "not counted" in text


@pytest.mark.parametrize("regular", [[], ["--regular"]])
def test_requests_arrive_at_a_rate(call, regular):
    found = measured(call, "--runs", 25, "--rate", 500, "--clients", 2, "--threads", 1, *regular)
    assert found["runs"] == 25 and found["arrivals_per_second"] == 500 and found["unserved"] == 0
    assert 0 <= found["waiting_ms"]["median"] <= found["waiting_ms"]["max"] <= found["latency_ms"]["max"]
    assert "arrivals    500 a second" in call("bench", DIGITS, "--runs", 5, "--rate", 500, *regular).stdout


def test_more_requests_than_can_be_served_are_told(call):
    found = measured(call, "--seconds", 0.05, "--rate", 1e7, "--threads", 1)
    assert found["unserved"] > 0 and found["runs"] >= 1


def test_a_run_that_fails_ends_all_clients(call):
    done = call("bench", DIGITS, "--clients", 3, "--runs", 9, "--option", "memory_limit_bytes=45000", "--threads", 1)
    assert done.returncode == 1 and done.stderr


def test_a_runtime_that_fails_does_not_cost_our_result(call):
    done = call("bench", DIGITS, "--runs", 5, "--compare", "onnxruntime", "--python", "false")
    assert done.returncode == 1
    assert "latency" in done.stdout and "memory" in done.stdout
    assert "onnxruntime did not run" in done.stderr
    done = call("bench", DIGITS, "--runs", 5, "--compare", "onnxruntime", "--python", "false", "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["runs"] == 5 and "did not run" in found["peers"]["onnxruntime"]["error"]


def test_a_runtime_is_measured_with_as_many_clients(call, ort):
    found = measured(call, "--runs", 12, "--clients", 2, "--threads", 1, "--compare", "onnxruntime", "--python", sys.executable)
    peer = found["peers"]["onnxruntime"]
    assert peer["version"] == ort.__version__
    assert 0 < peer["median_ms"] <= peer["p90_ms"] <= peer["p99_ms"] and peer["runs_per_second"] > 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["bench", DIGITS, "--runs", "0"], '--runs takes a number from 1, not "0"'),
        (["bench", DIGITS, "--seconds", "-1"], '--seconds takes a number above 0, not "-1"'),
        (["bench", DIGITS, "--seconds", "nan"], '--seconds takes a number above 0, not "nan"'),
        (["bench", DIGITS, "--clients", "0"], '--clients takes a number from 1 to 1000, not "0"'),
        (["bench", DIGITS, "--streams", "0"], '--streams takes a number from 1 to 256, not "0"'),
        (["bench", DIGITS, "--rate", "0"], '--rate takes a number above 0, not "0"'),
        (["bench", DIGITS, "--threads", "-1"], '--threads takes no number below 0: "-1"'),
        (["bench", DIGITS, "--clients", "1", "--streams", "2"], "1 clients use no more than 1 streams"),
        (["bench", DIGITS, "--streams", "2", "--compare", "onnxruntime"], "--streams needs no --compare"),
        (["profile", DIGITS, "--runs", "0"], '--runs takes a number from 1, not "0"'),
        (["profile", DIGITS, "--seconds", "-1"], '--seconds takes a number from 0.001 to 1e+06, not "-1"'),
        (["profile", "--diff", "a", "b", "--tolerance", "-1"], "--tolerance takes no number below 0"),
        (["quantize", DIGITS, "-o", "q.onnx", "--min-weights", "-1"], "--min-weights takes no number below 0"),
        (["quantize", DIGITS, "-o", "q.onnx", "--skip-first", "-1"], "--skip-first takes no number below 0"),
        (["precision", DIGITS, "--random", "0"], '--random takes a number from 1, not "0"'),
        (["precision", DIGITS, "--bound", "0"], '--bound takes a number above 0, not "0"'),
        (["optimize", DIGITS, "-o", "o.onnx", "--opset", "-1"], "--opset takes no number below 0"),
        (["compare", DIGITS, "--with", "optimized", "--rtol", "-1"], "--rtol takes no number below 0"),
        (["compare", DIGITS, "--with", "optimized", "--atol", "nan"], "--atol takes no number below 0"),
        (["train", DIGITS, "--data", "d.npz", "-o", "t.onnx", "--batch-size", "0"], '--batch-size takes a number from 1, not "0"'),
        (["train", DIGITS, "--data", "d.npz", "-o", "t.onnx", "--prefetch", "-1"], "--prefetch takes no number below 0"),
        (["plan", "b.csv", "--time-limit", "-1"], "--time-limit takes no number below 0"),
    ],
)
def test_numbers_that_make_no_sense_are_refused_by_name(call, arguments, expected):
    done = call(*arguments)
    assert done.returncode > 0 and expected in done.stderr, done.stderr
    assert max(map(len, done.stderr.splitlines())) < 200


@pytest.mark.parametrize("command", [["operators", "--json"], ["jobs", "--watch"]])
def test_a_closed_pipe_ends_a_command_quietly(program, command, tmp_path):
    environment = {**os.environ, "TREADLE_SHARING_DIR": str(tmp_path)}
    process = subprocess.Popen([program, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == -signal.SIGPIPE
    assert process.stderr.read() == ""


def test_the_package_ends_quietly_too(tmp_path):
    environment = {**os.environ, "TREADLE_SHARING_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "treadle", "jobs", "--watch"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == -signal.SIGPIPE
    assert process.stderr.read() == ""


@pytest.mark.parametrize("ends_by", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("command", [["compare", DIGITS], ["bench", DIGITS, "--runs", "3", "--compare", "onnxruntime"]], ids=lambda command: command[0])
def test_a_signal_leaves_no_temporary_files(program, tmp_path, command, ends_by):
    started = tmp_path / "started"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    sleeper = tmp_path / "sleeper"
    sleeper.write_text(f"#!/bin/sh\ntouch {started}\nsleep 60\n")
    sleeper.chmod(0o755)
    process = subprocess.Popen(
        [program, *map(str, command), "--python", str(sleeper)],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(temporary)},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(ends_by, signal.SIG_DFL),  # a shell's background processes ignore some signals
    )
    while not started.exists():
        time.sleep(0.01)
    assert list(temporary.iterdir())
    os.killpg(process.pid, ends_by)
    assert process.wait(timeout=60) == -ends_by
    assert not list(temporary.iterdir())

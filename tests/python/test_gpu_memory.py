"""Memory limits and jobs on a GPU, as on the simulated device: values that do not fit lie in the host's memory or in a file, with the same results."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_gpu_faults import layer, run_with  # noqa: F401  # a fixture

import treadle
from treadle import Trainer

ROWS, WIDTH, LINKS = 40, 64, 8
VALUE, WEIGHT = ROWS * WIDTH * 4, WIDTH * WIDTH * 4


def values(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model_of(nodes: list[Any], inputs: dict[str, list[Any]], outputs: dict[str, tuple[int, list[Any] | None]], weights: dict[str, np.ndarray]) -> bytes:
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, dtype, shape) for name, (dtype, shape) in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()


def there_and_back(width: int = WIDTH) -> bytes:
    """h[k + 1] = sin(h[k] w[k] + b[k]), then the products of their running sum in reverse order: all values are read twice, the first ones last."""
    nodes, weights, last = [], {}, "x"
    for k in range(LINKS):
        weights |= {f"w{k}": values(width, width, seed=k) / np.float32(np.sqrt(width)), f"b{k}": values(width, seed=k + 50)}
        nodes += [helper.make_node("MatMul", [last, f"w{k}"], [f"p{k}"]), helper.make_node("Add", [f"p{k}", f"b{k}"], [f"a{k}"]), helper.make_node("Sin", [f"a{k}"], [f"h{k}"])]
        last = f"h{k}"
    for k in reversed(range(LINKS)):
        nodes += [helper.make_node("MatMul", [last, f"w{k}"], [f"q{k}"]), helper.make_node("Add", [f"q{k}", f"h{k}"], ["y" if k == 0 else f"s{k}"])]
        last = f"s{k}"
    return model_of(nodes, {"x": ["n", width]}, {"y": (TensorProto.FLOAT, ["n", width])}, weights)


def by_numpy(x: np.ndarray, width: int = WIDTH) -> np.ndarray:
    w = [values(width, width, seed=k).astype(np.float64) / np.sqrt(width) for k in range(LINKS)]
    h, last = [], x.astype(np.float64)
    for k in range(LINKS):
        last = np.sin(last @ w[k] + values(width, seed=k + 50))
        h.append(last)
    for k in reversed(range(LINKS)):
        last = last @ w[k] + h[k]
    return last


def options_on(device: str, **given: Any) -> treadle.SessionOptions:
    options = treadle.SessionOptions()
    options.device = device
    for name, value in given.items():
        setattr(options, name, value)
    return options


def skipping(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except treadle.Error as error:
        if any(reason in str(error) for reason in ("no Vulkan", "has no GPUs", "Vulkan finds none")):
            pytest.skip(str(error))
        raise


def session_on(device: str, model: bytes | None = None, **given: Any) -> treadle.InferenceSession:
    return skipping(lambda: treadle.InferenceSession(model or there_and_back(), options_on(device, **given)))


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not condition():
        time.sleep(0.001)
    return condition()


devices = pytest.mark.parametrize("device", ["sim", "gpu:0"])


@devices
def test_a_limit_keeps_the_bits_and_may_change(device: str) -> None:
    x = values(ROWS, WIDTH)
    want = session_on(device).run(None, {"x": x})[0]
    np.testing.assert_allclose(want, by_numpy(x), rtol=1e-3, atol=1e-3)
    limits = [LINKS * (2 * VALUE + WEIGHT), 6 * VALUE + WEIGHT, 3 * VALUE + 2 * WEIGHT, 1 << 22, 4 * VALUE + 2 * WEIGHT]
    session = session_on(device, memory_limit_bytes=limits[0])
    for limit in limits:
        session.set_memory_limit(limit)
        for rows in (ROWS, 3, ROWS):
            got = session.run(None, {"x": x[:rows]})[0]
            if rows == ROWS:
                np.testing.assert_array_equal(got, want)
            else:
                np.testing.assert_allclose(got, want[:rows], rtol=1e-4, atol=1e-4)
    session.set_memory_limit(100)
    with pytest.raises(treadle.errors.OutOfMemory, match=f"too low: this run needs at least .* on {device}"):
        session.run(None, {"x": x})
    session.set_memory_limit(1 << 22)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], want)


@devices
def test_a_limit_changes_under_way(device: str) -> None:
    x = values(ROWS, WIDTH)
    want = session_on(device).run(None, {"x": x})[0]
    session = session_on(device, memory_limit_bytes=1 << 22)
    for at in (1, 5, 9):
        session.set_memory_limit(1 << 22)
        run = session.partial_run({"x": x})
        run.step(at)
        session.set_memory_limit(3 * VALUE + 2 * WEIGHT)
        while run.step(1) > 0:
            pass
        assert run.advance()
        np.testing.assert_array_equal(run.outputs()[0], want)


@devices
def test_a_job_limits_the_device_and_the_host_behind_it(device: str) -> None:
    x = values(ROWS, WIDTH)
    want = session_on(device).run(None, {"x": x})[0]
    job = treadle.Job("limited")
    session = session_on(device, job=job)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], want)
    needed = job.status().peak_bytes
    assert needed > LINKS * WEIGHT
    for device_limit, host_limit in [(needed // 2, 0), (1, 0), (4 * VALUE, 12 * VALUE), (1, 6 * VALUE), (0, 0), (needed // 3, 0)]:
        job.memory_limit, job.host_limit = device_limit, host_limit
        for _ in range(2):
            before = job.status().moved_bytes
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], want)
            status = job.status()
            assert status.moved_bytes > before  # at least the feed
            assert not device_limit or status.device_bytes <= device_limit
            assert not host_limit or status.host_bytes <= host_limit
    job.memory_limit = 0
    session.run(None, {"x": x})
    before = job.status().moved_bytes
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], want)
    assert job.status().moved_bytes - before == VALUE, "only the feed moves: the weights have stayed on the device"
    job.memory_limit, job.host_limit = 1000, 1000
    assert eventually(lambda: job.status().device_bytes <= 1000 and job.status().host_bytes <= 1000), "an idle job's values move away"
    job.memory_limit, job.host_limit = 0, 0
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], want)
    del session
    status = job.status()
    assert (status.device_bytes, status.host_bytes, status.disk_bytes) == (0, 0, 0)


@devices
def test_sessions_of_a_job_share_its_limit_while_it_changes(device: str) -> None:
    x = values(ROWS, WIDTH)
    want = session_on(device).run(None, {"x": x})[0]
    job = treadle.Job("together", memory_limit=8 * VALUE)
    sessions = [session_on(device, job=job) for _ in range(2)]
    wrong: list[str] = []

    def use(session: treadle.InferenceSession) -> None:
        for _ in range(6):
            try:
                if not np.array_equal(session.run(None, {"x": x})[0], want):
                    wrong.append("other values")
            except treadle.Error as error:
                wrong.append(str(error))

    threads = [threading.Thread(target=use, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    random = np.random.default_rng(3)
    while any(thread.is_alive() for thread in threads):
        job.memory_limit = int(random.integers(1, 30 * VALUE))
        time.sleep(0.0003)
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]
    job.memory_limit = 5 * VALUE
    for session in sessions:
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], want)
        assert job.status().device_bytes <= 5 * VALUE


@devices
def test_extents_of_the_run_and_bodies_under_a_limit(device: str) -> None:
    node = helper.make_node
    body = helper.make_graph(
        [node("MatMul", ["h", "w"], ["p"]), node("Sin", ["p"], ["next"]), node("NonZero", ["next"], ["places"]), node("Shape", ["places"], ["found"], start=1),
         node("Identity", ["go"], ["go_on"])],
        "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("go", TensorProto.BOOL, []),
         helper.make_tensor_value_info("h", TensorProto.FLOAT, [ROWS, WIDTH])],
        [helper.make_tensor_value_info("go_on", TensorProto.BOOL, []), helper.make_tensor_value_info("next", TensorProto.FLOAT, [ROWS, WIDTH]),
         helper.make_tensor_value_info("found", TensorProto.INT64, [1])],
    )  # fmt: skip
    nodes = [
        node("Relu", ["x"], ["r"]), node("NonZero", ["r"], ["n"]), node("Cast", ["n"], ["f"], to=TensorProto.FLOAT), node("Neg", ["f"], ["places"]),
        node("MatMul", ["r", "w"], ["m"]), node("Loop", ["count", "", "m"], ["last", "all"], body=body), node("Add", ["last", "m"], ["y"]),
    ]  # fmt: skip
    w = values(WIDTH, WIDTH, seed=5) / 8
    outputs: dict[str, tuple[int, list[Any] | None]] = {"y": (TensorProto.FLOAT, [ROWS, WIDTH]), "places": (TensorProto.FLOAT, [2, "k"]), "all": (TensorProto.INT64, [3, 1])}
    model = model_of(nodes, {"x": [ROWS, WIDTH]}, outputs, {"w": w, "count": np.array(3)})
    x = values(ROWS, WIDTH)
    m = h = np.maximum(x, 0).astype(np.float64) @ w
    for _ in range(3):
        h = np.sin(h @ w)
    job = treadle.Job("bodies")
    for given in ({}, {"memory_limit_bytes": 8 * VALUE + WEIGHT}, {"memory_limit_bytes": 1 << 22}, {"job": job}):
        session = session_on(device, model, **given)
        for limit in (0, 3 * VALUE, 1):
            job.memory_limit = limit
            y, places, found = session.run(None, {"x": x})
            np.testing.assert_allclose(y, h + m, rtol=1e-4, atol=1e-4)
            np.testing.assert_array_equal(places, -np.stack(np.nonzero(np.maximum(x, 0))).astype(np.float32))
            np.testing.assert_array_equal(found, np.full((3, 1), ROWS * WIDTH))


@devices
def test_shares_suspension_and_classes(device: str) -> None:
    x = values(ROWS, WIDTH)
    want = session_on(device).run(None, {"x": x})[0]
    job, service = treadle.Job("background", job_class="opportunistic", share=30), treadle.Job("service")
    session, other = session_on(device, job=job), session_on(device, job=service)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], want)
    got: list[np.ndarray] = []
    for pause, resume in [(job.suspend, job.resume), (lambda: setattr(job, "share", 0), lambda: setattr(job, "share", 100))]:
        pause()
        thread = threading.Thread(target=lambda: got.append(session.run(None, {"x": x})[0]))
        thread.start()
        assert eventually(lambda: job.status().running == 1)
        np.testing.assert_array_equal(other.run(None, {"x": x})[0], want)
        assert not got
        resume()
        thread.join(60)
        np.testing.assert_array_equal(got.pop(), want)
    threads = [threading.Thread(target=lambda one=one: got.append(one.run(None, {"x": x})[0])) for one in (session, other) * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(got) == 8
    assert all(np.array_equal(one, want) for one in got)


@devices
def test_a_suspended_run_ends_at_its_deadline(device: str) -> None:
    job = treadle.Job("suspended")
    session = session_on(device, job=job)
    job.suspend()
    run_options = treadle.RunOptions()
    run_options.deadline_ms = 20
    with pytest.raises(treadle.Error) as error:
        session.run(None, {"x": values(2, WIDTH)}, run_options)
    assert error.value.code == "timed_out"
    job.resume()
    np.testing.assert_allclose(session.run(None, {"x": values(2, WIDTH)})[0], by_numpy(values(2, WIDTH)), rtol=1e-3, atol=1e-3)


@devices
def test_a_killed_process_leaves_the_device_to_others(device: str) -> None:
    session_on(device)
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import treadle
from test_gpu_memory import *
session = session_on({device!r}, job=treadle.Job("killed", memory_limit=6 * VALUE))
while True:
    session.run(None, {{"x": values(ROWS, WIDTH)}})
    print("ran", flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ran\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert eventually(lambda: "killed" not in [status.name for status in treadle.list_jobs()])
    job = treadle.Job("after-it", memory_limit=6 * VALUE)
    x = values(ROWS, WIDTH)
    np.testing.assert_allclose(session_on(device, job=job).run(None, {"x": x})[0], by_numpy(x), rtol=1e-3, atol=1e-3)


@devices
@pytest.mark.parametrize("limited", ["session", "job"])
def test_training_under_a_limit_keeps_the_bits(device: str, limited: str) -> None:
    labels = np.arange(ROWS) % WIDTH
    job = treadle.Job("training", memory_limit=8 * VALUE + 4 * WEIGHT)
    given = {"job": job} if limited == "job" else {"memory_limit_bytes": 8 * VALUE + 4 * WEIGHT}

    def made(**given: Any) -> Trainer:
        return skipping(lambda: Trainer(there_and_back(), optimizer="adamw", learning_rate=1e-3, sess_options=options_on(device, **given)))

    trainers = [made(), made(**given)]
    for step in range(3):
        losses = [trainer.step({"x": values(ROWS, WIDTH, seed=step)}, labels) for trainer in trainers]
        assert losses[0] == losses[1]
        if limited == "job":
            assert job.status().device_bytes <= job.memory_limit
            job.memory_limit += (4 * VALUE, -8 * VALUE, 0)[step]
    for name, value in trainers[0].parameters.items():
        np.testing.assert_array_equal(value, trainers[1].parameters[name])


@pytest.mark.parametrize("room", [3, 8, 40, 200])
def test_a_model_that_the_device_has_no_room_for(layer: Path, room: int) -> None:  # noqa: F811
    """A device with memory of its own, of so many values: what does not fit lies in the host's memory, and is on the device again when it is used."""
    run_with(layer, f"discrete:{room * 256 * 256 * 4}", f"""
import ctypes, gc, os
from test_gpu_memory import *
faults = ctypes.CDLL({str(layer / "libfaults.so")!r})
faults.treadle_test_allocated.restype = faults.treadle_test_most_allocated.restype = ctypes.c_uint64
memory = {room} * 256 * 256 * 4
x = values(256, 256)
session = session_on("gpu:0", there_and_back(256))
for rows in (256, 256, 100, 256):
    np.testing.assert_allclose(session.run(None, {{"x": x[:rows]}})[0], by_numpy(x[:rows], 256), rtol=2e-3, atol=2e-3)
first = session.run(None, {{"x": x}})[0]
np.testing.assert_array_equal(session.run(None, {{"x": x}})[0], first)
assert 0 < faults.treadle_test_most_allocated() <= memory
trainer = Trainer(there_and_back(256), sess_options=options_on("gpu:0"))
on_host = Trainer(there_and_back(256))
for _ in range(2):
    losses = [each.step({{"x": x}}, np.arange(256)) for each in (trainer, on_host)]
    np.testing.assert_allclose(*losses, rtol=1e-3)
del session, trainer
gc.collect()
if {room} > 6:  # a limit is kept: no step reads a value in the host's memory
    session = session_on("gpu:0", there_and_back(256), memory_limit_bytes=6 * 256 * 256 * 4)
    np.testing.assert_array_equal(session.run(None, {{"x": x}})[0], first)
    assert faults.treadle_test_most_allocated() <= memory
    del session
    gc.collect()
assert faults.treadle_test_allocated() == 0, faults.treadle_test_allocated()
""")

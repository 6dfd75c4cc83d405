"""Jobs that share a device, controlled from Python and from the command line."""

import multiprocessing
import os
import subprocess
import threading
import time

import numpy as np
import pytest
from onnx import numpy_helper

import treadle
from treadle import errors

import small_models as small


def eventually(condition):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.001)
    return condition()


def session_in(job, model=None):
    options = treadle.SessionOptions()
    options.job = job
    return treadle.InferenceSession(model or small.endless_loop(), options)


def model():
    nodes = [small.node("Mul", ["x", "x"], ["s"]), small.node("Tanh", ["s"], ["y"])]
    return small.model(nodes, [small.tensor("x", ["N"])], [small.tensor("y", ["N"])])


def test_a_job_is_listed_and_changed():
    job = treadle.Job("listed", job_class="opportunistic", share=40, memory_limit=1 << 20, host_limit=1 << 21)
    (status,) = [status for status in treadle.list_jobs() if status.id == job.id]
    assert (status.name, status.pid, status.job_class, status.share, status.memory_limit) == ("listed", os.getpid(), "opportunistic", 40, 1 << 20)
    assert status.host_limit == job.host_limit == 1 << 21
    treadle.set_job(job.id, share=12.5, suspended=True, job_class="guaranteed", memory_limit=0, host_limit=0)
    status = job.status()
    assert (status.share, status.suspended, status.job_class, status.memory_limit, status.host_limit) == (12.5, True, "guaranteed", 0, 0)
    job.resume()
    job.share = 100
    assert not job.status().suspended
    assert job.share == 100
    number = job.id
    del job
    assert number not in [status.id for status in treadle.list_jobs()]


def test_what_is_out_of_range_is_refused():
    job = treadle.Job("checked")
    for share in (-1, 100.5, float("nan")):
        with pytest.raises(errors.InvalidArgument):
            job.share = share
    with pytest.raises(errors.InvalidArgument):
        treadle.Job("two words")
    with pytest.raises(errors.InvalidArgument):
        treadle.Job("x", job_class="royal")
    assert job.share == 100


def test_a_suspended_run_waits_for_its_turn_and_gives_the_same_bits():
    x = np.linspace(-2, 2, 1000, dtype=np.float32)
    expected = treadle.InferenceSession(model()).run(None, {"x": x})[0]
    job = treadle.Job("waits", share=0)
    session = session_in(job, model())
    results = []
    thread = threading.Thread(target=lambda: results.append(session.run(None, {"x": x})[0]))
    thread.start()
    assert eventually(lambda: job.status().running == 1)
    assert not results
    job.share = 100
    thread.join()
    np.testing.assert_array_equal(results[0], expected)
    assert job.status().runs == 1


def guaranteed_process(folder, ready, stop):
    os.environ["TREADLE_SHARING_DIR"] = folder
    job = treadle.Job("other-process")
    session = session_in(job)
    options = treadle.RunOptions()
    threading.Thread(target=lambda: (stop.wait(), setattr(options, "terminate", True)), daemon=True).start()
    threading.Thread(target=lambda: (eventually(lambda: job.status().active), ready.set()), daemon=True).start()
    with pytest.raises(errors.Fail):
        session.run(None, {"start": np.int64(0)}, options)


def test_a_job_gives_way_to_one_of_another_process():
    context = multiprocessing.get_context("spawn")
    ready, stop, seen = context.Event(), context.Event(), threading.Event()
    other = context.Process(target=guaranteed_process, args=(treadle.sharing_folder(), ready, stop))
    other.start()
    try:
        assert ready.wait(60)
        job = treadle.Job("gives-way", job_class="opportunistic")
        session = session_in(job, model())

        def run_until_seen():  # there are several runs, because one may succeed while the other process has no CPU
            while not seen.is_set():
                session.run(None, {"x": np.zeros(8, np.float32)})

        def waits():
            runs = job.status().runs
            time.sleep(0.02)
            status = job.status()
            return status.running == 1 and status.runs == runs

        thread = threading.Thread(target=run_until_seen)
        thread.start()
        assert eventually(waits)
        seen.set()
        stop.set()
        thread.join()
        assert job.status().gave_way_ns > 0
    finally:
        seen.set()
        stop.set()
        other.join()
    assert other.exitcode == 0


def test_the_environment_names_a_job(monkeypatch):
    monkeypatch.setenv("TREADLE_JOB_CLASS", "opportunistic")
    monkeypatch.setenv("TREADLE_JOB_NAME", "from-outside")
    monkeypatch.setenv("TREADLE_JOB_SHARE", "50%")
    session = treadle.InferenceSession(model())
    (status,) = [status for status in treadle.list_jobs() if status.name == "from-outside"]
    assert (status.job_class, status.share) == ("opportunistic", 50)
    del session
    monkeypatch.setenv("TREADLE_JOB_SHARE", "half")
    with pytest.raises(errors.InvalidArgument, match="TREADLE_JOB_SHARE"):
        treadle.InferenceSession(model())


def test_memory_that_the_limit_has_no_room_for_is_the_hosts():
    x = np.linspace(-2, 2, 100_000, dtype=np.float32)
    expected = treadle.InferenceSession(model()).run(None, {"x": x})[0]
    job = treadle.Job("memory")
    options = treadle.SessionOptions()
    options.job = job
    options.add_session_config_entry("treadle.device", "sim")
    session = treadle.InferenceSession(model(), options)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)
    status = job.status()
    needed, moved = status.peak_bytes, status.moved_bytes
    assert needed >= 2 * x.nbytes
    job.memory_limit = needed // 3
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)
    assert job.status().moved_bytes > moved


def test_a_limit_of_the_hosts_memory_holds_for_a_session_on_the_host():
    x = np.linspace(-2, 2, 100_000, dtype=np.float32)
    job = treadle.Job("host-memory")
    options = treadle.SessionOptions()
    options.job = job
    session = treadle.InferenceSession(model(), options)
    expected = session.run(None, {"x": x})[0]
    assert job.status().peak_bytes >= x.nbytes
    job.host_limit = 1000
    with pytest.raises(errors.Error, match='of the job "host-memory" is too low: this run needs at least'):
        session.run(None, {"x": x})
    job.host_limit = 0
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)


def test_a_devices_values_beyond_the_hosts_limit_are_in_a_file():
    x = np.linspace(-2, 2, 100_000, dtype=np.float32)
    expected = treadle.InferenceSession(model()).run(None, {"x": x})[0]
    job = treadle.Job("disk", memory_limit=1)
    options = treadle.SessionOptions()
    options.job = job
    options.add_session_config_entry("treadle.device", "sim")
    session = treadle.InferenceSession(model(), options)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)
    job.host_limit = 3 * x.nbytes
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)
    assert job.status().disk_bytes == 0  # no file is left after the run


def test_training_belongs_to_a_job():
    """A run that waits for its gradients does not count as running, and each of its two halves counts as a run."""
    from treadle.train import JointModule, Trainer

    weight = numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    linear = small.model([small.node("MatMul", ["x", "w"], ["y"])], [small.tensor("x", [2, 4])], [small.tensor("y", [2, 3])], [weight])
    x, labels = np.ones((2, 4), np.float32), np.zeros(2, np.int64)
    job = treadle.Job("training")
    trainer = Trainer(linear, num_threads=1, job=job)
    trainer.step({"x": x}, labels)
    assert job.status().runs == 1
    run = JointModule(linear, num_threads=1, job=job).forward({"x": x})
    assert (job.status().runs, job.status().running) == (2, 0)
    run.backward([np.ones((2, 3), np.float32)])
    assert job.status().runs == 3


def test_jobs_set_warns_of_limits_below_what_a_job_holds(program):
    job = treadle.Job("holder")
    options = treadle.SessionOptions()
    options.job = job
    session = treadle.InferenceSession(model(), options)
    session.run(None, {"x": np.zeros(1 << 20, np.float32)})
    held = job.status().host_bytes
    assert held > 0

    def call(*arguments):
        done = subprocess.run([program, "jobs", "set", *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert call("holder", "--memory", str(2 * held)) == "" and job.memory_limit == 2 * held
    warning = call("holder", "--memory", str(held - 1))
    assert f'warning: job {job.id} "holder" holds' in warning and "--memory" in warning
    assert job.memory_limit == held - 1
    assert call(str(job.id), "--host-memory", "1MB") == "" and job.host_limit == 10**6
    assert call("holder", "--memory", "none", "--host-memory", "none") == ""
    done = subprocess.run([program, "jobs", "set", "hodler", "--share", "10"], capture_output=True, text=True)
    assert done.returncode == 1 and 'there is no job "hodler"; is it holder' in done.stderr


@pytest.mark.parametrize(("text", "size"), [("5MB", 5 * 10**6), ("5MiB", 5 << 20), ("5M", 5 << 20), ("1.5kB", None), ("2GB", 2 * 10**9), ("7", 7), ("7B", 7)])
def test_sizes_in_decimal_and_binary_units(text, size):
    options = treadle.SessionOptions()
    if size is None:
        with pytest.raises(errors.InvalidArgument, match="a size such as"):
            options.add_session_config_entry("treadle.memory_limit_bytes", text)
        return
    options.add_session_config_entry("treadle.memory_limit_bytes", text)
    assert options.memory_limit_bytes == size

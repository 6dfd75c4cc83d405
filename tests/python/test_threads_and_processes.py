"""Tests several Python threads with one session, the GIL, and forks."""

import concurrent.futures
import multiprocessing
import os
import signal
import threading

import numpy as np
import pytest

import treadle
from treadle import errors

import small_models as small


def big_model():
    """Returns a model with enough elements for all threads of the pool."""
    nodes = [small.node("Mul", ["x", "x"], ["s0"])]
    nodes += [small.node("Tanh", [f"s{i}"], [f"s{i + 1}"]) for i in range(4)]
    nodes += [small.node("Identity", ["s4"], ["y"])]
    return small.model(nodes, [small.tensor("x", ["N"])], [small.tensor("y", ["N"])])


def inputs(count):
    return [np.linspace(-1, i + 1, 50_000 + 100 * i, dtype=np.float32) for i in range(count)]


def test_threads_share_a_session():
    session = treadle.InferenceSession(big_model())
    feeds = inputs(16)
    expected = [session.run(None, {"x": x})[0] for x in feeds]

    def work(i):
        for _ in range(20):
            np.testing.assert_array_equal(session.run(None, {"x": feeds[i]})[0], expected[i])
        return i

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(16))) == list(range(16))


def test_threads_use_their_own_bindings():
    session = treadle.InferenceSession(big_model())
    feeds = inputs(8)

    def work(x):
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output("y")
        for _ in range(10):
            session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()[0]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for x, y in zip(feeds, pool.map(work, feeds), strict=True):
            np.testing.assert_array_equal(y, session.run(None, {"x": x})[0])


def test_the_gil_is_free_during_a_run_and_another_thread_may_end_it():
    # The loop would count to 2^62, so the run ends only if the other thread gets to run.
    session = treadle.InferenceSession(small.endless_loop())
    options = treadle.RunOptions()
    stopper = threading.Timer(0.05, lambda: setattr(options, "terminate", True))
    stopper.start()
    with pytest.raises(errors.Fail) as caught:
        session.run(None, {"start": np.int64(0)}, options)
    assert caught.value.code == "cancelled"
    stopper.join()


def test_a_deadline_ends_a_run():
    session = treadle.InferenceSession(small.endless_loop())
    options = treadle.RunOptions()
    options.deadline_ms = 20
    with pytest.raises(errors.Fail) as caught:
        session.run(None, {"start": np.int64(0)}, options)
    assert caught.value.code == "timed_out"


def test_sessions_are_made_in_several_threads():
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        sessions = list(pool.map(lambda _: treadle.InferenceSession(big_model()), range(16)))
    x = inputs(1)[0]
    for session in sessions:
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], sessions[0].run(None, {"x": x})[0])


def in_child(function):
    """Calls the function in a forked child. The exit status tells whether it succeeded; a child that hangs is killed."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        status = 1
        try:
            function()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("threads", [0, 1, 4])
def test_a_session_works_in_a_forked_child(threads):
    options = treadle.SessionOptions()
    options.intra_op_num_threads = threads
    session = treadle.InferenceSession(big_model(), options)
    x = inputs(1)[0]
    expected = session.run(None, {"x": x})[0]  # starts the pool's threads, which do not exist in a child

    def work():
        for _ in range(5):
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for y in pool.map(lambda _: session.run(None, {"x": x})[0], range(4)):
                np.testing.assert_array_equal(y, expected)
        fresh = treadle.InferenceSession(big_model(), options)
        np.testing.assert_array_equal(fresh.run(None, {"x": x})[0], expected)

    assert in_child(work) == 0
    assert in_child(lambda: work() or (in_child(work) == 0 or os._exit(2))) == 0  # the work also succeeds in a grandchild
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)


_session = None


def _run_in_worker(x):
    return _session.run(None, {"x": x})[0]


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_pool_of_processes_inherits_a_session():
    global _session
    _session = treadle.InferenceSession(big_model())
    feeds = inputs(6)
    expected = [_run_in_worker(x) for x in feeds]
    with multiprocessing.get_context("fork").Pool(3) as pool:
        for a, b in zip(pool.map_async(_run_in_worker, feeds).get(timeout=120), expected, strict=True):
            np.testing.assert_array_equal(a, b)
    _session = None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_other_threads_run_leaves_a_working_child():
    session = treadle.InferenceSession(big_model())
    x = inputs(1)[0]
    expected = session.run(None, {"x": x})[0]
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            session.run(None, {"x": x})

    workers = [threading.Thread(target=busy) for _ in range(3)]
    for worker in workers:
        worker.start()
    try:
        for _ in range(20):
            assert in_child(lambda: np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)) == 0
    finally:
        stop.set()
        for worker in workers:
            worker.join()

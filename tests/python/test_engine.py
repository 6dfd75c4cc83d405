"""The dependency engine."""

import concurrent.futures
import threading

import numpy as np
import pytest

import treadle

import small_models as small

X = np.array([[1, 2, 3]], np.float32)


@pytest.mark.parametrize("naive", [False, True])
def test_operations_are_ordered_by_their_variables(naive):
    engine = treadle.Engine(naive=naive)
    a, b = engine.variable(), engine.variable()
    values = []
    for i in range(50):
        engine.push(lambda i=i: values.append(i), writes=[a])
    engine.push(lambda: values.append(sum(values)), reads=[a], writes=[b])
    engine.wait_for(b)
    assert values == [*range(50), sum(range(50))]
    assert (a.version, b.version) == (50, 1)


def test_a_naive_engine_works_in_the_callers_thread_before_push_returns():
    engine = treadle.Engine(naive=True)
    threads = []
    for count in range(1, 4):
        engine.push(lambda: threads.append(threading.get_ident()), writes=[engine.variable()])
        assert threads == [threading.get_ident()] * count


@pytest.mark.parametrize("naive", [False, True])
def test_exceptions_surface_at_the_wait(naive):
    engine = treadle.Engine(naive=naive)
    a, b = engine.variable(), engine.variable()
    ran = []

    def fail():
        raise KeyError("lost")

    engine.push(fail, writes=[a])
    engine.push(lambda: ran.append(1), reads=[a], writes=[b])
    with pytest.raises(KeyError, match="lost"):
        engine.wait_for(b)
    with pytest.raises(KeyError, match="lost"):
        engine.wait_all()
    engine.wait_all()
    assert not ran


def test_readers_run_at_once():
    engine = treadle.Engine(num_threads=2)
    a = engine.variable()
    barrier = threading.Barrier(2, timeout=30)
    engine.push(barrier.wait, reads=[a])
    engine.push(barrier.wait, reads=[a])
    engine.wait_all()


def test_runs_of_sessions_are_ordered():
    engine = treadle.Engine()
    session = treadle.InferenceSession(small.affine())
    x, result = engine.variable(), engine.variable()
    feed = X.copy()
    engine.push(lambda: feed.fill(2), writes=[x])
    future = engine.run_async(session, ["z"], {"x": feed}, reads=[x], writes=[result])
    np.testing.assert_array_equal(future.result(30)[0], np.full((1, 3), 4))
    failing = engine.run_async(session, ["z"], {"x": np.int64([[1]])}, writes=[result])
    never = engine.run_async(session, ["z"], {"x": feed}, reads=[result])
    with pytest.raises(treadle.Error):
        failing.result(30)
    with pytest.raises(concurrent.futures.CancelledError):
        never.result(30)
    with pytest.raises(treadle.Error):
        engine.wait_for(result)


def test_scratch_space_and_random_streams_are_resources():
    drawn = []
    for naive in (True, False):
        engine = treadle.Engine(naive=naive)
        scratch, stream = engine.scratch(), engine.random_stream(seed=7)
        numbers = []

        def work(count, scratch=scratch, stream=stream, numbers=numbers):
            space = scratch.get(8 * count).view(np.float64)
            space[:] = stream.uniform(count)
            numbers.extend(space)
            numbers.extend(stream.normal(2))

        for count in (3, 10, 1):
            engine.push(lambda count=count: work(count), writes=[scratch.variable, stream.variable])
        engine.wait_all()
        with pytest.raises(treadle.Error, match="writes its variable"):
            stream.uniform(1)
        drawn.append(numbers)
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == len(drawn[0]) == 20

"""Tests cancelling, closing, hooks, monitors, feeds and fetches of any value, stored values, checks, dumps, metadata, thread pools."""

import gc
import subprocess
import sys
import threading
import weakref

import numpy as np
import onnx
import pytest
from onnx import helper

import treadle
from treadle import errors

import small_models as small

X = np.array([[1, 2, 3]], np.float32)


@pytest.fixture
def session():
    return treadle.InferenceSession(small.affine())


def wait_for_runs(session, count):
    while session.runs_in_flight < count:
        pass


def test_a_token_ends_a_run():
    session = treadle.InferenceSession(small.endless_loop())
    options = treadle.RunOptions()
    options.cancel_token = treadle.CancelToken()
    token = options.cancel_token
    threading.Thread(target=lambda: (wait_for_runs(session, 1), token.cancel())).start()
    with pytest.raises(errors.Fail) as caught:
        session.run(None, {"start": np.int64(0)}, options)
    assert caught.value.code == "cancelled"
    assert token.cancelled


def test_closing_ends_the_runs_in_flight():
    session = treadle.InferenceSession(small.endless_loop())
    codes = []

    def work():
        with pytest.raises(errors.Fail) as caught:
            session.run(None, {"start": np.int64(0)})
        codes.append(caught.value.code)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    wait_for_runs(session, 2)
    assert session.close() == []
    assert session.closed
    for thread in threads:
        thread.join()
    assert codes == ["cancelled", "cancelled"]
    with pytest.raises(errors.Fail, match="the session is closed"):
        session.run(None, {"start": np.int64(0)})


def test_any_value_can_be_fed_and_fetched(session):
    np.testing.assert_array_equal(session.run(["scaled", "y"], {"x": X})[0], [[1, 4, 9]])
    np.testing.assert_array_equal(session.run(["y"], {"scaled": X})[0], [[1.5, 1, 3]])
    with pytest.raises(errors.InvalidArgument, match='"x" is missing'):
        session.run(["z"], {"scaled": X})
    statistics = session.cache_statistics()
    assert statistics.misses == 3 and statistics.size == 4


def test_targets_run_without_a_fetch(session):
    options = treadle.RunOptions()
    options.targets = ["scaled"]
    ran = []
    options.on_metadata = lambda metadata: ran.extend(node.op_type for node in metadata.nodes)
    assert session.run([], {"x": X}, options) == []
    assert ran == ["Mul"]


def test_hooks_run_in_groups_and_may_fail_the_run(session):
    calls = []
    with (
        treadle.hooks.register("pre_run", 1, lambda run: calls.append(("late", run.run_id))),
        treadle.hooks.register("pre_run", 0, lambda run: calls.append(("early", run.run_id))),
        treadle.hooks.register("post_run", 0, lambda run: calls.append(("post", run.run_id, run.duration_ns > 0, run.error))),
    ):
        session.run(None, {"x": X})
    run_id = calls[0][1]
    assert calls == [("early", run_id), ("late", run_id), ("post", run_id, True, "")]

    def refuse(run):
        raise ValueError("not now")

    hook = treadle.hooks.register("pre_run", 0, refuse)
    with pytest.raises(ValueError, match="not now"):
        session.run(None, {"x": X})
    assert hook.remove()
    assert not hook.remove()
    session.run(None, {"x": X})
    with pytest.raises(errors.InvalidArgument, match="mid_run"):
        treadle.hooks.register("mid_run", 0, refuse)


def test_a_monitor_sees_values_by_pattern(session):
    seen = {}
    session.set_monitor(lambda event: seen.setdefault((event.value, event.is_input), event.array), "s*", inputs=True)
    np.testing.assert_array_equal(session.run(["y"], {"x": X})[0], [[1.5, 3, 9]])
    np.testing.assert_array_equal(seen["scaled", False], [[1, 4, 9]])
    np.testing.assert_array_equal(seen["scaled", True], [[1, 4, 9]])
    session.set_monitor(None)
    seen.clear()
    session.run(None, {"x": X})
    assert not seen


def test_what_a_monitor_raises_ends_the_run(session):
    def stop(event):
        raise KeyError(event.value)

    session.set_monitor(stop, "scaled")
    with pytest.raises(KeyError, match="scaled"):
        session.run(None, {"x": X})


def test_stored_values_are_fed_by_handle(session):
    (handle,) = session.run_to_handles(["y"], {"x": X})
    np.testing.assert_array_equal(handle.value().numpy(), [[1.5, 3, 9]])
    np.testing.assert_array_equal(session.run(["z"], {"x": handle})[0], [[3, 6, 18]])
    handle.delete()
    with pytest.raises(errors.NotFound):
        session.run(["z"], {"x": handle})


def test_the_first_node_that_makes_nan_is_named():
    model = small.model([small.node("Log", ["x"], ["y"], name="logs")], [small.tensor("x", [2])], [small.tensor("y", [2])])
    session = treadle.InferenceSession(model)
    options = treadle.RunOptions()
    options.check_finite = "nan"
    session.run(None, {"x": np.float32([1, 0])}, options)
    with pytest.raises(errors.InvalidArgument, match=r'(?s)"logs".*NaN at \[1\]'):
        session.run(None, {"x": np.float32([1, -1])}, options)
    options.check_finite = "all"
    with pytest.raises(errors.InvalidArgument, match=r"infinite at \[0\]"):
        session.run(None, {"x": np.float32([0, 1])}, options)


def test_dumps_are_onnx_tensors(session, tmp_path):
    options = treadle.RunOptions()
    options.dump_folder = str(tmp_path)
    session.run(["z"], {"x": X}, options)
    (path,) = tmp_path.rglob("*_out0.pb")
    tensor = onnx.TensorProto.FromString(path.read_bytes())
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), X + X)


def test_names_of_nodes_to_dump_need_a_folder(session):
    options = treadle.RunOptions()
    options.dump_pattern = "Mul*"
    with pytest.raises(errors.InvalidArgument, match="no dump_folder"):
        session.run(None, {"x": X}, options)


def test_parallel_sessions_and_pools_of_their_own_give_the_same_bits():
    nodes = []
    for branch in range(4):
        nodes.append(small.node("MatMul", ["x", "x"], [f"a{branch}"]))
        nodes.append(small.node("MatMul", [f"a{branch}", "x"], [f"b{branch}"]))
    nodes.append(small.node("Sum", [f"b{branch}" for branch in range(4)], ["y"]))
    model = small.model(nodes, [small.tensor("x", [128, 128])], [small.tensor("y", [128, 128])])
    x = np.random.default_rng(0).standard_normal((128, 128)).astype(np.float32)
    expected = treadle.InferenceSession(model).run(None, {"x": x})[0]
    for threads in ((0, 0), (1, 2), (2, 2), (1, 1)):
        options = treadle.SessionOptions()
        options.execution_mode = treadle.ExecutionMode.ORT_PARALLEL
        options.intra_op_num_threads, options.inter_op_num_threads = threads
        options.disabled_passes = ["merge-common-nodes"]
        np.testing.assert_array_equal(treadle.InferenceSession(model, options).run(None, {"x": x})[0], expected)
    options = treadle.SessionOptions()
    options.thread_pool = treadle.ThreadPool(2)
    session = treadle.InferenceSession(model, options)
    run_options = treadle.RunOptions()
    run_options.thread_pool = treadle.ThreadPool(3)
    np.testing.assert_array_equal(session.run(None, {"x": x}, run_options)[0], expected)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)


def test_log_messages_reach_a_callback():
    messages = []
    treadle.set_log_callback(lambda severity, message: messages.append((severity, message)), 0)
    treadle.set_log_callback(None)
    assert messages == []


def test_a_monitor_that_refers_to_its_session_does_not_keep_it():
    class Watcher:
        def __init__(self):
            self.session = treadle.InferenceSession(small.affine())
            self.session.set_monitor(self.see)

        def see(self, event):
            pass

    watcher = weakref.ref(Watcher())
    gc.collect()
    assert watcher() is None


def test_a_cycle_through_a_callback_is_left_at_exit_without_a_word():
    script = """import treadle
options = treadle.RunOptions()
def seen(metadata):
    return options
options.on_metadata = seen
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def model_of_python_nodes(op_type, count):
    """Returns a model of `count` Python operators, which may run concurrently, and their sum."""
    nodes = [helper.make_node(op_type, ["x"], [f"y{i}"], f"{op_type}_{i}", domain="test.control") for i in range(count)]
    graph = helper.make_graph(
        [*nodes, helper.make_node("Sum", [f"y{i}" for i in range(count)], ["y"])], "g", [small.tensor("x", [4])], [small.tensor("y", [4])]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("test.control", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def test_a_run_computes_in_the_pool_that_it_is_given():
    threads = set()
    all_there = threading.Barrier(3)

    def meet(x):
        threads.add(threading.get_ident())
        if meeting:
            all_there.wait(30)  # continues only when three threads are in such a node
        return x

    treadle.register_operator("test.control", "Meet", meet, infer=lambda x, **_: [x])
    options = treadle.SessionOptions()
    options.execution_mode = treadle.ExecutionMode.ORT_PARALLEL
    options.disabled_passes = ["merge-common-nodes"]
    options.thread_pool = treadle.ThreadPool(1)
    session = treadle.InferenceSession(model_of_python_nodes("Meet", 3), options)
    x = np.arange(4, dtype=np.float32)
    meeting = False
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], 3 * x)
    assert threads == {threading.get_ident()}
    meeting = True
    threads.clear()
    run_options = treadle.RunOptions()
    run_options.thread_pool = treadle.ThreadPool(3)
    np.testing.assert_array_equal(session.run(None, {"x": x}, run_options)[0], 3 * x)
    assert len(threads) == 3


def test_a_node_that_hangs_does_not_hold_its_caller():
    let_go = threading.Event()
    treadle.register_operator("test.control", "Hang", lambda x: x if let_go.wait(60) else None, infer=lambda x, **_: [x])
    session = treadle.InferenceSession(model_of_python_nodes("Hang", 1))
    x = np.arange(4, dtype=np.float32)
    run_options = treadle.RunOptions()
    run_options.deadline_ms = 20
    with pytest.raises(treadle.Error, match="Hang_0") as error:
        session.run(None, {"x": x}, run_options)
    assert error.value.code == "timed_out"
    assert session.runs_in_flight == 1 and not let_go.is_set()
    let_go.set()
    while session.runs_in_flight:
        pass
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x)


def test_memory_bound_by_its_address_is_the_callers_again_after_a_deadline():
    let_go = threading.Event()
    treadle.register_operator("test.control", "HangBound", lambda x: x if let_go.wait(60) else None, infer=lambda x, **_: [x])
    session = treadle.InferenceSession(model_of_python_nodes("HangBound", 1))
    x, y = np.arange(4, dtype=np.float32), np.full(4, -1, np.float32)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, [4], x.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, [4], y.ctypes.data)
    run_options = treadle.RunOptions()
    run_options.deadline_ms = 20
    with pytest.raises(treadle.Error, match="HangBound_0"):
        session.run_with_iobinding(binding, run_options)
    let_go.set()
    while session.runs_in_flight:
        pass
    np.testing.assert_array_equal(y, np.full(4, -1, np.float32))
    run_options.deadline_ms = 60_000
    session.run_with_iobinding(binding, run_options)
    np.testing.assert_array_equal(y, x)

"""Runs the scenarios on TensorFlow's direct session, in TensorFlow's environment (see README.md), and writes recorded/tensorflow.json."""

from __future__ import annotations

import os
import threading
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"  # with oneDNN, numbers would depend on the processor

import numpy as np
import tensorflow

import networks as nets
import random_graphs
from recording import Recording, error_of

tf = tensorflow.compat.v1
tf.disable_eager_execution()
tf.logging.set_verbosity(tf.logging.ERROR)
record = Recording("tensorflow", tensorflow.__version__)

X = np.float32([[1, 2, 3]])
SCALE, SHIFT = np.float32([1, 2, 3]), np.float32([0.5, -1, 0])


def affine():
    """Yields a session for the graph y = x * scale + shift, z = x + x."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float32, [None, 3], name="x")
        scaled = tf.multiply(x, tf.constant(SCALE), name="scaled")
        y = tf.add(scaled, tf.constant(SHIFT, name="shift"), name="y")
        z = tf.add(x, x, name="z")
    return tf.Session(graph=graph), x, scaled, y, z


def says(function, *arguments, **named):
    """Returns the type of the exception that the call raises, and its main line."""
    try:
        function(*arguments, **named)
    except Exception as error:  # the test records the exception
        where = ("Graph execution error", "Detected at node", " ", "Node:")
        lines = [line for line in str(error).splitlines() if line and not line.startswith(where)]
        return [type(error).__name__, lines[0][:160] if lines else ""]
    return ["", ""]


def record_feeds_and_fetches():
    session, x, scaled, y, z = affine()
    twice = session.run([y, y], {x: X})
    record.add(
        "feeds_and_fetches",
        internal_value_fetched=session.run(scaled, {x: X}),
        internal_value_fed=session.run(y, {scaled: X}),
        constant_fed=session.run(y, {x: X, "shift:0": SHIFT * 10}),
        fed_value_fetched=session.run([x, y], {x: X})[0],
        fetched_twice=twice,
        fed_and_not_needed=session.run(z, {x: X, scaled: X}),
        no_rows=list(session.run(y, {x: X[:0]}).shape),
        missing=says(session.run, y),
        unknown_fetch=says(session.run, "nothing:0", {x: X}),
        unknown_feed=says(session.run, y, {x: X, "nothing:0": X}),
        wrong_shape=says(session.run, y, {x: X[:, :2]}),
        wrong_type=says(session.run, y, {x: [["one", "two", "three"]]}),
        whole_numbers_are_converted=session.run(y, {x: np.int32([[1, 2, 3]])}),
        usable_after_errors=session.run(y, {x: X}),
    )
    options, metadata = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), tf.RunMetadata()
    nothing = session.run(scaled.op, {x: X}, options, metadata)

    def nodes(metadata):
        return sorted({stats.node_name for device in metadata.step_stats.dev_stats for stats in device.node_stats} & {"scaled", "y", "z"})

    ran_for_target = nodes(metadata)
    metadata = tf.RunMetadata()
    session.run([y, z], {x: X}, options, metadata)
    stats = [stats for device in metadata.step_stats.dev_stats for stats in device.node_stats if stats.node_name in ("scaled", "y", "z")]
    record.add(
        "targets_and_metadata",
        target_gives=nothing,
        ran_for_a_target=ran_for_target,
        ran_for_fetches=nodes(metadata),
        scaled_ended_before_y_started=_end(stats, "scaled") <= _start(stats, "y"),
        times_are_in_order=all(s.op_start_rel_micros <= s.op_end_rel_micros <= s.all_end_rel_micros for s in stats),
    )


def _start(stats, name):
    return next(s.all_start_nanos for s in stats if s.node_name == name)


def _end(stats, name):
    return next(s.all_start_nanos + s.op_end_rel_nanos for s in stats if s.node_name == name)


def record_partial_run():
    """Records a partial run: a = x + x is fetched, then b is fed, then y = b * x is fetched."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float32, [2], name="x")
        a = tf.add(x, x, name="a")
        b = tf.placeholder(tf.float32, [2], name="b")
        y = tf.multiply(b, x, name="y")
        other = tf.placeholder(tf.float32, [2], name="other")
    session, values = tf.Session(graph=graph), np.float32([1, 2])

    def begin():
        handle = session.partial_run_setup([a, y], [x, b])
        return handle, session.partial_run(handle, a, {x: values})

    handle, out = begin()
    result = session.partial_run(handle, y, {b: out * 10})
    after_the_end = says(session.partial_run, handle, y, {b: out})
    facts = {"handed_out": out, "outputs": result, "after_the_end": after_the_end}
    first, out_1 = begin()
    second, out_2 = begin()
    facts["interleaved"] = [session.partial_run(first, y, {b: out_1 + 1}), session.partial_run(second, y, {b: out_2 - 1})]
    handle, _ = begin()
    facts["fetched_again"] = says(session.partial_run, handle, a)
    handle, _ = begin()
    facts["fed_again"] = says(session.partial_run, handle, y, {x: values, b: values})
    handle, _ = begin()
    facts["undeclared_feed"] = says(session.partial_run, handle, y, {b: values, other: values})
    handle, _ = begin()
    facts["undeclared_fetch"] = says(session.partial_run, handle, "other:0", {b: values})
    handle, _ = begin()
    facts["before_its_feed"] = says(session.partial_run, handle, y)
    facts["unknown_handle"] = says(session.partial_run, "no handle", y, {b: values})
    facts["set_up_without_a_needed_feed"] = says(lambda: session.partial_run(session.partial_run_setup([y], [b]), y, {b: values}))
    record.add("partial_run", **facts)


def record_handles():
    session, x, _, y, _ = affine()
    other = tf.Session(graph=session.graph)
    with session.graph.as_default():
        handle = session.run(tf.get_session_handle(y), {x: X})
        place, value = tf.get_session_tensor(handle.handle, tf.float32)
        doubled = tf.add(value, value)
        read = session.run(value, {place: handle.handle})
        fed = session.run(doubled, {place: handle.handle})
        elsewhere = says(other.run, value, {place: handle.handle})
        deleted_place, deleter = tf.delete_session_tensor(handle.handle)
        kept = handle.get_raw_handle()  # otherwise the object's destructor would delete the tensor again
        session.run(deleter, {deleted_place: kept})
        record.add(
            "handles",
            value=read,
            fed_by_handle=fed,
            read_after_delete=says(session.run, value, {place: kept}),
            deleted_twice=says(session.run, deleter, {deleted_place: kept}),
            in_another_session=elsewhere,
            not_a_handle=says(session.run, value, {place: "no handle"}),
        )


def endless():
    graph = tf.Graph()
    with graph.as_default():
        start = tf.placeholder(tf.int64, [], name="start")
        total = tf.while_loop(lambda i: tf.less(i, 2**62), lambda i: i + 1, [start])
        quick = tf.add(start, 1)
    return tf.Session(graph=graph), start, total, quick


def record_ending_runs():
    session, start, total, quick = endless()
    began = time.monotonic()
    timed_out = says(session.run, total, {start: 0}, tf.RunOptions(timeout_in_ms=200))
    in_time = time.monotonic() - began < 5
    usable = int(session.run(quick, {start: 1}))
    errors = []
    threads = [threading.Thread(target=lambda: errors.append(error_of(session.run, total, {start: 0}))) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    session.close()
    for thread in threads:
        thread.join(20)
    record.add(
        "ending_runs",
        time_out=timed_out,
        time_out_within_five_seconds=in_time,
        usable_afterwards=usable,
        runs_in_flight_when_closed=errors,
        all_ended=not any(thread.is_alive() for thread in threads),
        later_run=says(session.run, quick, {start: 1}),
        closed_twice=error_of(session.close),
    )


def record_hooks():
    calls = []

    class Hook(tf.train.SessionRunHook):
        def __init__(self, name, fails=""):
            self.name, self.fails = name, fails

        def before_run(self, context):
            calls.append(f"before {self.name}")
            if self.fails == "before":
                raise KeyError("not now")

        def after_run(self, context, values):
            calls.append(f"after {self.name}")
            if self.fails == "after":
                raise KeyError("too late")

    def run(*hooks, bad=False):
        calls.clear()
        graph = tf.Graph()
        with graph.as_default():
            x = tf.placeholder(tf.float32, [3], name="x")
            y = tf.debugging.check_numerics(tf.log(x), "logs", name="y")
            counter = tf.get_variable("counter", [], tf.int32, tf.zeros_initializer)
            with tf.control_dependencies([y]):
                count = tf.assign_add(counter, 1)
            with tf.train.MonitoredSession(hooks=list(hooks)) as session:
                error = error_of(session.run, [y, count], {x: np.float32([1, -1, 2] if bad else [1, 1, 2])})
                raw = session._tf_sess()
                return {"calls": list(calls), "error": error, "runs_computed": int(raw.run(counter))}

    record.add(
        "hooks",
        two=run(Hook("first"), Hook("second")),
        fails_before=run(Hook("first"), Hook("second", "before")),
        fails_after=run(Hook("first", "after"), Hook("second")),
        run_fails=run(Hook("first"), bad=True),
    )


def record_numeric_checks():
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float32, [2], name="x")
        y = tf.debugging.check_numerics(tf.log(x), "logs", name="y")
    session = tf.Session(graph=graph)
    record.add(
        "numeric_checks",
        fine=says(session.run, y, {x: np.float32([1, 2])}),
        nan=says(session.run, y, {x: np.float32([1, -1])}),
        infinite=says(session.run, y, {x: np.float32([0, 1])}),
    )


def record_control_flow():
    """Records a loop whose number of iterations comes from data, and a branch that data choose."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float32, [None], name="x")
        rounds = tf.placeholder(tf.int64, [], name="rounds")
        start, shapes = [tf.constant(0, tf.int64), x], [tf.TensorShape([]), tf.TensorShape([None])]
        _, state = tf.while_loop(lambda i, v: tf.less(i, rounds), lambda i, v: (i + 1, v * 0.5 + x), start, shapes)
        chosen = tf.cond(tf.greater(tf.reduce_sum(x), 0), lambda: tf.exp(x), lambda: -x)
    session = tf.Session(graph=graph)
    facts = {f"rounds_{n}": session.run(state, {x: nets.POINTS, rounds: n}) for n in (0, 1, 5)}
    branches = {name: session.run(chosen, {x: points}) for name, points in (("positive", nets.POINTS), ("negative", nets.POINTS - 3))}
    record.add("control_flow", {"points": nets.POINTS}, **facts, **branches)


def record_states():
    """Records that a variable keeps its value between runs. A run that fails before the assignment does not change it."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float32, [2], name="x")
        total = tf.get_variable("total", [2], initializer=tf.zeros_initializer)
        checked = tf.debugging.check_numerics(tf.log(x), "logs")
        with tf.control_dependencies([checked]):
            updated = tf.assign_add(total, x)
        y = tf.multiply(updated, 2.0)
    session = tf.Session(graph=graph)
    session.run(total.initializer)
    outputs = [session.run(y, {x: np.float32([i, 2 * i])}) for i in (1, 2, 3)]
    error = error_of(session.run, y, {x: np.float32([1, -1])})
    facts = {"outputs": outputs, "failing_run_error": error, "state_after_it": session.run(total)}
    session.run(total.initializer)
    record.add("states", **facts, output_after_a_reset=session.run(y, {x: np.float32([5, 6])}))


def mlp(variables):
    data = tf.placeholder(tf.float32, [None, 5], name="data")
    weights = {name: (tf.get_variable(name, initializer=array) if variables else tf.constant(array)) for name, array in nets.MLP.items()}
    hidden = tf.nn.bias_add(tf.matmul(data, weights["fc1_weight"], transpose_b=True), weights["fc1_bias"])
    return data, weights, hidden, tf.nn.bias_add(tf.matmul(tf.tanh(hidden), weights["fc2_weight"], transpose_b=True), weights["fc2_bias"])


def record_gradients():
    with tf.Graph().as_default(), tf.Session() as session:
        data, weights, hidden, scores = mlp(False)
        head = tf.constant(nets.MLP_DATA["head"])
        gradients = dict(zip([*weights, "data"], tf.gradients(scores, [*weights.values(), data], head), strict=True))
        feeds = {data: nets.MLP_DATA["data"]}
        record.add(
            "gradients",
            {**nets.MLP, **nets.MLP_DATA},
            scores=session.run(scores, feeds),
            gradients=session.run(gradients, feeds),
            hidden_fed=session.run(scores, {hidden: np.ones((4, 6), np.float32)}),
            without_the_hidden_layer=session.run(tf.gradients(scores, weights["fc2_weight"], head, stop_gradients=hidden)[0], feeds),
        )


def record_training():
    batches = nets.chain(20)["batches"][:10]
    for name, nesterov in (("momentum", False), ("nesterov", True)):
        with tf.Graph().as_default(), tf.Session() as session:
            data, weights, _, scores = mlp(True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.constant(nets.MLP_LABELS), logits=scores))
            step = tf.train.MomentumOptimizer(0.05, 0.9, use_nesterov=nesterov).minimize(loss)
            session.run(tf.global_variables_initializer())
            losses = [session.run([loss, step], {data: batch})[0] for batch in batches]
            record.add(
                f"training_{name}",
                {**nets.MLP, "batches": batches},
                rate=0.05,
                momentum=0.9,
                losses=losses,
                parameters=session.run(weights),
            )


def record_random_graphs():
    """Records runs that feed and fetch any values. A run computes only what its fetches need and its feeds do not give; its errors name
    missing placeholders."""
    functions = {
        "tanh": tf.tanh,
        "sigmoid": tf.sigmoid,
        "relu": tf.nn.relu,
        "negative": tf.negative,
        "sine": tf.sin,
        "transpose": tf.transpose,
        "softmax": tf.nn.softmax,
        "halve": lambda a: a * 0.5,
        "add": tf.add,
        "subtract": tf.subtract,
        "multiply": tf.multiply,
        "product": tf.matmul,
        "join": lambda a, b: tf.concat([a[:, 2:], b[:, :2]], axis=1),
    }
    facts = []
    for seed in range(random_graphs.COUNT):
        graph = random_graphs.random_graph(seed)
        with tf.Graph().as_default(), tf.Session() as session:
            values = {
                name: tf.placeholder(tf.float32, [4, 4], name=name) if name[0] == "x" else tf.constant(array)
                for name, array in graph.arrays.items()
            }
            for step in graph.steps:
                values[step.value] = functions[step.op](*(values[name] for name in step.operands))
            feeds = {values[name]: graph.arrays[name] if name in graph.arrays else random_graphs.fed_value(name) for name in graph.fed}
            try:
                facts.append([array.ravel() for array in session.run([values[name] for name in graph.fetched], feeds)])
            except tensorflow.errors.InvalidArgumentError as error:
                facts.append(next(name for name in ("x0", "x1") if f"placeholder tensor '{name}'" in str(error)))
    record.add("random_feeds_and_fetches", graphs=facts)


record_feeds_and_fetches()
record_partial_run()
record_handles()
record_ending_runs()
record_hooks()
record_numeric_checks()
record_control_flow()
record_states()
record_gradients()
record_training()
record_random_graphs()
record.write()

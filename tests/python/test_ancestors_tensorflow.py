"""Compares sessions with TensorFlow's recorded direct session (tests/ancestors/recorded/tensorflow.json)."""

import threading
import time

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import treadle
from treadle import errors
from treadle.train import JointModule, Trainer

import small_models as small
from recorded import Recorded, close, random_graphs
from recorded import networks as nets
from recorded import onnx_networks as models

TF = Recorded("tensorflow")
X = np.float32([[1, 2, 3]])
SHIFT = np.float32([0.5, -1, 0])


def affine(options=None):
    """Returns a model y = x * scale + shift, z = x + x."""
    nodes = [
        models.node("Mul", ["x", "scale"], ["scaled"]),
        models.node("Add", ["scaled", "shift"], ["y"]),
        models.node("Add", ["x", "x"], ["z"]),
    ]
    outputs = [models.value("y", ["N", 3]), models.value("z", ["N", 3])]
    model = models.model(nodes, [models.value("x", ["N", 3])], outputs, {"scale": np.float32([1, 2, 3]), "shift": SHIFT})
    return treadle.InferenceSession(model, options)


@pytest.fixture
def session():
    return affine()


def test_feeds_and_fetches(session):
    facts = TF("feeds_and_fetches")
    close(session.run(["scaled"], {"x": X})[0], facts["internal_value_fetched"])
    close(session.run(["y"], {"scaled": X})[0], facts["internal_value_fed"])
    close(session.run(["y"], {"x": X, "shift": SHIFT * 10})[0], facts["constant_fed"])
    close(session.run(["x", "y"], {"x": X})[0], facts["fed_value_fetched"])
    close(session.run(["y", "y"], {"x": X}), facts["fetched_twice"])
    close(session.run(["z"], {"x": X, "scaled": X})[0], facts["fed_and_not_needed"])
    assert list(session.run(["y"], {"x": X[:0]})[0].shape) == facts["no_rows"]


def test_feeds_and_fetches_that_do_not_fit(session):
    facts = TF("feeds_and_fetches")

    def raises(fact, kind, match, fetches, feeds):
        with pytest.raises(kind, match=match):
            session.run(fetches, feeds)
        return facts[fact][0]

    # The exceptions are those of onnxruntime: ValueError for a missing input, InvalidArgument for other faults of feeds and fetches.
    assert raises("missing", ValueError, "'x'", ["y"], {}) == "InvalidArgumentError"
    assert raises("unknown_fetch", errors.InvalidArgument, '"nothing"', ["nothing"], {"x": X}) == "ValueError"
    assert raises("unknown_feed", errors.InvalidArgument, '"nothing"', ["y"], {"x": X, "nothing": X}) == "TypeError"
    assert raises("wrong_shape", errors.InvalidArgument, r"axis 1 is 2, not 3", ["y"], {"x": X[:, :2]}) == "ValueError"
    assert raises("wrong_type", errors.InvalidArgument, "str", ["y"], {"x": np.array([["one", "two", "three"]])}) == "ValueError"
    # TensorFlow converts feeds to the placeholder's type. In Treadle, as in onnxruntime, a wrong type is an error.
    close(facts["whole_numbers_are_converted"], [[1.5, 3, 9]])
    with pytest.raises(errors.InvalidArgument, match="i32"):
        session.run(["y"], {"x": X.astype(np.int32)})
    close(session.run(["y"], {"x": X})[0], facts["usable_after_errors"])


def test_targets_and_metadata():
    facts = TF("targets_and_metadata")
    options = treadle.SessionOptions()
    options.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = affine(options)

    def run(fetches, targets):
        seen = []
        options = treadle.RunOptions()
        options.targets = targets
        options.on_metadata = seen.append
        return session.run(fetches, {"x": X}, options), {node.name: node for node in seen[0].nodes}

    outputs, nodes = run([], ["scaled"])
    assert (outputs, facts["target_gives"]) == ([], None)
    assert sorted(nodes) == facts["ran_for_a_target"]
    _, nodes = run(["y", "z"], [])
    assert sorted(nodes) == facts["ran_for_fetches"]
    assert (nodes["scaled"].end_ns <= nodes["y"].start_ns) == facts["scaled_ended_before_y_started"]
    assert all(node.scheduled_ns <= node.start_ns <= node.end_ns for node in nodes.values()) == facts["times_are_in_order"]


def test_a_partial_run():
    """In TensorFlow, the caller names the feeds and fetches of a partial run beforehand; in Treadle, Yield nodes in the graph do."""
    facts = TF("partial_run")
    nodes = [
        models.node("Add", ["x", "x"], ["a"]),
        models.node("Yield", ["a"], ["b"], domain="treadle"),
        models.node("Mul", ["b", "x"], ["y"]),
    ]
    session = treadle.InferenceSession(models.model(nodes, [models.value("x", [2])], [models.value("y", [2])]))
    x = np.float32([1, 2])

    def begin():
        run = session.partial_run({"x": x})
        assert not run.advance()
        return run, run.yielded["a"].numpy().copy()

    def advance_twice(run):
        assert not run.advance()  # the run waits for its input
        run.advance()

    def raises(fact, match, function, *arguments):
        assert facts[fact][0] == "InvalidArgumentError"
        with pytest.raises((errors.InvalidArgument, ValueError), match=match):
            function(*arguments)

    run, out = begin()
    close(out, facts["handed_out"])
    close(run.resume([out * 10])[0], facts["outputs"])
    raises("after_the_end", "at its end", run.resume, [out])
    (first, out_1), (second, out_2) = begin(), begin()
    close([first.resume([out_1 + 1])[0], second.resume([out_2 - 1])[0]], facts["interleaved"])
    run, out = begin()
    raises("before_its_feed", "not at its end", run.outputs)
    raises("undeclared_feed", "takes 1 values back, got 2", run.resume, [out, out])
    raises("set_up_without_a_needed_feed", '"x"', lambda: advance_twice(session.partial_run({})))
    raises("undeclared_feed", '"other"', lambda: session.partial_run({"x": x, "other": x}).advance())
    # TensorFlow allows one fetch of a value. In Treadle the outputs of a Yield can be read until the run is resumed.
    assert facts["fetched_again"] == ["InvalidArgumentError", "The fetch a:0 has already been fetched."]
    close(run.yielded["a"].numpy(), out)
    close(run.resume([out * 10])[0], facts["outputs"])


def test_tensors_kept_by_handle(session):
    facts = TF("handles")
    (handle,) = session.run_to_handles(["y"], {"x": X})
    close(handle.value().numpy(), facts["value"])
    close(session.run(["z"], {"x": handle})[0], facts["fed_by_handle"])
    # In Treadle a handle is an object, not a name in its session, so another session can be fed with it.
    assert facts["in_another_session"][0] == "InvalidArgumentError"
    close(affine().run(["z"], {"x": handle})[0], facts["fed_by_handle"])
    handle.delete()
    for fact, function in (
        ("read_after_delete", handle.value),
        ("read_after_delete", lambda: session.run(["z"], {"x": handle})),
        ("deleted_twice", handle.delete),
    ):
        assert facts[fact][0] == "InvalidArgumentError"
        with pytest.raises(errors.NotFound, match="keeps no value"):
            function()
    assert facts["not_a_handle"][0] == "ValueError"
    with pytest.raises(ValueError, match="no handle"):
        session.run(["z"], {"x": "no handle"})


def test_ending_runs():
    facts = TF("ending_runs")
    session = treadle.InferenceSession(small.endless_loop())
    options = treadle.RunOptions()
    options.deadline_ms = 200
    began = time.monotonic()
    with pytest.raises(errors.Fail) as caught:
        session.run(None, {"start": np.int64(0)}, options)
    assert (caught.value.code, facts["time_out"][0]) == ("timed_out", "DeadlineExceededError")
    assert (time.monotonic() - began < 5) == facts["time_out_within_five_seconds"]
    assert int(session.run(["total"], {"start": np.int64(1), "trips": np.int64(1)})[0]) == facts["usable_afterwards"]
    codes = []

    def work():
        with pytest.raises(errors.Fail) as caught:
            session.run(None, {"start": np.int64(0)})
        codes.append(caught.value.code)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    while session.runs_in_flight < 2:
        time.sleep(0.01)
    session.close()
    for thread in threads:
        thread.join(20)
    assert facts["runs_in_flight_when_closed"] == ["CancelledError"] * 2
    assert codes == ["cancelled"] * 2
    assert (not any(thread.is_alive() for thread in threads)) == facts["all_ended"]
    assert facts["later_run"] == ["RuntimeError", "Attempted to use a closed Session."]
    with pytest.raises(errors.Fail, match="the session is closed"):
        session.run(None, {"start": np.int64(0)})
    assert facts["closed_twice"] == ""
    session.close()


def logarithm():
    return small.model([small.node("Log", ["x"], ["y"], name="logs")], [small.tensor("x", ["N"])], [small.tensor("y", ["N"])])


def hooked_run(*names, fails="", bad=False):
    """Returns the calls that hooks with these names get during a run; the last is registered in the highest group."""
    session = treadle.InferenceSession(logarithm())
    calls, computed, hooks = [], [], []
    session.set_monitor(lambda event: computed.append(event.value), "y")

    def register(point, word, group, name):
        def act(run):
            calls.append(f"{word} {name}" + (": " + run.error.split("\n")[0] if run.error else ""))
            if fails == f"{word} {name}":
                raise KeyError(fails)

        hooks.append(treadle.hooks.register(point, group, act))

    for group, name in enumerate(names):
        register("pre_run", "before", group, name)
        register("post_run", "after", group, name)
    options = treadle.RunOptions()
    options.check_finite = "nan"
    error = ""
    try:
        session.run(None, {"x": np.float32([1, -1 if bad else 1])}, options)
    except Exception as caught:
        error = type(caught).__name__
    finally:
        for hook in hooks:
            hook.remove()
    return {"calls": calls, "error": error, "runs_computed": len(computed)}


def test_hooks():
    facts = TF("hooks")
    for fact, run in (
        ("two", hooked_run("first", "second")),
        ("fails_before", hooked_run("first", "second", fails="before second")),
        ("fails_after", hooked_run("first", "second", fails="after first")),
    ):
        assert run == facts[fact]
    # After a failure, TensorFlow does not call its hooks again. In Treadle, post-run actions get the error.
    assert facts["run_fails"] == {"calls": ["before first"], "error": "InvalidArgumentError", "runs_computed": 0}
    run = hooked_run("first", bad=True)
    assert run["error"] == "InvalidArgument"
    assert run["calls"] == ["before first", 'after first: Log node "logs" (ai.onnx, opset 13), while running:']


def test_numeric_checks():
    facts = TF("numeric_checks")
    session = treadle.InferenceSession(logarithm())
    options = treadle.RunOptions()
    options.check_finite = "all"
    assert facts["fine"] == ["", ""]
    session.run(None, {"x": np.float32([1, 2])}, options)
    for fact, x, word, match in (("nan", [1, -1], "NaN", r"NaN at \[1\]"), ("infinite", [0, 1], "Inf", r"infinite at \[0\]")):
        assert facts[fact] == ["InvalidArgumentError", f"logs : Tensor had {word} values"]
        with pytest.raises(errors.InvalidArgument, match=rf'(?s)"logs".*{match}'):
            session.run(None, {"x": np.float32(x)}, options)


def loop():
    """Returns a model with a Loop that computes v = v / 2 + x as often as an input says."""
    body = helper.make_graph(
        [models.node("Mul", ["v", "half"], ["h"]), models.node("Add", ["h", "x"], ["next"]), models.node("Identity", ["go"], ["go_on"])],
        "body",
        [small.tensor("i", [], TensorProto.INT64), small.tensor("go", [], TensorProto.BOOL), small.tensor("v", ["N"])],
        [small.tensor("go_on", [], TensorProto.BOOL), small.tensor("next", ["N"])],
    )
    return small.model(
        [small.node("Loop", ["rounds", "", "x"], ["y"], body=body)],
        [small.tensor("x", ["N"]), small.tensor("rounds", [], TensorProto.INT64)],
        [small.tensor("y", ["N"])],
        [numpy_helper.from_array(np.float32(0.5), "half")],
    )


def branch():
    """Returns a model with an If that computes exp(x) if the sum of x is positive, otherwise -x."""
    branches = {
        name: helper.make_graph([models.node(op, ["x"], [f"{op}_x"])], name, [], [small.tensor(f"{op}_x", ["N"])])
        for name, op in (("then_branch", "Exp"), ("else_branch", "Neg"))
    }
    nodes = [
        small.node("ReduceSum", ["x"], ["sum"], keepdims=0),
        small.node("Greater", ["sum", "zero"], ["positive"]),
        small.node("If", ["positive"], ["y"], **branches),
    ]
    return small.model(nodes, [small.tensor("x", ["N"])], [small.tensor("y", ["N"])], [numpy_helper.from_array(np.float32(0), "zero")])


def test_control_flow():
    facts = TF("control_flow", {"points": nets.POINTS})
    session = treadle.InferenceSession(loop())
    for rounds in (0, 1, 5):
        close(session.run(None, {"x": nets.POINTS, "rounds": np.int64(rounds)})[0], facts[f"rounds_{rounds}"])
    session = treadle.InferenceSession(branch())
    close(session.run(None, {"x": nets.POINTS})[0], facts["positive"])
    close(session.run(None, {"x": nets.POINTS - 3})[0], facts["negative"])


def test_states():
    """A variable in TensorFlow corresponds to a state of a StatefulRun in Treadle."""
    facts = TF("states")
    nodes = [
        small.node("Log", ["x"], ["checked"], name="logs"),
        small.node("Add", ["total", "x"], ["updated"]),
        small.node("Add", ["updated", "updated"], ["y"]),
    ]
    outputs = [small.tensor("y", [2]), small.tensor("updated", [2]), small.tensor("checked", [2])]
    session = treadle.InferenceSession(small.model(nodes, [small.tensor("x", [2]), small.tensor("total", [2])], outputs))
    runs = session.stateful({"total": "updated"})
    for i, expected in zip((1, 2, 3), facts["outputs"], strict=True):
        close(runs.run(["y"], {"x": np.float32([i, 2 * i])})[0], expected)
    options = treadle.RunOptions()
    options.check_finite = "nan"
    assert facts["failing_run_error"] == "InvalidArgumentError"
    with pytest.raises(errors.InvalidArgument, match="logs"):
        runs.run(["y", "checked"], {"x": np.float32([1, -1])}, options)
    close(runs.state("total"), facts["state_after_it"])
    runs.set_state("total", np.zeros(2, np.float32))
    close(runs.run(["y"], {"x": np.float32([5, 6])})[0], facts["output_after_a_reset"])


def test_gradients():
    facts = TF("gradients", {**nets.MLP, **nets.MLP_DATA})
    data, head = nets.MLP_DATA["data"], nets.MLP_DATA["head"]
    run = JointModule(models.mlp(), inputs=["data"]).forward({"data": data})
    close(run.outputs[0], facts["scores"])
    gradients = run.backward([head])
    assert set(gradients) == set(facts["gradients"])
    for name, gradient in facts["gradients"].items():
        close(gradients[name], gradient)
    close(treadle.InferenceSession(models.mlp()).run(None, {"fc1_output": np.ones((4, 6), np.float32)})[0], facts["hidden_fed"])
    last = JointModule(models.mlp(), parameters=["fc2_weight"]).forward({"data": data}).backward([head])
    assert list(last) == ["fc2_weight"]
    close(last["fc2_weight"], facts["without_the_hidden_layer"])


@pytest.mark.parametrize("kind", ["momentum", "nesterov"])
def test_training_with_momentum(kind):
    batches = nets.chain(20)["batches"][:10]
    facts = TF(f"training_{kind}", {**nets.MLP, "batches": batches})
    trainer = Trainer(models.mlp(), learning_rate=facts["rate"], momentum=facts["momentum"], nesterov=kind == "nesterov")
    close([trainer.step({"data": batch}, nets.MLP_LABELS) for batch in batches], facts["losses"], rtol=1e-3)
    for name, values in facts["parameters"].items():
        close(trainer.parameters[name], values, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
@pytest.mark.parametrize("seed", range(random_graphs.COUNT))
def test_random_feeds_and_fetches(seed, level):
    expected = TF("random_feeds_and_fetches")["graphs"][seed]
    graph = random_graphs.random_graph(seed)
    options = treadle.SessionOptions()
    options.graph_optimization_level = getattr(treadle.GraphOptimizationLevel, level)
    session = treadle.InferenceSession(models.random_model(graph), options)
    feeds = {name: graph.arrays[name] if name in graph.arrays else random_graphs.fed_value(name) for name in graph.fed}
    if isinstance(expected, str):  # TensorFlow's error names this placeholder as missing
        with pytest.raises((ValueError, errors.InvalidArgument), match=expected):
            session.run(graph.fetched, feeds)
        return
    close([array.ravel() for array in session.run(graph.fetched, feeds)], expected, atol=1e-5)


def test_every_recorded_scenario_is_replayed():
    assert TF.unread == []

"""Tests treadle.Session: calls, options as keywords, and results of runs, which must equal NumPy's."""

import copy
import pickle

import numpy as np
import onnx
import pytest

import small_models as small
import treadle
from keyword_stubs import keyword_types
from treadle import errors
from treadle._session_options import RUN_KEYWORDS, SESSION_KEYWORDS

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
Y = X * np.float32([1, 2, 3]) + np.float32([0.5, -1, 0])


def relu():
    return small.model([small.node("Relu", ["input.1"], ["y"])], [small.tensor("input.1", ["N", 3])], [small.tensor("y", ["N", 3])])


def sub():
    return small.model(
        [small.node("Sub", ["a", "b"], ["d"])], [small.tensor("a", ["N"]), small.tensor("b", ["N"])], [small.tensor("d", ["N"])]
    )


@pytest.fixture(scope="module")
def affine():
    return treadle.Session(small.affine())


def test_one_output_is_the_array():
    y = treadle.Session(relu())(-X)
    assert type(y) is np.ndarray
    np.testing.assert_array_equal(y, np.zeros_like(X))


@pytest.mark.parametrize("call", [lambda s, a, b: s(a, b), lambda s, a, b: s({"b": b, "a": a}), lambda s, a, b: s(b=b, a=a), lambda s, a, b: s(a, b=b)])
def test_inputs_go_by_place_or_by_name(call):
    a, b = np.float32([5, 7]), np.float32([1, 2])
    session = treadle.Session(sub())
    np.testing.assert_array_equal(call(session, a, b), a - b)
    np.testing.assert_array_equal(session.run((a, b)), a - b)


def test_an_input_may_have_any_name():
    names = ("self", "values")
    model = small.model([small.node("Add", list(names), ["named"])], [small.tensor(name, [2]) for name in names], [small.tensor("named", [2])])
    x = np.float32([1, 2])
    np.testing.assert_array_equal(treadle.Session(model)(self=x, values=x), 2 * x)


def test_any_mapping_names_inputs():
    class Features(dict):
        pass

    np.testing.assert_array_equal(treadle.Session(relu())(Features({"input.1": X})), X)


def test_several_outputs_are_a_tuple_with_names(affine):
    outputs = affine(X)
    y, z = outputs
    np.testing.assert_array_equal(y, Y)
    np.testing.assert_array_equal(z, X + X)
    assert outputs["y"] is outputs.y is outputs[0] is y
    assert dict(outputs).keys() == {"y", "z"}
    assert outputs.names == outputs.keys() == ("y", "z")
    assert [name for name, _ in outputs.items()] == ["y", "z"]
    assert "z" in outputs and "x" not in outputs
    assert (lambda y, z: z)(**outputs) is z
    assert repr(outputs) == "Outputs(y: float32[2, 3], z: float32[2, 3])"
    with pytest.raises(KeyError, match="there is no output 'w'; there are y, z"):
        outputs["w"]
    with pytest.raises(AttributeError, match="there is no output 'w'; there are y, z"):
        outputs.w


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda outputs: pickle.loads(pickle.dumps(outputs))])
def test_outputs_are_copied_with_their_names(affine, again):
    outputs = again(affine(X))
    assert type(outputs) is treadle.Outputs
    np.testing.assert_array_equal(outputs.z, X + X)


def test_a_run_computes_the_outputs_that_are_named(affine):
    np.testing.assert_array_equal(affine.run(X, "z"), X + X)
    outputs = affine.run(X, ["scaled", "y"])
    assert outputs.names == ("scaled", "y")
    np.testing.assert_array_equal(outputs.scaled, X * np.float32([1, 2, 3]))
    assert affine.run(X, ["z"]).names == ("z",)
    assert affine.run(X, []).names == ("y", "z")


def test_inputs_with_a_default_may_be_given(affine):
    np.testing.assert_array_equal(affine(X, shift=np.zeros(3, np.float32)).y, X * np.float32([1, 2, 3]))


def test_a_map_is_the_value_of_an_input_that_is_a_map():
    node = small.node("DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", string_vocabulary=["a", "b"])
    types = onnx.helper.make_map_type_proto(onnx.TensorProto.STRING, onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, []))
    session = treadle.Session(small.model([node], [onnx.helper.make_value_info("x", types)], [small.tensor("y", None)]))
    for value in ({"b": 2.0}, {"x": {"b": 2.0}}):
        np.testing.assert_array_equal(np.ravel(session(value)), [0, 2])


def test_wrong_inputs_are_errors_that_say_what_to_write(affine):
    with pytest.raises(TypeError, match="2 values are given; the inputs are x"):
        affine(X, X)
    with pytest.raises(TypeError, match="the input 'x' is given twice"):
        affine(X, x=X)
    with pytest.raises(TypeError, match="in a dict and by keyword"):
        affine({"x": X}, shift=X)
    with pytest.raises(ValueError, match="x"):
        affine()
    with pytest.raises(errors.InvalidArgument, match=r'write "x": array.astype\(np.float32\)'):
        affine(X.astype(np.float64))
    with pytest.raises(errors.InvalidArgument, match="no_such"):
        affine(X, no_such=X)
    with pytest.raises(errors.InvalidArgument, match="w"):
        affine.run(X, "w")


@pytest.mark.parametrize("form", [lambda path: path, str, lambda path: path.read_bytes(), onnx.load, lambda path: treadle.Model.load(str(path))])
def test_a_model_is_taken_in_every_form(tmp_path, form):
    path = tmp_path / "relu.onnx"
    path.write_bytes(relu())
    np.testing.assert_array_equal(treadle.Session(form(path))(-X), np.zeros_like(X))


def test_a_model_is_read_in_every_form(tmp_path):
    path = tmp_path / "relu.onnx"
    path.write_bytes(relu())
    for form in (path, str(path), path.read_bytes(), onnx.load(path)):
        model = treadle.Model(form)
        assert [info.name for info in model.inputs] == ["input.1"]
        assert treadle.Model(model).unsupported() == []


@pytest.mark.parametrize("take", [treadle.Session, treadle.Model, treadle.Trainer, treadle.explain, treadle.quantize])
def test_what_is_no_model_is_told_the_forms(take):
    with pytest.raises(TypeError, match=r"a path, the bytes of a file, a treadle.Model or an onnx.ModelProto, not int"):
        take(3)


def test_a_session_says_what_it_takes_and_gives(affine):
    assert [(info.name, info.type, info.shape) for info in affine.inputs] == [("x", "tensor(float)", ["N", 3])]
    assert [info.name for info in affine.outputs] == ["y", "z"]
    assert affine.metadata.producer_name == "tests"
    assert repr(affine).startswith("Session(x tensor(float) ['N', 3] -> y")


def test_options_are_keywords(tmp_path):
    session = treadle.Session(
        small.affine(),
        num_threads=1,
        execution_mode="parallel",
        graph_optimization_level=treadle.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        disabled_passes=("fuse-conv",),
        dimensions={"N": 2},
        initializers={"scale": np.ones(3, np.float32)},
        optimized_model_filepath=tmp_path / "optimized.onnx",
        memory_limit_bytes=1 << 30,
    )
    assert session.options.intra_op_num_threads == 1
    assert session.options.execution_mode == treadle.ExecutionMode.ORT_PARALLEL
    assert session.options.memory_limit_bytes == 1 << 30
    assert session.inputs[0].shape == [2, 3]
    assert (tmp_path / "optimized.onnx").exists()
    np.testing.assert_array_equal(session(X).y, X + np.float32([0.5, -1, 0]))


def test_keywords_win_over_options_which_stay_as_they_are():
    options = treadle.SessionOptions()
    options.precision = "bfloat16"
    session = treadle.Session(small.affine(), options, precision="float32", num_threads=2)
    assert (session.options.precision, session.options.intra_op_num_threads) == ("float32", 2)
    assert (options.precision, options.intra_op_num_threads) == ("bfloat16", 0)


def test_wrong_options_are_errors_that_say_what_is_expected(affine):
    with pytest.raises(TypeError, match="'num_thread'; is it num_threads"):
        treadle.Session(small.affine(), num_thread=1)
    with pytest.raises(TypeError, match="the same option"):
        treadle.Session(small.affine(), num_threads=1, intra_op_num_threads=1)
    with pytest.raises(TypeError, match=r"num_threads is 'two'; .*whole number"):
        treadle.Session(small.affine(), num_threads="two")
    with pytest.raises(errors.InvalidArgument, match="sequential or parallel is expected"):
        treadle.Session(small.affine(), execution_mode="both")
    with pytest.raises(TypeError, match="'deadline'; is it deadline_ms"):
        affine.run(X, deadline=1)
    with pytest.raises(TypeError, match="options and the keyword 'deadline_ms'"):
        affine.run(X, options=treadle.RunOptions(), deadline_ms=1)


def test_options_of_a_run_are_keywords():
    session = treadle.Session(small.affine(), small_options())
    with pytest.raises(errors.InvalidArgument, match="scaled"):
        session.run(np.full((1, 3), np.inf, np.float32), check_finite="all")
    token = treadle.CancelToken()
    token.cancel()
    with pytest.raises(errors.Fail) as error:
        session.run(X, cancel_token=token)
    assert error.value.code == "cancelled"
    seen = []
    session.run(X, on_metadata=seen.append)
    assert [node.op_type for node in seen[0].nodes] == ["Mul", "Add", "Add"]


def small_options():
    options = treadle.SessionOptions()
    options.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


# Options that have no effect but that programs for onnxruntime set, and options of onnxruntime's profiler, in place of which treadle has
# treadle.profile.
KEPT = {"enable_cpu_mem_arena", "enable_mem_pattern", "execution_order", "logid", "log_severity_level", "log_verbosity_level"}
KEPT |= {"use_deterministic_compute", "use_per_session_threads", "enable_profiling", "profile_file_prefix"}
KEPT_OF_RUNS = {"log_severity_level", "log_verbosity_level", "only_execute_path_to_fetches", "terminate"}


@pytest.mark.parametrize(
    ("keywords", "options", "less", "more"),
    [
        (SESSION_KEYWORDS, treadle.SessionOptions, KEPT - {"log_severity_level"}, {"dimensions", "initializers"}),
        (RUN_KEYWORDS, treadle.RunOptions, KEPT_OF_RUNS, set()),
    ],
)
def test_keywords_are_the_options(keywords, options, less, more):
    attributes = {name for name in dir(options) if not name.startswith("_") and not callable(getattr(options(), name))}
    assert set(keywords) == attributes - less | more
    assert set(keyword_types(options.__name__.replace("Options", "Keywords"))) == set(keywords)


def test_type_checkers_know_what_keywords_take():
    types = keyword_types("SessionKeywords")
    assert types["intra_op_num_threads"] == "int"
    assert types["cache_dir"] == "str | os.PathLike[str]"
    assert types["execution_mode"] == "enums.ExecutionMode | Literal['sequential', 'parallel']"
    assert types["disabled_passes"] == "Iterable[str]"
    assert types["thread_pool"] == "_treadle.ThreadPool | None"
    assert keyword_types("RunKeywords")["on_metadata"] == "Callable[[_treadle.RunMetadata], None] | None"


def test_attributes_take_what_keywords_take(tmp_path):
    options = treadle.SessionOptions()
    options.execution_mode, options.cache_dir = "parallel", tmp_path
    assert (options.execution_mode, options.cache_dir) == (treadle.ExecutionMode.ORT_PARALLEL, str(tmp_path))
    with pytest.raises(errors.InvalidArgument, match="execution_mode"):
        options.execution_mode = "all at once"


def test_docstrings_have_every_keyword():
    for function, keywords in ((treadle.Session, SESSION_KEYWORDS), (treadle.Session.run, RUN_KEYWORDS)):
        for name in keywords:
            assert f":param {name}: " in function.__doc__


def test_an_inference_session_is_called_alike():
    session = treadle.InferenceSession(small.affine())
    np.testing.assert_array_equal(session(X).z, X + X)
    np.testing.assert_array_equal(session.run(None, {"x": X})[1], X + X)


def test_classes_derived_from_an_inference_session_have_attributes_of_their_own():
    class Classifier(treadle.InferenceSession):
        def __init__(self, model):
            super().__init__(model)
            self.inputs = [info.name for info in self.get_inputs()]
            self.metadata = self.options = self.outputs = None

    session = Classifier(small.affine())
    assert session.inputs == ["x"]
    np.testing.assert_array_equal(session(X).z, X + X)


def test_a_session_is_profiled_and_stopped_like_any_other(affine):
    with treadle.profile(affine, peaks=False) as profile:
        affine(X)
    assert profile.data["runs"]["recorded"] == 1
    session = treadle.Session(small.affine())
    run = session.partial_run(X)
    assert run.advance()
    np.testing.assert_array_equal(run.outputs()[1], X + X)
    session.close()
    with pytest.raises(errors.Fail):
        session(X)


def test_text_of_a_stage_has_the_fields_spelling(affine):
    assert affine.to_text() == affine.to_text("optimized") != affine.to_text("planned")
    with pytest.raises(errors.Error):
        affine.to_text("compiled")


def test_memory_is_reported_by_one_verb():
    """The model has 1,000 float32 weights, and a constant that must not be folded. The values of the run are in the arena."""
    weights = onnx.numpy_helper.from_array(np.ones((20, 50), np.float32), "w")
    nodes = [small.node("MatMul", ["x", "w"], ["a"]), small.node("Softmax", ["a"], ["b"]), small.node("MatMul", ["b", "w2"], ["y"])]
    again = onnx.numpy_helper.from_array(np.ones((50, 4), np.float32), "w2")
    session = treadle.Session(small.model(nodes, [small.tensor("x", ["N", 20])], [small.tensor("y", ["N", 4])], [weights, again]))
    session(np.ones((100, 20), np.float32))
    report = session.memory()
    assert report.weight_bytes >= 4 * (20 * 50 + 50 * 4)
    assert report["activations"].peak_bytes >= report.arena_bytes >= report.arena_lower_bound_bytes >= 4 * 100 * 50
    assert report.bytes == sum(held.bytes for name, held in report.classes.items() if name != "total")
    assert report.peak_bytes >= report.bytes > 0
    assert [line.split()[0] for line in str(report).splitlines()][-1] == "total"
    with pytest.raises(KeyError):
        report["no_such"]


def test_stateful_runs_are_called_like_sessions():
    """The model computes total' = total + x and twice = 2 x, so the state is the sum of all inputs."""
    nodes = [small.node("Add", ["total", "x"], ["next"]), small.node("Add", ["x", "x"], ["twice"]), small.node("Identity", ["next"], ["sum"])]
    model = small.model(nodes, [small.tensor("total", [2]), small.tensor("x", [2])], [small.tensor(name, [2]) for name in ("next", "twice", "sum")])
    runs = treadle.Session(model).stateful({"total": "next"})
    x = np.float32([1, 2])
    for step, call in enumerate((lambda: runs(x), lambda: runs(x=x), lambda: runs({"x": x})), start=1):
        outputs = call()
        assert outputs.names == ("twice", "sum")
        np.testing.assert_array_equal(outputs.sum, step * x)
    np.testing.assert_array_equal(runs.state("total"), 3 * x)
    with pytest.raises(TypeError, match="2 values are given; the inputs are x"):
        runs(x, x)

"""Compares sessions with ONNX Runtime: runs, names, errors and metadata."""

import json
import logging
import pathlib
import subprocess
import sys
import threading

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from onnx import TensorProto, helper

import treadle
from treadle import errors

import small_models as small

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


def assert_same(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def session():
    return treadle.InferenceSession(small.affine())


@pytest.fixture(scope="module")
def reference(ort):
    return ort.InferenceSession(small.affine(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("names", [None, [], ["y"], ["z"], ["z", "y"], ["y", "y"]])
def test_outputs_are_those_named_in_their_order(session, reference, names):
    assert_same(session.run(names, {"x": X}), reference.run(names, {"x": X}))


def test_an_overridable_initializer_may_be_fed(session, reference):
    feeds = {"x": X, "shift": np.array([10, 20, 30], np.float32)}
    assert_same(session.run(None, feeds), reference.run(None, feeds))
    assert_same(session.run(None, {"x": X}), reference.run(None, {"x": X}))


def describe(args):
    return [(arg.name, arg.type, arg.shape) for arg in args]


def test_declarations_are_those_of_onnxruntime(session, reference):
    assert describe(session.get_inputs()) == describe(reference.get_inputs()) == [("x", "tensor(float)", ["N", 3])]
    assert describe(session.get_outputs()) == describe(reference.get_outputs())
    assert describe(session.get_overridable_initializers()) == describe(reference.get_overridable_initializers())
    assert str(session.get_inputs()[0]) == str(reference.get_inputs()[0])


@pytest.mark.parametrize(
    "declared",
    [
        small.tensor("x", [None, "M", 2, 0]),
        small.tensor("x", []),
        small.tensor("x", None),
        small.tensor("x", [2], TensorProto.STRING),
        small.tensor("x", [2], TensorProto.DOUBLE),
        small.tensor("x", [2], TensorProto.FLOAT16),
        small.tensor("x", [2], TensorProto.BOOL),
        small.sequence("x", ["N"]),
    ],
    ids=str,
)
def test_shapes_and_types_are_written_as_onnxruntime_writes_them(ort, declared):
    output = type(declared)()
    output.CopyFrom(declared)
    output.name = "y"
    bytes_ = small.model([small.node("Identity", ["x"], ["y"])], [declared], [output])
    theirs = ort.InferenceSession(bytes_, providers=["CPUExecutionProvider"])
    assert describe(treadle.InferenceSession(bytes_).get_inputs()) == describe(theirs.get_inputs())


def test_metadata_is_that_of_onnxruntime(session, reference):
    ours, theirs = session.get_modelmeta(), reference.get_modelmeta()
    for name in ("producer_name", "graph_name", "domain", "description", "graph_description", "version", "custom_metadata_map"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.producer_version == "7"
    assert ours.opsets == {"": 21, "ai.onnx.ml": 3}


def test_a_model_may_be_a_path_a_path_object_or_bytes(tmp_path, session):
    path = tmp_path / "modèle.onnx"
    path.write_bytes(small.affine())
    expected = session.run(None, {"x": X})
    for source in (str(path), pathlib.Path(path), path.read_bytes(), bytearray(path.read_bytes()), memoryview(path.read_bytes())):
        assert_same(treadle.InferenceSession(source).run(None, {"x": X}), expected)


def test_missing_inputs_are_a_value_error_that_names_them(session, reference):
    for runner in (session, reference):
        with pytest.raises(ValueError, match=r"Required inputs \(\['x'\]\) are missing from input feed \(\['y'\]\)"):
            runner.run(None, {"y": X})


@pytest.mark.parametrize(
    ("names", "feeds", "words"),
    [
        (None, {"x": X, "unknown": X}, ["unknown"]),
        (["nowhere"], {"x": X}, ["nowhere"]),
        (None, {"x": X.astype(np.float64)}, ["x", "f64", "f32"]),
        (None, {"x": X[:, :2]}, ["x", "[2,2]", "3"]),
        (None, {"x": X[0]}, ["x", "rank", "[3]"]),
        (None, {"x": [X]}, ["x", "rank"]),
        (None, {"x": None}, ["x", "tensor(float)"]),
    ],
)
def test_bad_feeds_are_invalid_arguments_that_name_the_input(session, names, feeds, words):
    with pytest.raises(errors.InvalidArgument) as caught:
        session.run(names, feeds)
    for word in words:
        assert word in str(caught.value)
    assert caught.value.code == "invalid_argument"
    session.run(None, {"x": X})  # the session must still be usable


@pytest.mark.parametrize("value", [np.array(["2026-11-21"], "datetime64[D]"), np.zeros(3, np.longdouble)])
def test_dtypes_that_onnx_lacks_are_refused_by_name(session, value):
    with pytest.raises(ValueError, match='input "x"'):
        session.run(None, {"x": value})


def test_lists_and_numbers_are_taken_as_arrays(session, reference):
    feeds = {"x": X.tolist()}
    assert_same(session.run(None, feeds), reference.run(None, feeds))
    scalar = small.model([small.node("Neg", ["x"], ["y"])], [small.tensor("x", [])], [small.tensor("y", [])])
    assert treadle.InferenceSession(scalar).run(None, {"x": 1.5})[0] == -1.5


@pytest.mark.parametrize(
    ("source", "exception"),
    [
        (b"garbage", errors.InvalidProtobuf),
        (small.affine()[:-7], errors.InvalidProtobuf),
        ("/nowhere/model.onnx", errors.NoSuchFile),
        ("", errors.NoModel),
        (3, TypeError),
        (
            small.model([small.node("Nope", ["x"], ["y"])], [small.tensor("x", [1])], [small.tensor("y", [1])]),
            errors.NotImplemented,
        ),
        (
            small.model([small.node("Add", ["x", "q"], ["y"])], [small.tensor("x", [1])], [small.tensor("y", [1])]),
            errors.InvalidGraph,
        ),
    ],
    ids=["garbage", "truncated", "no file", "empty path", "a number", "unknown operator", "undefined value"],
)
def test_bad_models_raise_the_exception_of_their_kind(source, exception):
    with pytest.raises(exception):
        treadle.InferenceSession(source)


def test_unknown_operators_are_named():
    bytes_ = small.model(
        [small.node("Nope", ["x"], ["y"]), small.node("Nada", ["y"], ["z"])], [small.tensor("x", [1])], [small.tensor("z", [1])]
    )
    with pytest.raises(errors.NotImplemented, match="(?s)Nope.*Nada|Nada.*Nope"):
        treadle.InferenceSession(bytes_)


def test_exceptions_have_the_names_of_onnxruntime(ort):
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    theirs = {name for name in dir(state) if isinstance(getattr(state, name), type) and issubclass(getattr(state, name), Exception)}
    assert theirs
    for name in theirs:
        assert issubclass(getattr(errors, name), Exception), name


def test_unknown_providers_are_warned_about_and_ignored():
    with pytest.warns(UserWarning, match="NoSuchExecutionProvider"):
        session = treadle.InferenceSession(small.affine(), providers=["NoSuchExecutionProvider", "CPUExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert session.get_provider_options() == {"CPUExecutionProvider": {}}


@pytest.mark.parametrize(
    ("providers", "provider_options"),
    [
        ("CPUExecutionProvider", None),
        ([3], None),
        (["CPUExecutionProvider"], [{}, {}]),
        (["CPUExecutionProvider"], ["x"]),
        ([("CPUExecutionProvider", {})], [{}]),
    ],
)
def test_malformed_providers_are_value_errors(providers, provider_options):
    with pytest.raises(ValueError, match="provider"):
        treadle.InferenceSession(small.affine(), providers=providers, provider_options=provider_options)


def test_providers_may_carry_options():
    session = treadle.InferenceSession(small.affine(), providers=[("CPUExecutionProvider", {"use_arena": 1})])
    assert session.get_provider_options() == {"CPUExecutionProvider": {"use_arena": "1"}}


def test_a_run_in_the_background_calls_back(session):
    done = threading.Event()
    seen = []

    def callback(results, user_data, error):
        seen.append((results, user_data, error))
        done.set()

    session.run_async(["z"], {"x": X}, callback, "mine")
    assert done.wait(60)
    (results, user_data, error) = seen.pop()
    np.testing.assert_array_equal(results[0], X + X)
    assert (user_data, error) == ("mine", "")

    done.clear()
    session.run_async(None, {"x": X[0]}, callback, None)
    assert done.wait(60)
    assert "x" in seen[0][2]
    assert seen[0][0] == []


def test_a_terminated_run_fails(session):
    options = treadle.RunOptions()
    options.terminate = True
    with pytest.raises(errors.Fail) as caught:
        session.run(None, {"x": X}, options)
    assert caught.value.code == "cancelled"
    options.terminate = False
    session.run(None, {"x": X}, options)


FLOATS = TensorProto.FLOAT
SHAPES = {
    "by an operator of pixels": ([("Conv", ["x", "w"], {"pads": [1, 1, 1, 1]})], {"x": ["N", 3, 8, 8]}, {"w": (4, 3, 3, 3)}),
    "symbols that stay": ([("Add", ["x", "w"], {})], {"x": ["N", "M"]}, {"w": (1,)}),
    "unnamed extents": ([("Add", ["x", "w"], {})], {"x": [None, 3]}, {"w": (1,)}),
    "a product": ([("MatMul", ["x", "w"], {})], {"x": ["batch", "length", 6]}, {"w": (6, 5)}),
    "a scalar": ([("ReduceSum", ["x"], {"keepdims": 0})], {"x": ["N", 3]}, {}),
    "numbers alone": ([("Transpose", ["x"], {"perm": [1, 0]})], {"x": [2, 3]}, {}),
    "behind several": ([("Relu", ["x"], {}), ("Concat", ["", "x"], {"axis": 1}), ("Softmax", [""], {})], {"x": ["N", 3]}, {}),
    "symbols of two inputs": ([("Concat", ["x", "z"], {"axis": 0})], {"x": ["N", 3], "z": ["M", 3]}, {}),
    "as data say": ([("NonZero", ["x"], {})], {"x": ["N", 3]}, {}),
    "of unknown rank": ([("Relu", ["x"], {})], {"x": None}, {}),
    "a pool": ([("MaxPool", ["x"], {"kernel_shape": [2, 2], "strides": [2, 2]})], {"x": ["N", 3, "H", 9]}, {}),
    "flat": ([("Flatten", ["x"], {"axis": 1})], {"x": ["N", 3, 4]}, {}),
}


def undeclared(nodes, inputs, weights, declared):
    made, last = [], None
    for i, (op_type, operands, attributes) in enumerate(nodes):
        output = "y" if i + 1 == len(nodes) else f"v{i}"
        made.append(helper.make_node(op_type, [name or last for name in operands], [output], **attributes))
        last = output
    elem_type = TensorProto.INT64 if nodes[-1][0] == "NonZero" else FLOATS
    output = helper.make_empty_tensor_value_info("y") if declared == "nothing" else helper.make_tensor_value_info("y", elem_type, declared)
    given = [onnx.numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in weights.items()]
    graph = helper.make_graph(made, "graph", [helper.make_tensor_value_info(name, FLOATS, shape) for name, shape in inputs.items()], [output], given)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


@pytest.mark.parametrize("declared", ["nothing", "a type", "symbols"])
@pytest.mark.parametrize("what", SHAPES)
def test_outputs_have_the_extents_that_onnxruntime_infers(ort, what, declared):
    """Treadle may know extents that onnxruntime does not know."""
    nodes, inputs, weights = SHAPES[what]
    shape = "nothing" if declared == "nothing" else None
    theirs = ort.InferenceSession(undeclared(nodes, inputs, weights, shape)).get_outputs()[0]
    if declared == "symbols":
        if not theirs.shape:
            pytest.skip("no extent to name")
        shape = [f"d{axis}" for axis in range(len(theirs.shape))]
        theirs = ort.InferenceSession(undeclared(nodes, inputs, weights, shape)).get_outputs()[0]
    made = undeclared(nodes, inputs, weights, shape)
    for level in (treadle.GraphOptimizationLevel.ORT_DISABLE_ALL, treadle.GraphOptimizationLevel.ORT_ENABLE_ALL):
        options = treadle.SessionOptions()
        options.graph_optimization_level = level
        ours = treadle.InferenceSession(made, options).get_outputs()[0]
        assert (ours.name, ours.type, len(ours.shape)) == (theirs.name, theirs.type, len(theirs.shape))
        assert [mine for mine, extent in zip(ours.shape, theirs.shape) if extent is not None] == [extent for extent in theirs.shape if extent is not None]


def test_extents_that_options_give_symbols_reach_the_outputs(ort):
    nodes, inputs, weights = SHAPES["a product"]
    made = undeclared(nodes, inputs, weights, None)
    found = []
    for module in (ort, treadle):
        options = module.SessionOptions()
        options.add_free_dimension_override_by_name("length", 7)
        found.append(module.InferenceSession(made, options).get_outputs()[0].shape)
    assert found[0] == found[1] == ["batch", 7, 5]


@pytest.mark.parametrize("what", ["a constant", "an input as it is", "a folded value"])
def test_a_terminated_run_fails_where_nothing_is_left_to_run(what):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    constant = helper.make_node("Constant", [], ["y" if what == "a constant" else "c"], value_floats=[1.0, 2.0])
    nodes = {"a constant": [constant], "an input as it is": [], "a folded value": [constant, helper.make_node("Neg", ["c"], ["y"])]}[what]
    graph = helper.make_graph(nodes, "graph", [x], [y] if nodes else [x])
    session = treadle.InferenceSession(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())
    feeds, options = {"x": np.zeros(2, np.float32)}, treadle.RunOptions()
    for execution in (lambda: session.run(None, feeds, options), lambda: session.partial_run(feeds, run_options=options).advance()):
        options.terminate = True
        with pytest.raises(errors.Fail) as caught:
            execution()
        assert caught.value.code == "cancelled"
        options.terminate = False
        execution()


def test_outputs_stay_valid_after_session_and_later_runs():
    session = treadle.InferenceSession(small.affine())
    first = session.run(["z"], {"x": X})[0]
    session.run(["z"], {"x": X + 100})
    del session
    np.testing.assert_array_equal(first, X + X)
    first += 1  # outputs belong to the caller


def test_outputs_that_are_inputs_or_constants_are_copies():
    bytes_ = small.model(
        [small.node("Identity", ["x"], ["y"]), small.node("Identity", ["w"], ["v"])],
        [small.tensor("x", [3])],
        [small.tensor("y", [3]), small.tensor("v", [2])],
        [helper.make_tensor("w", TensorProto.FLOAT, [2], [1, 2])],
    )
    session = treadle.InferenceSession(bytes_)
    x = np.arange(3, dtype=np.float32)
    y, v = session.run(None, {"x": x})
    assert not np.shares_memory(x, y)
    y += 1
    v += 1
    np.testing.assert_array_equal(x, [0, 1, 2])
    np.testing.assert_array_equal(session.run(["v"], {"x": x})[0], [1, 2])


def test_warnings_go_to_pythons_logging_as_the_severity_says(caplog):
    from treadle import environment

    with caplog.at_level(logging.WARNING, logger="treadle"):
        environment._warn("by default", -1)
        environment._warn("silenced by the session", 3)
        treadle.set_default_logger_severity(3)
        try:
            environment._warn("silenced by the default", -1)
        finally:
            treadle.set_default_logger_severity(2)
    assert [record.message for record in caplog.records] == ["by default"]


def test_profiles_are_written_where_asked(tmp_path):
    options = treadle.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile_")
    options.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL  # this option keeps the model's node
    session = treadle.InferenceSession(small.affine(), options)
    session.run(None, {"x": X})
    assert session.get_profiling_start_time_ns() > 0
    path = pathlib.Path(session.end_profiling())
    assert path.parent == tmp_path
    assert path.name.startswith("profile_2"), "as onnxruntime names it"
    again = treadle.InferenceSession(small.affine(), options)
    assert pathlib.Path(again.end_profiling()) != path, "also within a second"
    assert "Mul" in path.read_text()


UNENDED = """
import sys, numpy as np, {package} as package
options = package.SessionOptions()
options.enable_profiling, options.profile_file_prefix = True, sys.argv[2]
session = package.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
session.run(None, {{"x": np.ones((2, 3), np.float32)}})
if sys.argv[3] == "del":
    del session
"""


@pytest.mark.parametrize("how", ["del", "the process ends"])
@pytest.mark.parametrize("package", ["treadle", "onnxruntime"])
def test_a_session_that_is_never_ended_leaves_its_profile(tmp_path, ort, package, how):
    (tmp_path / "m.onnx").write_bytes(small.identity(TensorProto.FLOAT, ("n", 3)))
    subprocess.run([sys.executable, "-c", UNENDED.format(package=package), str(tmp_path / "m.onnx"), str(tmp_path / "profile_"), how], check=True, timeout=120)
    (path,) = tmp_path.glob("profile_*")
    events = json.loads(path.read_text())
    assert [event["name"] for event in events].count("model_run") == 1


def test_a_profile_that_was_asked_for_is_not_written_again(tmp_path):
    options = treadle.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile_")
    session = treadle.InferenceSession(small.affine(), options)
    session.run(None, {"x": X})
    session.end_profiling()
    assert session.end_profiling() == ""
    del session
    assert len(list(tmp_path.glob("profile_*"))) == 1


def test_a_profile_has_events_of_the_session_its_runs_and_their_nodes(tmp_path):
    options = treadle.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile_")
    options.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = small.affine()
    session = treadle.InferenceSession(model, options)
    for _ in range(2):
        session.run(None, {"x": X})
    events = json.loads(pathlib.Path(session.end_profiling()).read_text())
    assert [event["name"] for event in events].count("session_initialization") == 1
    runs = [event for event in events if event["name"] == "model_run"]
    nodes = [event for event in events if event["name"].endswith("_kernel_time")]
    operators = [node.op_type for node in onnx.load_from_string(model).graph.node]
    assert len(runs) == 2
    assert [node["args"]["op_name"] for node in nodes] == 2 * operators
    for run, first, last in zip(runs, nodes[:: len(operators)], nodes[len(operators) - 1 :: len(operators)], strict=True):
        assert run["ts"] <= first["ts"]
        assert last["ts"] + last["dur"] <= run["ts"] + run["dur"]


def test_without_profiling_there_is_no_profile(session, reference):
    for each in (session, reference):
        assert each.end_profiling() == each._sess.end_profiling() == ""
    assert session.get_profiling_start_time_ns() == 0

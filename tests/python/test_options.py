"""Checks that options, enums and the module's functions have ONNX Runtime's names, defaults and values."""

import json
import subprocess

import numpy as np
import onnx
import pytest

import treadle
from treadle import errors

import small_models as small

X = np.array([[1, 2, 3]], np.float32)


def public_names(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


@pytest.mark.parametrize("kind", ["SessionOptions", "RunOptions"])
def test_options_have_all_names_and_defaults(ort, kind):
    ours, theirs = getattr(treadle, kind)(), getattr(ort, kind)()
    assert public_names(theirs) <= public_names(ours)
    for name in public_names(theirs):
        value = getattr(theirs, name)
        if callable(value):
            continue
        mine = getattr(ours, name)
        if hasattr(value, "name") and hasattr(value, "value"):
            assert (mine.name, mine.value) == (value.name, int(value.value)), name
        else:
            assert mine == value, name
        setattr(ours, name, mine)


@pytest.mark.parametrize(
    "name",
    [
        "ExecutionMode",
        "ExecutionOrder",
        "GraphOptimizationLevel",
        "OrtAllocatorType",
        "OrtCompileApiFlags",
        "OrtDeviceMemoryType",
        "OrtExecutionProviderDevicePolicy",
        "OrtHardwareDeviceType",
        "OrtMemType",
        "OrtMemoryInfoDeviceType",
        "OrtSparseFormat",
    ],
)
def test_enums_have_all_names_and_values(ort, name):
    ours, theirs = getattr(treadle, name), getattr(ort, name)
    assert {key: int(value) for key, value in ours.__members__.items()} == {key: int(value) for key, value in theirs.__members__.items()}


@pytest.mark.parametrize("kind", ["InferenceSession", "IOBinding", "OrtValue", "SparseTensor", "NodeArg", "ModelMetadata", "OrtDevice"])
def test_classes_have_all_public_names(ort, kind):
    assert public_names(getattr(ort, kind)) <= public_names(getattr(treadle, kind))


def test_unknown_attributes_are_refused():
    with pytest.raises(AttributeError):
        treadle.SessionOptions().no_such_option = 1


@pytest.mark.parametrize(("kind", "table"), [("SessionOptions", "options"), ("RunOptions", "run_options")])
def test_every_row_of_the_tables_is_in_python(program, kind, table):
    listed = json.loads(subprocess.run([program, "options", "--json"], capture_output=True, text=True, check=True).stdout)
    for row in listed[table]:
        name = row["python"]
        if name == "-":
            continue
        options = getattr(treadle, kind)()
        if name.endswith("()"):
            assert callable(getattr(options, name[:-2])), name
            continue
        value = getattr(options, name)
        setattr(options, name, value)
        assert getattr(options, name) == value, name
        assert getattr(type(options), name).__doc__, name
        if isinstance(value, bool):
            setattr(options, name, not value)
            assert getattr(options, name) is not value, name


@pytest.mark.parametrize("kind", ["SessionOptions", "RunOptions"])
def test_every_name_says_what_it_is(kind):
    options = getattr(treadle, kind)
    said = {name: (getattr(options, name).__doc__ or "").split("\n\n")[-1] for name in public_names(options)}  # behind the signature
    assert [name for name, text in said.items() if not text or text.startswith(("(self", f"{name}("))] == []


def test_options_of_numbers_keep_to_their_range():
    options = treadle.SessionOptions()
    options.compute_streams = 2
    with pytest.raises(errors.InvalidArgument, match="the option compute_streams: .*from 1 to 64"):
        options.compute_streams = 65
    assert options.compute_streams == 2
    with pytest.raises(errors.InvalidArgument, match="memory_fraction"):
        options.memory_fraction = 1.5
    with pytest.raises(errors.InvalidArgument, match="precision.*bfloat17"):
        options.precision = "bfloat17"
    options.optimized_model_data_file, options.optimized_model_data_threshold = "weights.bin", 10
    assert (options.optimized_model_data_file, options.optimized_model_data_threshold) == ("weights.bin", 10)
    options.intra_op_num_threads = -1  # programs written for onnxruntime pass this value


def test_lists_and_maps_are_read_only():
    options, run_options = treadle.SessionOptions(), treadle.RunOptions()
    for holder, name, key, value in [
        (options, "config", "treadle.device", "sim"),
        (options, "group2ctx", "left", "sim"),
        (options, "argument_devices", "x", "sim"),
        (run_options, "output_devices", "y", "sim"),
        (run_options, "output_allocators", "y", None),
    ]:
        with pytest.raises(TypeError):
            getattr(holder, name)[key] = value
    for holder, name in [(options, "disabled_passes"), (run_options, "targets")]:
        with pytest.raises(AttributeError):
            getattr(holder, name).append("remove-dead")
        setattr(holder, name, ["one", "two"])
        assert list(getattr(holder, name)) == ["one", "two"]
    options.group2ctx = {"left": "sim"}
    assert dict(options.group2ctx) == {"left": "sim"}
    with pytest.raises(errors.NotFound, match="treadle.device"):
        options.config = {"treadle.devic": "sim"}


def test_config_entries_that_do_not_exist_are_errors_with_the_nearest():
    with pytest.raises(errors.NotFound, match="treadle.execution_mode"):
        treadle.SessionOptions().add_session_config_entry("treadle.execution_mod", "parallel")
    with pytest.raises(errors.NotFound, match='the option\'s is "treadle.execution_mode"'):
        treadle.SessionOptions().add_session_config_entry("execution_mode", "parallel")
    options = treadle.RunOptions()
    with pytest.raises(errors.NotFound, match="treadle.check_finite"):
        options.add_run_config_entry("treadle.check_finit", "nan")
    options.add_run_config_entry("treadle.check_finite", "nan")
    assert options.check_finite == "nan"


def test_config_entries_are_kept():
    options = treadle.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    with pytest.raises(RuntimeError, match="no.such.key"):
        options.get_session_config_entry("no.such.key")
    run_options = treadle.RunOptions()
    run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    assert run_options.get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0"
    with pytest.raises(RuntimeError, match="no.such.key"):
        run_options.get_run_config_entry("no.such.key")


def test_the_sessions_options_are_a_copy():
    options = treadle.SessionOptions()
    options.intra_op_num_threads = 1
    session = treadle.InferenceSession(small.affine(), options)
    options.intra_op_num_threads = 2
    assert session.get_session_options().intra_op_num_threads == 1


@pytest.mark.parametrize("level", list(treadle.GraphOptimizationLevel))
@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("threads", [0, 1, 3])
def test_options_do_not_change_results(level, reuse, threads):
    options = treadle.SessionOptions()
    options.graph_optimization_level = level
    options.enable_mem_reuse = reuse
    options.intra_op_num_threads = threads
    session = treadle.InferenceSession(small.affine(), options)
    np.testing.assert_array_equal(session.run(["y"], {"x": X})[0], X * [1, 2, 3] + np.float32([0.5, -1, 0]))


def test_free_dimensions_may_be_fixed_by_name():
    options = treadle.SessionOptions()
    options.add_free_dimension_override_by_name("N", 1)
    session = treadle.InferenceSession(small.affine(), options)
    session.run(None, {"x": X})
    with pytest.raises(errors.InvalidArgument, match="x"):
        session.run(None, {"x": np.vstack([X, X])})


def test_an_extent_below_0_leaves_a_dimension_free(ort):
    for module in (ort, treadle):
        options = module.SessionOptions()
        options.add_free_dimension_override_by_name("N", -1)
        session = module.InferenceSession(small.affine(), options)
        for x in (X, np.vstack([X, X])):
            assert session.run(["y"], {"x": x})[0].shape == x.shape


def test_a_free_dimension_that_no_input_has_is_a_warning(caplog):
    options = treadle.SessionOptions()
    options.add_free_dimension_override_by_name("M", 1)
    session = treadle.InferenceSession(small.affine(), options)
    session.run(None, {"x": np.vstack([X, X])})  # onnxruntime ignores the declared extent too
    assert "is it N" in caplog.text


def test_free_dimensions_may_be_fixed_by_denotation():
    import onnx

    model = onnx.load_from_string(small.affine())
    model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    options = treadle.SessionOptions()
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 1)
    session = treadle.InferenceSession(model.SerializeToString(), options)
    session.run(None, {"x": X})
    with pytest.raises(errors.InvalidArgument, match="x"):
        session.run(None, {"x": np.vstack([X, X])})


def test_a_denotation_that_no_input_has_is_a_warning(caplog):
    options = treadle.SessionOptions()
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 1)
    session = treadle.InferenceSession(small.affine(), options)
    session.run(None, {"x": np.vstack([X, X])})
    assert 'no input has the denotation "DATA_BATCH"' in caplog.text


def test_initializers_may_be_replaced():
    options = treadle.SessionOptions()
    options.add_initializer("scale", treadle.OrtValue.ortvalue_from_numpy(np.float32([10, 10, 10])))
    session = treadle.InferenceSession(small.affine(), options)
    np.testing.assert_array_equal(session.run(["y"], {"x": X})[0], X * 10 + np.float32([0.5, -1, 0]))


@pytest.mark.parametrize("from_bytes", [False, True])
def test_external_initializers_take_values_instead_of_files(tmp_path, from_bytes):
    model = onnx.load_from_string(small.affine())
    onnx.save_model(model, tmp_path / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "weights.bin").unlink()
    source = (tmp_path / "m.onnx").read_bytes() if from_bytes else str(tmp_path / "m.onnx")
    scale, shift = treadle.OrtValue.ortvalue_from_numpy(np.float32([10, 10, 10])), treadle.OrtValue.ortvalue_from_numpy(np.float32([1, 2, 3]))
    options = treadle.SessionOptions()
    options.add_external_initializers(["scale", "shift"], [scale, shift])
    del scale, shift
    session = treadle.InferenceSession(source, options)
    np.testing.assert_array_equal(session.run(["y"], {"x": X})[0], X * 10 + np.float32([1, 2, 3]))


@pytest.mark.parametrize(("name", "why"), [("scale", "Trying to replace non-external initializer"), ("nowhere", "Failed to find existing initializer")])
def test_values_for_initializers_that_are_not_external_are_refused(name, why):
    options = treadle.SessionOptions()
    options.add_external_initializers([name], [treadle.OrtValue.ortvalue_from_numpy(np.float32([10, 10, 10]))])
    with pytest.raises(errors.Fail, match=why):
        treadle.InferenceSession(small.affine(), options)


def test_initializers_that_the_model_lacks_are_refused():
    options = treadle.SessionOptions()
    options.add_initializer("nowhere", treadle.OrtValue.ortvalue_from_numpy(X))
    with pytest.raises(errors.NotFound, match="nowhere"):
        treadle.InferenceSession(small.affine(), options)


def test_external_data_may_come_from_memory(tmp_path):
    import onnx

    model = onnx.load_from_string(small.affine())
    onnx.save_model(model, tmp_path / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    weights = (tmp_path / "weights.bin").read_bytes()
    bytes_ = (tmp_path / "m.onnx").read_bytes()
    expected = treadle.InferenceSession(small.affine()).run(None, {"x": X})

    options = treadle.SessionOptions()
    options.add_external_initializers_from_files_in_memory(["weights.bin"], [weights], [len(weights)])
    np.testing.assert_array_equal(treadle.InferenceSession(bytes_, options).run(None, {"x": X})[0], expected[0])

    options = treadle.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(tmp_path))
    np.testing.assert_array_equal(treadle.InferenceSession(bytes_, options).run(None, {"x": X})[0], expected[0])

    with pytest.raises(errors.Error, match="weights.bin|external"):
        treadle.InferenceSession(bytes_)


def test_symbols_may_differ_between_inputs_unless_they_are_strict():
    bytes_ = small.model(
        [small.node("ReduceSum", ["a"], ["x"]), small.node("ReduceSum", ["b"], ["y"])],
        [small.tensor("a", ["N"]), small.tensor("b", ["N"])],
        [small.tensor("x", None), small.tensor("y", None)],
    )
    feeds = {"a": np.ones(2, np.float32), "b": np.ones(3, np.float32)}
    assert [float(v.squeeze()) for v in treadle.InferenceSession(bytes_).run(None, feeds)] == [2, 3]
    options = treadle.SessionOptions()
    options.add_session_config_entry("treadle.strict_symbols", "1")
    with pytest.raises(errors.InvalidArgument, match="N"):
        treadle.InferenceSession(bytes_, options).run(None, feeds)


def test_functions_of_the_module_answer():
    assert treadle.get_available_providers() == ["CPUExecutionProvider"]
    assert "CPUExecutionProvider" in treadle.get_all_providers()
    assert treadle.get_device() == "CPU"
    assert treadle.get_version_string() == treadle.__version__
    assert treadle.__version__ in treadle.get_build_info()
    treadle.set_seed(1)
    treadle.set_default_logger_verbosity(0)
    for severity in (0, 4, 2):
        treadle.set_default_logger_severity(severity)
    with pytest.raises(ValueError, match="9"):
        treadle.set_default_logger_severity(9)

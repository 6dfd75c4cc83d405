"""Tests bound inputs and outputs."""

import gc

import numpy as np
import pytest
from onnx import TensorProto

import treadle
from treadle import errors

import small_models as small

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def session():
    return treadle.InferenceSession(small.affine())


def test_outputs_are_written_into_bound_memory(session):
    z = np.zeros((2, 3), np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("z", "cpu", 0, np.float32, [2, 3], z.ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(z, X + X)
    assert binding.get_outputs()[0].data_ptr() == z.ctypes.data


def test_inputs_are_read_from_bound_memory(session):
    x = X.copy()
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_output("z")
    for i in range(3):
        x[:] = X + i  # the array was bound once, and is now changed in place
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], 2 * x)


def test_values_are_bound_and_chained(session):
    value = treadle.OrtValue.ortvalue_from_numpy(X.copy())
    target = treadle.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", value)
    binding.bind_ortvalue_output("z", target)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(target.numpy(), X + X)
    # The previous output is now the input, without a copy.
    binding.bind_ortvalue_input("x", target)
    binding.bind_ortvalue_output("z", value)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(value.numpy(), 4 * X)


def test_outputs_without_memory_are_new_at_every_run(session):
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("z")
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    first = binding.get_outputs()
    assert [value.shape() for value in first] == [[2, 3], [2, 3]]
    binding.bind_cpu_input("x", X + 1)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(first[0].numpy(), X + X)
    np.testing.assert_array_equal(binding.get_outputs_as_ortvaluevector()[0].numpy(), 2 * (X + 1))


def test_bound_arrays_stay_alive(session):
    binding = session.io_binding()
    binding.bind_cpu_input("x", X.copy())
    binding.bind_output("z")
    gc.collect()
    _ = [np.full((2, 3), -1, np.float32) for _ in range(10)]
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), X + X)


def test_the_binding_keeps_its_session_alive():
    session = treadle.InferenceSession(small.affine())
    binding = session.io_binding()
    native = session._sess
    del session
    gc.collect()
    binding.bind_cpu_input("x", X)
    binding.bind_output("z")
    native.run_with_iobinding(binding)
    del native
    gc.collect()
    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), X + X)


def test_results_are_those_of_onnxruntime(session, ort):
    theirs = ort.InferenceSession(small.affine(), providers=["CPUExecutionProvider"])
    results = []
    for runner in (session, theirs):
        binding = runner.io_binding()
        binding.bind_cpu_input("x", X)
        binding.bind_output("z")
        binding.bind_output("y")
        binding.synchronize_inputs()
        runner.run_with_iobinding(binding)
        binding.synchronize_outputs()
        results.append([array.tolist() for array in binding.copy_outputs_to_cpu()])
        binding.clear_binding_outputs()
        binding.bind_output("y")
        runner.run_with_iobinding(binding)
        results[-1].append([value.numpy().tolist() for value in binding.get_outputs()])
    assert results[0] == results[1]


def test_an_output_that_there_is_not_is_an_error_of_the_run(ort):
    """As in onnxruntime, the run raises the error and not the binding, because programs may bind outputs before they know which ones
    exist."""
    for module, error in ((ort, RuntimeError), (treadle, errors.InvalidArgument)):
        session = module.InferenceSession(small.affine(), providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        binding.bind_cpu_input("x", X)
        binding.bind_output("nowhere")
        with pytest.raises(error, match="nowhere") as caught:
            session.run_with_iobinding(binding)
        binding.clear_binding_outputs()
        binding.bind_output("z")
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), session.run(["z"], {"x": X})[0])
    assert "The outputs are: y, z" in str(caught.value)


def test_mistakes_are_errors_that_name_the_value(session):
    binding = session.io_binding()
    with pytest.raises(errors.InvalidArgument, match="nowhere"):
        binding.bind_cpu_input("nowhere", X)
    with pytest.raises(ValueError, match="element_type"):
        binding.bind_output("z", buffer_ptr=X.ctypes.data)
    with pytest.raises(errors.InvalidArgument, match="null"):
        binding.bind_input("x", "cpu", 0, np.float32, [2, 3], 0)
    with pytest.raises(errors.InvalidArgument, match="cuda"):
        binding.bind_output("z", "cuda")
    binding.bind_output("z")
    with pytest.raises(errors.InvalidArgument, match='"x"'):
        session.run_with_iobinding(binding)
    binding.bind_cpu_input("x", X.astype(np.float64))
    with pytest.raises(errors.InvalidArgument, match='"x"'):
        session.run_with_iobinding(binding)
    binding.bind_cpu_input("x", X)
    wrong = np.zeros((3, 3), np.float32)
    binding.bind_output("z", "cpu", 0, np.float32, [3, 3], wrong.ctypes.data)
    with pytest.raises(errors.InvalidArgument, match='"z"'):
        session.run_with_iobinding(binding)
    other = treadle.InferenceSession(small.affine())
    with pytest.raises(ValueError, match="session that created it"):
        other.run_with_iobinding(binding)


def test_outputs_that_are_constants_or_inputs_are_written_into_bound_memory():
    session = treadle.InferenceSession(small.identity(TensorProto.FLOAT, (3,)))
    y = np.zeros(3, np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X[1])
    binding.bind_output("y", "cpu", 0, np.float32, [3], y.ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(y, X[1])


def read_only_arrays(tmp_path):
    """Yields float32 arrays of X's shape that must not be written, by their origin."""
    path = tmp_path / "mapped"
    path.write_bytes(X.tobytes())
    marked = X.copy()
    marked.flags.writeable = False
    return {
        "over bytes": np.frombuffer(X.tobytes(), np.float32).reshape(X.shape),
        "a read-only mapping": np.memmap(path, np.float32, "r", shape=X.shape),
        "marked": marked,
        "a memoryview": memoryview(X.tobytes()).cast("f", X.shape),
        "broadcast": np.broadcast_to(np.float32(1), X.shape),
    }


def array_address(array):
    return np.asarray(array).ctypes.data


def test_read_only_memory_is_no_place_for_outputs(session, tmp_path):
    shared = []
    for how, array in read_only_arrays(tmp_path).items():
        before = np.array(array)
        value = treadle.OrtValue.ortvalue_from_numpy(array)
        binding = session.io_binding()
        binding.bind_cpu_input("x", array)  # an input is only read, so a read-only array is allowed
        if value.data_ptr() == array_address(array):  # otherwise the value is a copy
            with pytest.raises(errors.InvalidArgument, match='output "z".*read-only'):
                binding.bind_ortvalue_output("z", value)
            with pytest.raises(errors.InvalidArgument, match="read-only"):
                value.update_inplace(X + 1)
            shared.append(how)
        binding.bind_output("z")
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], 2 * before, err_msg=how)
        np.testing.assert_array_equal(array, before, err_msg=how)
    assert shared == ["over bytes", "a read-only mapping", "marked"]


def test_what_dlpack_calls_read_only_is_no_place_for_outputs(session):
    marked = X.copy()
    marked.flags.writeable = False
    # NumPy exports read-only arrays only to DLPack versions that can express this.
    value = treadle.OrtValue.from_dlpack(marked)
    binding = session.io_binding()
    with pytest.raises(errors.InvalidArgument, match='output "z".*read-only'):
        binding.bind_ortvalue_output("z", value)
    binding.bind_ortvalue_input("x", value)
    binding.bind_output("z")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], 2 * X)

"""OrtValue, SparseTensor and DLPack."""

import gc
import weakref

import numpy as np
import pytest
from onnx import TensorProto

import treadle
from treadle import errors

import small_models as small

X = np.arange(6, dtype=np.float32).reshape(2, 3)


class Array(np.ndarray):
    """An array to which weak references are possible."""


def tracked(shape=(3,), dtype=np.float32):
    return np.zeros(shape, dtype).view(Array)


@pytest.mark.parametrize("array", [X, np.int64(3), np.zeros((0, 2), np.bool_), np.float16([1])], ids=repr)
def test_descriptions_are_those_of_onnxruntime(ort, array):
    array = np.asarray(array)
    ours, theirs = treadle.OrtValue.ortvalue_from_numpy(array), ort.OrtValue.ortvalue_from_numpy(array)
    for name in (
        "data_type",
        "element_type",
        "device_name",
        "shape",
        "has_value",
        "is_tensor",
        "is_sparse_tensor",
        "is_tensor_sequence",
    ):
        assert getattr(ours, name)() == getattr(theirs, name)(), name
    np.testing.assert_array_equal(ours.numpy(), array)
    assert ours.tensor_size_in_bytes() == theirs.tensor_size_in_bytes()


def test_values_share_the_memory_of_arrays_and_keep_them_alive():
    array = tracked()
    reference = weakref.ref(array)
    value = treadle.OrtValue.ortvalue_from_numpy(array)
    assert value.data_ptr() == array.ctypes.data
    array[0] = 7
    view = value.numpy()
    assert view[0] == 7
    assert np.shares_memory(view, array)
    assert np.shares_memory(np.asarray(value), array)
    assert not np.shares_memory(np.array(value, copy=True), array)
    del array
    gc.collect()
    assert reference() is not None
    del value
    gc.collect()
    assert reference() is not None  # the view keeps it alive
    assert view[0] == 7
    del view
    gc.collect()
    assert reference() is None


def test_feeds_do_not_keep_arrays_alive():
    session = treadle.InferenceSession(small.identity(TensorProto.FLOAT))
    array = tracked()
    reference = weakref.ref(array)
    result = session.run(None, {"x": array})
    del array
    gc.collect()
    assert reference() is None
    del result


def test_values_are_made_of_a_shape_and_a_type():
    for element_type, code in [(np.float32, 1), (TensorProto.BFLOAT16, 16), ("int64", 7), (np.dtype("bool"), 9)]:
        value = treadle.OrtValue.ortvalue_from_shape_and_type([2, 3], element_type)
        assert (value.shape(), value.element_type()) == ([2, 3], code)
    with pytest.raises(ValueError, match="99"):
        treadle.OrtValue.ortvalue_from_shape_and_type([1], 99)
    with pytest.raises(errors.Error):
        treadle.OrtValue.ortvalue_from_shape_and_type([-1], np.float32)
    with pytest.raises(errors.Error):
        treadle.OrtValue.ortvalue_from_shape_and_type([2**40, 2**40], np.float32)


def test_bits_may_be_seen_as_another_type():
    bits = np.array([0x3F80, 0xC000], np.uint16)
    value = treadle.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TensorProto.BFLOAT16)
    assert value.element_type() == TensorProto.BFLOAT16
    np.testing.assert_array_equal(value.numpy().astype(np.float32), [1, -2])
    with pytest.raises(errors.InvalidArgument, match="uint16"):
        treadle.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TensorProto.FLOAT)


def test_values_are_updated_in_place():
    array = X.copy()
    value = treadle.OrtValue.ortvalue_from_numpy(array)
    value.update_inplace(X + 1)
    np.testing.assert_array_equal(array, X + 1)
    value.update_inplace(treadle.OrtValue.ortvalue_from_numpy((X * 2)[:, ::-1]))
    np.testing.assert_array_equal(array, (X * 2)[:, ::-1])
    for wrong in (X[:1], X.astype(np.float64)):
        with pytest.raises(errors.InvalidArgument, match="update_inplace"):
            value.update_inplace(wrong)
    target = treadle.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    treadle.copy_tensors([value], [target])
    np.testing.assert_array_equal(target.numpy(), array)


def test_read_only_arrays_are_not_written():
    array = X.copy()
    array.flags.writeable = False
    value = treadle.OrtValue.ortvalue_from_numpy(array)
    assert not value.numpy().flags.writeable
    with pytest.raises(errors.InvalidArgument):
        value.update_inplace(X + 1)
    np.testing.assert_array_equal(array, X)


def test_other_devices_are_refused():
    with pytest.raises(errors.InvalidArgument, match="cuda"):
        treadle.OrtValue.ortvalue_from_numpy(X, "cuda", 0)


def test_runs_take_and_give_values():
    session = treadle.InferenceSession(small.affine())
    value = treadle.OrtValue.ortvalue_from_numpy(X)
    (z,) = session.run_with_ort_values(["z"], {"x": value})
    assert isinstance(z, treadle.OrtValue)
    np.testing.assert_array_equal(z.numpy(), X + X)
    np.testing.assert_array_equal(session.run(["z"], {"x": value})[0], X + X)
    fetches = treadle.onnxruntime._session.OrtValueVector()
    session.run_with_ortvaluevector(None, ["x"], [value], ["z", "y"], fetches, [])
    assert [v.shape() for v in fetches] == [[2, 3], [2, 3]]
    assert fetches.bool_tensor_indices() == []
    assert fetches.element_type_at(0) == 1


def test_values_that_are_inputs_are_copies():
    session = treadle.InferenceSession(small.identity(TensorProto.FLOAT))
    value = treadle.OrtValue.ortvalue_from_numpy(X[0].copy())
    (out,) = session.run_with_ort_values(None, {"x": value})
    assert out.data_ptr() != value.data_ptr()


def test_sequences_and_optionals_may_be_values():
    session = treadle.InferenceSession(
        small.model([small.node("Identity", ["x"], ["y"])], [small.sequence("x", [None])], [small.sequence("y", [None])])
    )
    value = treadle.OrtValue.from_object([X[0], X[1]])
    assert value.is_tensor_sequence()
    assert not value.is_tensor()
    assert value.data_type() == "seq(tensor(float))"
    (out,) = session.run_with_ort_values(None, {"x": value})
    assert [part.tolist() for part in out.to_object()] == X.tolist()
    with pytest.raises(errors.InvalidArgument):
        out.numpy()
    nothing = treadle.OrtValue.from_object(None, "optional(tensor(float))")
    assert not nothing.has_value()
    assert treadle.OrtValue.from_object(X, "optional(tensor(float))").has_value()


# DLPack

DTYPES = ["float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "bool", "complex64"]


@pytest.mark.parametrize("name", DTYPES)
def test_torch_shares_memory_both_ways(name):
    torch = pytest.importorskip("torch")
    tensor = torch.ones(2, 3, dtype=getattr(torch, name))
    value = treadle.OrtValue.from_dlpack(tensor)
    assert value.data_ptr() == tensor.data_ptr()
    assert value.shape() == [2, 3]
    back = torch.from_dlpack(value)
    assert back.data_ptr() == tensor.data_ptr()
    assert back.dtype == tensor.dtype
    back[0, 0] = 0
    assert not tensor[0, 0]
    del value, tensor
    gc.collect()
    assert back.sum().real == 5


def test_bfloat16_goes_to_torch_and_back():
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    value = treadle.OrtValue.from_dlpack(tensor)
    assert value.element_type() == TensorProto.BFLOAT16
    assert torch.equal(torch.from_dlpack(value), tensor)


def test_strided_torch_tensors_are_copied():
    torch = pytest.importorskip("torch")
    tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3).T
    value = treadle.OrtValue.from_dlpack(tensor)
    assert value.shape() == [3, 2]
    np.testing.assert_array_equal(value.numpy(), tensor.numpy())


def test_a_run_takes_torch_memory_and_gives_memory_to_torch():
    torch = pytest.importorskip("torch")
    session = treadle.InferenceSession(small.affine())
    x = torch.from_numpy(X.copy())
    (z,) = session.run_with_ort_values(["z"], {"x": treadle.OrtValue.from_dlpack(x)})
    z = torch.from_dlpack(z)
    gc.collect()
    assert torch.equal(z, x + x)


def test_numpy_takes_values_by_dlpack():
    value = treadle.OrtValue.ortvalue_from_numpy(X)
    assert value.__dlpack_device__() == (1, 0)
    assert np.shares_memory(np.from_dlpack(value), X)


def test_capsules_that_nobody_takes_are_freed():
    array = tracked()
    reference = weakref.ref(array)
    value = treadle.OrtValue.ortvalue_from_numpy(array)
    capsules = [value.__dlpack__(), value.__dlpack__(max_version=(1, 0)), value.__dlpack__(copy=True)]
    copy = treadle.OrtValue.from_dlpack(capsules[0])
    assert copy.data_ptr() == value.data_ptr()
    with pytest.raises(errors.InvalidArgument, match="taken over"):
        treadle.OrtValue.from_dlpack(capsules[0])
    del capsules, value, copy, array
    gc.collect()
    assert reference() is None


def test_uint8_may_stand_for_bool():
    value = treadle.OrtValue.from_dlpack(np.uint8([1, 0]), is_bool=True)
    assert value.data_type() == "tensor(bool)"


# Sparse tensors


def test_sparse_tensors_are_those_of_onnxruntime(ort):
    values, indices = np.float32([1, 2, 3]), np.int64([[0, 1], [1, 0], [1, 2]])
    for coo in (indices, indices[:, 0] * 3 + indices[:, 1]):
        made = []
        for module in (treadle, ort):
            device = module.OrtDevice.make("cpu", 0)
            sparse = module.SparseTensor.sparse_coo_from_numpy(np.int64([2, 3]), values, coo, device)
            value = module.OrtValue.ort_value_from_sparse_tensor(sparse)
            made.append(
                (
                    sparse.values().tolist(),
                    [int(extent) for extent in sparse.dense_shape()],
                    sparse.as_coo_view().indices().tolist(),
                    sparse.data_type(),
                    sparse.device_name(),
                    int(sparse.format()),
                    value.is_sparse_tensor(),
                    value.as_sparse_tensor().values().tolist(),
                )
            )
        assert made[0] == made[1]


def test_compressed_rows_are_those_of_onnxruntime(ort):
    made = []
    for module in (treadle, ort):
        device = module.OrtDevice.make("cpu", 0)
        arrays = (np.float32([1, 2, 3]), np.int64([1, 0, 2]), np.int64([0, 1, 3]))
        sparse = module.SparseTensor.sparse_csr_from_numpy(np.int64([2, 3]), *arrays, device)
        view = sparse.as_csrc_view()
        made.append((sparse.values().tolist(), view.inner().tolist(), view.outer().tolist(), int(sparse.format())))
        with pytest.raises(Exception):  # noqa: B017 - each has its own
            sparse.as_coo_view()
    assert made[0] == made[1]


@pytest.mark.parametrize("indices", [[0, 1], [0, 1, 6], [-1, 0, 1], [[0, 1], [1, 0], [2, 0]], [[0], [1], [2]]])
def test_sparse_indices_are_checked(indices):
    with pytest.raises(errors.InvalidArgument, match="sparse tensor"):
        treadle.SparseTensor.sparse_coo_from_numpy([2, 3], np.float32([1, 2, 3]), np.int64(indices), None)

"""Compares Treadle's libonnxruntime.so.1 with onnxruntime's own library: equal calls must give equal answers."""

from __future__ import annotations

import ctypes
import json
import pathlib
import shutil
import subprocess
import threading
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p

import numpy as np
import onnx
import pytest
from conftest import SHARED_DATA
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_c import EDITOR, LIBRARY, PLACES, TENSOR, Api, Part, StatusError, handles, model, strings, tensor, value_info

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="libonnxruntime.so.1 is not built; set TREADLE_ORT_LIBRARY")


def affine() -> bytes:
    """Returns a model y = x w + b, where the input b may be left out."""
    w, b = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([1, -1], np.float32)
    return model([helper.make_node("MatMul", ["x", "w"], ["xw"]), helper.make_node("Add", ["xw", "b"], ["y"])],
                 [tensor("x", 1, ["rows", 3]), tensor("b", 1, [2])], [tensor("y", 1, ["rows", 2])],
                 [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")], producer_name="a test", doc_string="what it does")


def test_the_table_is_full_and_starts_at_any_version(ours: Api) -> None:
    assert all(ours.table)
    for version in range(1, 33):
        assert ours.base.get_api(version) == ours.base.get_api(32)
    assert not ours.base.get_api(33)
    assert not ours.base.get_api(0)
    assert ours.base.get_version() == b"1.32.0"


def test_what_is_missing_says_so(ours: Api) -> None:
    for name, why in {"CreateTensorRTProviderOptions": "the only execution provider", "RegisterExecutionProviderLibrary": "plugins of Treadle", "SetCurrentGpuDeviceId": "the only device"}.items():
        with pytest.raises(StatusError, match=f"does not have {name}: .*{why}") as error:
            ours.call(name, c_void_p(), c_void_p())
        assert error.value.code == 9


@pytest.mark.skipif(SHARED_DATA is None, reason="no models")
@pytest.mark.parametrize("path", sorted((SHARED_DATA / "models").glob("*.onnx")) if SHARED_DATA else [], ids=lambda path: path.stem)
def test_models_are_described_alike(ours: Api, theirs: Api, path: pathlib.Path) -> None:
    try:
        expected = theirs.session(str(path))
    except StatusError:
        pytest.skip("onnxruntime does not load it")
    have, want = ours.describe(ours.session(str(path))), theirs.describe(expected)
    for said in (have, want):
        said["Version"] %= 2**63 - 1  # the version that onnxruntime reports for a model without a version
    for (_, ours_is), (_, theirs_is) in zip(have["Output"], want["Output"]):
        if ours_is[0] == TENSOR:  # onnxruntime also reports inferred extents
            for i, extent in enumerate(theirs_is[2]):
                if ours_is[2][i] == -1 and extent >= 0:
                    theirs_is[2][i], theirs_is[3][i] = -1, ours_is[3][i]
    assert have == want


def both(ours: Api, theirs: Api, data: bytes, feeds: dict[str, np.ndarray], outputs: list[str]) -> list:
    results = []
    for api in (ours, theirs):
        session = api.session(data)
        values = api.run(session, {name: api.value(array) for name, array in feeds.items()}, outputs)
        results.append([api.content(value) for value in values])
        for value in values:
            api.call("ReleaseValue", value, result=None)
        api.call("ReleaseSession", session, result=None)
    for have, want in zip(*results):
        assert str(type(have)) == str(type(want))
        if isinstance(have, np.ndarray):
            assert have.dtype == want.dtype
            np.testing.assert_array_equal(have, want) if have.dtype == object else np.testing.assert_allclose(have, want, rtol=1e-5)
        else:
            assert str(have) == str(want)
    return results[0]


def test_runs_give_the_same(ours: Api, theirs: Api) -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    both(ours, theirs, affine(), {"x": x}, ["y"])
    both(ours, theirs, affine(), {"x": x[:0], "b": np.array([3, 4], np.float32)}, ["y"])
    strings = model([helper.make_node("StringConcat", ["x", "x"], ["y"])], [tensor("x", 8, ["n"])], [tensor("y", 8, ["n"])])
    [y] = both(ours, theirs, strings, {"x": np.array(["a", "", "schön"], object)}, ["y"])
    assert y.tolist() == ["aa", "", "schönschön"]


@pytest.mark.parametrize("number", [2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13])
def test_dtypes_go_through(ours: Api, theirs: Api, number: int) -> None:
    from onnxruntime_c import DTYPES

    x = np.array([[0, 1, 3]]).astype(DTYPES[number])
    data = model([helper.make_node("Concat", ["x", "x"], ["y"], axis=0)], [tensor("x", number, ["n", 3])], [tensor("y", number, None)])
    both(ours, theirs, data, {"x": x}, ["y"])


def test_sequences_and_maps_come_out(ours: Api, theirs: Api) -> None:
    data = model([helper.make_node("SplitToSequence", ["x"], ["y"], axis=0)], [tensor("x", 1, ["n", 2])],
                 [helper.make_tensor_sequence_value_info("y", 1, None)])
    both(ours, theirs, data, {"x": np.arange(6, dtype=np.float32).reshape(3, 2)}, ["y"])
    zip_map = helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_strings=["cat", "dog"])
    kind = helper.make_sequence_type_proto(helper.make_map_type_proto(8, helper.make_tensor_type_proto(1, [])))
    graph = helper.make_graph([zip_map], "graph", [tensor("x", 1, ["n", 2])], [helper.make_value_info("y", kind)])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)], ir_version=10).SerializeToString()
    [maps] = both(ours, theirs, data, {"x": np.array([[0.25, 0.75], [1, 0]], np.float32)}, ["y"])
    assert maps == [{"cat": 0.25, "dog": 0.75}, {"cat": 1.0, "dog": 0.0}]


def test_values_are_made_of_values(ours: Api, theirs: Api) -> None:
    for api in (ours, theirs):
        parts = [api.value(np.full((k, 2), k, np.float32)) for k in (1, 3)]
        sequence = c_void_p()
        api.call("CreateValue", (c_void_p * 2)(*[p.value for p in parts]), c_size_t(2), 2, byref(sequence))
        assert [part.shape for part in api.content(sequence)] == [(1, 2), (3, 2)]
        pairs = [api.value(np.array([3, 1], np.int64)), api.value(np.array([0.5, 2], np.float32))]
        mapped = c_void_p()
        api.call("CreateValue", (c_void_p * 2)(*[p.value for p in pairs]), c_size_t(2), 3, byref(mapped))
        assert api.content(mapped) == {3: 0.5, 1: 2.0}
        with pytest.raises(StatusError):
            api.call("CreateValue", (c_void_p * 2)(parts[0].value, pairs[0].value), c_size_t(2), 2, byref(c_void_p()))


def test_outputs_are_written_to_the_clients_memory(ours: Api, theirs: Api) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for api in (ours, theirs):
        y = np.full((2, 2), 7, np.float32)
        [out] = api.run(api.session(affine()), {"x": api.value(x)}, ["y"], into=[api.value(y)])
        np.testing.assert_allclose(y, x @ np.arange(6).reshape(3, 2) + [1, -1])
        wrong = np.zeros((3, 2), np.float32)
        with pytest.raises(StatusError):
            api.run(api.session(affine()), {"x": api.value(x)}, ["y"], into=[api.value(wrong)])
        assert out


def test_an_output_is_the_clients_own(ours: Api, theirs: Api) -> None:
    """A client that writes to the feed changes neither the output nor the model, and the other way round."""
    w = numpy_helper.from_array(np.array([1, 2], np.float32), "w")
    data = model([helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Identity", ["w"], ["z"])], [tensor("x", 1, [2])],
                 [tensor("y", 1, [2]), tensor("z", 1, [2])], [w])
    for api in (ours, theirs):
        session, x = api.session(data), np.array([5, 6], np.float32)
        y, z = api.run(session, {"x": api.value(x)}, ["y", "z"])
        x[:] = 0
        assert api.content(y).tolist() == [5, 6]
        ctypes.memset(api.made("GetTensorMutableData", z).value, 0, 8)
        assert api.content(api.run(session, {"x": api.value(x)}, ["z"])[0]).tolist() == [1, 2]


def test_bindings(ours: Api, theirs: Api) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for api in (ours, theirs):
        session = api.session(affine())
        binding = api.made("CreateIoBinding", session)
        api.call("BindInput", binding, b"x", api.value(x))
        api.call("BindOutputToDevice", binding, b"y", api.memory)
        for factor in (1, 2):
            x *= factor
            api.call("SynchronizeBoundInputs", binding)
            api.call("RunWithBinding", session, c_void_p(), binding)
            api.call("SynchronizeBoundOutputs", binding)
            values, count = c_void_p(), c_size_t()
            api.call("GetBoundOutputValues", binding, api.allocator, byref(values), byref(count))
            [value] = (c_void_p * count.value).from_address(values.value)
            np.testing.assert_allclose(api.content(c_void_p(value)), x @ np.arange(6).reshape(3, 2) + [1, -1])
        y = np.zeros((2, 2), np.float32)
        api.call("ClearBoundOutputs", binding, result=None)
        api.call("BindOutput", binding, b"y", api.value(y))
        api.call("RunWithBinding", session, c_void_p(), binding)
        np.testing.assert_allclose(y, x @ np.arange(6).reshape(3, 2) + [1, -1])
        names, lengths, count = c_void_p(), c_void_p(), c_size_t()
        api.call("GetBoundOutputNames", binding, api.allocator, byref(names), byref(lengths), byref(count))
        assert (count.value, ctypes.string_at(names.value, 1), c_size_t.from_address(lengths.value).value) == (1, b"y", 1)


FAULTS = {
    "an unknown input": lambda api: api.run(api.session(affine()), {"z": api.value(np.zeros((2, 3), np.float32))}, ["y"]),
    "a missing input": lambda api: api.run(api.session(affine()), {}, ["y"]),
    "another dtype": lambda api: api.run(api.session(affine()), {"x": api.value(np.zeros((2, 3)))}, ["y"]),
    "another rank": lambda api: api.run(api.session(affine()), {"x": api.value(np.zeros(3, np.float32))}, ["y"]),
    "another extent": lambda api: api.run(api.session(affine()), {"x": api.value(np.zeros((2, 4), np.float32))}, ["y"]),
    "an unknown output": lambda api: api.run(api.session(affine()), {"x": api.value(np.zeros((2, 3), np.float32))}, ["z"]),
    "no output": lambda api: api.run(api.session(affine()), {"x": api.value(np.zeros((2, 3), np.float32))}, []),
    "no such file": lambda api: api.session("/nowhere/model.onnx"),
    "bytes that are no model": lambda api: api.session(b"\x00\x01\x02 no model"),
    "an operator that does not exist": lambda api: api.session(model([helper.make_node("NoSuch", ["x"], ["y"])], [tensor("x", 1, [1])], [tensor("y", 1, [1])])),
    "an index beyond the inputs": lambda api: api.made("SessionGetInputTypeInfo", api.session(affine()), c_size_t(9)),
    "too little memory for a tensor": lambda api: api.call("CreateTensorWithDataAsOrtValue", api.memory, np.zeros(1).ctypes.data_as(c_void_p), c_size_t(4),
                                                           (c_int64 * 1)(4), c_size_t(1), 1, byref(c_void_p())),
    "a sequence read as a tensor": lambda api: api.made("GetTensorMutableData", _sequence(api)),
    "an optimization level that does not exist": lambda api: api.call("SetSessionGraphOptimizationLevel", api.options(), 17),
    "a provider that does not exist": lambda api: api.call("SessionOptionsAppendExecutionProvider", api.options(), b"NoSuch", c_void_p(), c_void_p(), c_size_t(0)),
    "memory of a device that does not exist": lambda api: api.made("CreateMemoryInfo", b"NoSuch", 0, 0, 0),
}


def _sequence(api: Api) -> c_void_p:
    part, out = api.value(np.zeros(2, np.float32)), c_void_p()
    api.call("CreateValue", (c_void_p * 1)(part.value), c_size_t(1), 2, byref(out))
    return out


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_statuses(ours: Api, theirs: Api, fault: str) -> None:
    with pytest.raises(StatusError) as want:
        FAULTS[fault](theirs)
    with pytest.raises(StatusError) as have:
        FAULTS[fault](ours)
    assert have.value.code != 0
    assert have.value.message
    # For models that cannot be loaded, onnxruntime's code is FAIL, INVALID_GRAPH or INVALID_PROTOBUF. No rule says which, and some codes
    # come from an unexpected exception.
    if want.value.code not in (1, 6, 7, 10):
        assert have.value.code == want.value.code


def test_options_are_kept_and_copied(ours: Api, theirs: Api) -> None:
    for api in (ours, theirs):
        options = api.options()
        api.call("AddSessionConfigEntry", options, b"session.intra_op.allow_spinning", b"0")
        copy = api.made("CloneSessionOptions", options)
        api.call("ReleaseSessionOptions", options, result=None)
        assert api.number("HasSessionConfigEntry", copy, b"session.intra_op.allow_spinning", kind=c_int) == 1
        assert api.number("HasSessionConfigEntry", copy, b"no.such", kind=c_int) == 0
        room, size = ctypes.create_string_buffer(8), c_size_t(8)
        api.call("GetSessionConfigEntry", copy, b"session.intra_op.allow_spinning", room, byref(size))
        assert (room.value, size.value) == (b"0", 2)
        run = api.made("CreateRunOptions")
        api.call("RunOptionsSetRunTag", run, b"tag")
        tag = c_char_p()
        api.call("RunOptionsGetRunTag", run, byref(tag))
        assert tag.value == b"tag"
        api.call("RunOptionsSetTerminate", run)
        session, x = api.session(affine(), copy), api.value(np.zeros((1, 3), np.float32))
        with pytest.raises(StatusError):
            api.run(session, {"x": x}, ["y"], options=run)
        api.call("RunOptionsUnsetTerminate", run)
        assert api.content(api.run(session, {"x": x}, ["y"], options=run)[0]).tolist() == [[1, -1]]


def test_dimensions_and_initializers_are_replaced(ours: Api, theirs: Api) -> None:
    for api in (ours, theirs):
        options = api.options()
        api.call("AddFreeDimensionOverrideByName", options, b"rows", c_int64(2))
        w = np.ones((3, 2), np.float32)
        value = api.value(w)
        api.call("AddInitializer", options, b"w", value)
        session = api.session(affine(), options)
        [(name, said), *_] = api.describe(session)["Input"]
        assert (name, said[2]) == ("x", [2, 3])
        [y] = api.run(session, {"x": api.value(np.ones((2, 3), np.float32))}, ["y"])
        assert api.content(y).tolist() == [[4, 2], [4, 2]]


def test_a_model_may_import_no_opset_of_onnx(ours: Api, theirs: Api) -> None:
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"])], "graph", [tensor("x", 1, [2, 2, 3])], [tensor("y", 1, [2, 2, 3])])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 3)], ir_version=10).SerializeToString()
    x = np.arange(12, dtype=np.float32).reshape(2, 2, 3) / 4
    [y] = both(ours, theirs, data, {"x": x}, ["y"])  # uses Softmax of the newest opset, over the last axis
    np.testing.assert_allclose(y, np.exp(x) / np.exp(x).sum(-1, keepdims=True), rtol=1e-5)


def test_strings_are_read_and_written_one_by_one(ours: Api, theirs: Api) -> None:
    for api in (ours, theirs):
        value = api.value(np.array(["one", "two"], object))
        api.call("FillStringTensorElement", value, b"three", c_size_t(0))
        assert api.number("GetStringTensorElementLength", value, c_size_t(0)) == 5
        room = ctypes.create_string_buffer(8)
        api.call("GetStringTensorElement", value, c_size_t(5), c_size_t(0), room)
        assert room.raw[:5] == b"three"
        buffer = c_void_p()
        api.call("GetResizedStringTensorElementBuffer", value, c_size_t(1), c_size_t(4), byref(buffer))
        ctypes.memmove(buffer.value, b"four", 4)
        assert api.content(value).tolist() == ["three", "four"]
        for args in ((c_size_t(4), c_size_t(0)), (c_size_t(8), c_size_t(2))):
            with pytest.raises(StatusError):
                api.call("GetStringTensorElement", value, *args, room)


def test_sparse_tensors(ours: Api, theirs: Api) -> None:
    values, places = np.array([1, 2, 3], np.float32), np.array([0, 4, 8], np.int64)
    inner, outer = np.array([0, 1, 2], np.int64), np.array([0, 1, 2, 3], np.int64)
    for api in (ours, theirs):
        def empty(api: Api = api) -> c_void_p:
            return api.made("CreateSparseTensorAsOrtValue", api.allocator, (c_int64 * 2)(3, 3), c_size_t(2), 1)

        coo = empty()
        api.call("FillSparseTensorCoo", coo, api.memory, (c_int64 * 1)(3), c_size_t(1), c_void_p(values.ctypes.data), c_void_p(places.ctypes.data), c_size_t(3))
        assert api.number("IsSparseTensor", coo, kind=c_int) == 1
        assert api.number("GetSparseTensorFormat", coo, kind=c_int) == 1
        assert np.frombuffer(ctypes.string_at(api.made("GetSparseTensorValues", coo).value, 12), np.float32).tolist() == [1, 2, 3]
        count, data = c_size_t(), c_void_p()
        api.call("GetSparseTensorIndices", coo, 0, byref(count), byref(data))
        assert np.frombuffer(ctypes.string_at(data.value, 8 * count.value), np.int64).tolist() == [0, 4, 8]
        csr = empty()
        api.call("FillSparseTensorCsr", csr, api.memory, (c_int64 * 1)(3), c_size_t(1), c_void_p(values.ctypes.data), c_void_p(inner.ctypes.data), c_size_t(3),
                 c_void_p(outer.ctypes.data), c_size_t(4))
        assert api.number("GetSparseTensorFormat", csr, kind=c_int) == 2
        assert api.shape_and_dtype(api.made("GetTensorTypeAndShape", csr))[:2] == (1, [3, 3])
        with pytest.raises(StatusError):
            api.call("FillSparseTensorCoo", empty(), api.memory, (c_int64 * 1)(3), c_size_t(1), c_void_p(values.ctypes.data), c_void_p(places.ctypes.data), c_size_t(2))


def test_runs_end_on_another_thread(ours: Api) -> None:
    done, results = threading.Event(), {}
    callback_type = ctypes.CFUNCTYPE(None, c_void_p, POINTER(c_void_p), c_size_t, c_void_p)

    @callback_type
    def callback(user_data, outputs, count, status):  # noqa: ANN001
        results.update(user_data=user_data, count=count, status=status, output=outputs[0], thread=threading.get_ident())
        done.set()

    session, x = ours.session(affine()), ours.value(np.ones((1, 3), np.float32))
    outputs = (c_void_p * 1)()
    ours.call("RunAsync", session, c_void_p(), (c_char_p * 1)(b"x"), (c_void_p * 1)(x.value), c_size_t(1), (c_char_p * 1)(b"y"), c_size_t(1), outputs, callback, c_void_p(42))
    assert done.wait(10)
    assert (results["user_data"], results["count"], results["status"]) == (42, 1, None)
    assert results["thread"] != threading.get_ident()
    assert ours.content(c_void_p(results["output"])).tolist() == [[7, 8]]


class _Allocator(ctypes.Structure):
    _fields_ = [("version", c_uint32), ("alloc", ctypes.CFUNCTYPE(c_void_p, c_void_p, c_size_t)), ("free", ctypes.CFUNCTYPE(None, c_void_p, c_void_p)),
                ("info", ctypes.CFUNCTYPE(c_void_p, c_void_p)), ("later", c_void_p * 4)]


def test_memory_is_the_clients_allocators(ours: Api, theirs: Api) -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = c_void_p, [c_size_t], [c_void_p]
    for api in (ours, theirs):
        live: set[int] = set()

        def allocate(_self, size, live=live):  # noqa: ANN001
            live.add(block := libc.malloc(size))
            return block

        def free(_self, block, live=live):  # noqa: ANN001
            live.discard(block)
            libc.free(block)

        kinds = dict(_Allocator._fields_)
        allocator = _Allocator(20, kinds["alloc"](allocate), kinds["free"](free), kinds["info"](lambda _self, info=api.memory: info.value))
        at = c_void_p(ctypes.addressof(allocator))
        value = c_void_p()
        api.call("CreateTensorAsOrtValue", at, (c_int64 * 1)(5), c_size_t(1), 1, byref(value))
        assert len(live) == 1
        assert api.made("GetTensorMutableData", value).value in live
        name = c_void_p()
        api.call("SessionGetInputName", api.session(affine()), c_size_t(0), at, byref(name))
        assert ctypes.string_at(name.value) == b"x"
        api.call("AllocatorFree", at, name)
        api.call("ReleaseValue", value, result=None)
        assert not live


def test_devices_and_pairs(ours: Api) -> None:
    devices, count = POINTER(c_void_p)(), c_size_t()
    ours.call("GetEpDevices", ours.env, byref(devices), byref(count))
    assert count.value == 1
    device = c_void_p(devices[0])
    assert ours.call("EpDevice_EpName", device, result=c_char_p) == b"CPUExecutionProvider"
    assert ours.call("HardwareDevice_Type", c_void_p(ours.call("EpDevice_Device", device, result=c_void_p)), result=c_int32) == 0
    pairs = c_void_p()
    ours.call("CreateKeyValuePairs", byref(pairs), result=None)
    ours.call("AddKeyValuePair", pairs, b"key", b"value", result=None)
    assert ours.call("GetKeyValue", pairs, b"key", result=c_char_p) == b"value"
    names, number = c_void_p(), c_int()
    ours.call("GetAvailableProviders", byref(names), byref(number))
    assert ctypes.string_at(c_void_p.from_address(names.value).value) == b"CPUExecutionProvider"
    ours.call("ReleaseAvailableProviders", names, number)


def pairs_of(api: Api, pairs: int) -> dict[bytes, bytes]:
    keys, values, count = POINTER(c_char_p)(), POINTER(c_char_p)(), c_size_t()
    api.call("GetKeyValuePairs", c_void_p(pairs), byref(keys), byref(values), byref(count), result=None)
    return {keys[i]: values[i] for i in range(count.value)}


def cpu(api: Api) -> c_void_p:
    devices, count = POINTER(c_void_p)(), c_size_t()
    api.call("GetEpDevices", api.env, byref(devices), byref(count))
    return c_void_p(devices[0])


def test_the_cpu_is_described_alike(ours: Api, theirs: Api) -> None:
    said = []
    for api in (ours, theirs):
        device = cpu(api)
        hardware = c_void_p(api.call("EpDevice_Device", device, result=c_void_p))
        numbers = [api.call(f"HardwareDevice_{what}", hardware, result=c_uint32) for what in ("VendorId", "DeviceId")]
        metadata = pairs_of(api, api.call("EpDevice_EpMetadata", device, result=c_void_p))
        said.append((numbers, api.call("HardwareDevice_Vendor", hardware, result=c_char_p), sorted(metadata), pairs_of(api, api.call("EpDevice_EpOptions", device, result=c_void_p)),
                     api.call("EpDevice_MemoryInfo", device, 0, result=c_void_p), api.number("GetNumHardwareDevices", api.env)))
        details = c_void_p()
        api.call("GetHardwareDeviceEpIncompatibilityDetails", api.env, b"CPUExecutionProvider", hardware, byref(details))
        assert api.number("DeviceEpIncompatibilityDetails_GetReasonsBitmask", details, kind=c_uint32) == 0
        assert api.number("DeviceEpIncompatibilityDetails_GetErrorCode", details, kind=c_int32) == 0
        assert not api.made("DeviceEpIncompatibilityDetails_GetNotes", details)
        with pytest.raises(StatusError) as error:
            api.made("GetHardwareDeviceEpIncompatibilityDetails", api.env, b"NoSuch", hardware)
        assert error.value.code == 2
        with pytest.raises(StatusError) as error:
            api.made("GetHardwareDeviceEpIncompatibilityDetails", c_void_p(), b"CPUExecutionProvider", hardware)
        assert error.value.code == 2
        assert api.number("GetModelCompatibilityForEpDevices", (c_void_p * 1)(device.value), c_size_t(1), b"said", kind=c_int) == 0
    assert said[0] == said[1]


def test_a_model_says_what_it_was_compiled_for(ours: Api, theirs: Api) -> None:
    made = onnx.load_from_string(affine())
    entry = made.metadata_props.add()
    entry.key, entry.value = "ep_compatibility_info.SomeProvider", "as of version 3"
    data = made.SerializeToString()
    for api in (ours, theirs):
        for provider, want in ((b"SomeProvider", "as of version 3"), (b"Another", None)):
            out = c_void_p()
            api.call("GetCompatibilityInfoFromModelBytes", data, c_size_t(len(data)), provider, api.allocator, byref(out))
            assert api._taken(out) == want


def test_nodes_are_assigned_to_the_cpu(ours: Api, theirs: Api) -> None:
    data = model([helper.make_node("Relu", ["x"], ["y"], name="a relu")], [tensor("x", 1, [2])], [tensor("y", 1, [2])])

    def text(api: Api, name: str, of: c_void_p) -> bytes | None:
        out = c_char_p()
        api.call(name, of, byref(out))
        return out.value

    for api in (ours, theirs):
        subgraphs, nodes, count = c_void_p(), c_void_p(), c_size_t()
        with pytest.raises(StatusError, match="record_ep_graph_assignment_info"):
            api.call("Session_GetEpGraphAssignmentInfo", api.session(data), byref(subgraphs), byref(count))
        options = api.options()
        api.call("AddSessionConfigEntry", options, b"session.record_ep_graph_assignment_info", b"1")
        session = api.session(data, options)
        api.call("Session_GetEpGraphAssignmentInfo", session, byref(subgraphs), byref(count))
        assert count.value == 1
        subgraph = c_void_p(c_void_p.from_address(subgraphs.value).value)
        assert text(api, "EpAssignedSubgraph_GetEpName", subgraph) == b"CPUExecutionProvider"
        api.call("EpAssignedSubgraph_GetNodes", subgraph, byref(nodes), byref(count))
        assert count.value == 1
        node = c_void_p(c_void_p.from_address(nodes.value).value)
        assert [text(api, f"EpAssignedNode_Get{what}", node) for what in ("Name", "Domain", "OperatorType")] == [b"a relu", b"", b"Relu"]


def test_nodes_of_a_session_under_edit_are_assigned_at_its_end(ours: Api, theirs: Api) -> None:
    data = affine()
    for api in (ours, theirs):
        subgraphs, count = c_void_p(), c_size_t(7)
        options = api.options()
        api.call("AddSessionConfigEntry", options, b"session.record_ep_graph_assignment_info", b"1")
        editor = Part(api, "GetModelEditorApi", EDITOR)
        session = editor.made("CreateModelEditorSessionFromArray", api.env, data, c_size_t(len(data)), options)
        api.call("Session_GetEpGraphAssignmentInfo", session, byref(subgraphs), byref(count))
        assert count.value == 0
        editor.call("FinalizeModelEditorSession", session, c_void_p(), c_void_p())  # keeps the options of the session
        api.call("Session_GetEpGraphAssignmentInfo", session, byref(subgraphs), byref(count))
        assert count.value >= 1


def test_an_environment_is_made_with_options(ours: Api, theirs: Api) -> None:
    class Options(ctypes.Structure):
        _fields_ = [("version", c_uint32), ("level", c_int32), ("id", c_char_p), ("function", c_void_p), ("param", c_void_p), ("threading", c_void_p), ("entries", c_void_p)]

    for api in (ours, theirs):
        threading_options = api.made("CreateThreadingOptions")
        api.call("SetGlobalIntraOpNumThreads", threading_options, 1)
        given = Options(29, 3, b"id", None, None, threading_options.value, None)
        environment, options = api.made("CreateEnvWithOptions", byref(given)), api.options()
        if api is ours:  # onnxruntime already has the environment that the fixture made
            api.call("DisablePerSessionThreads", options)
        data = affine()
        session = api.made("CreateSessionFromArray", environment, data, c_size_t(len(data)), options)
        assert api.run_arrays(session, {"x": np.ones((1, 3), np.float32)}, ["y"])[0].tolist() == [[7, 8]]
        with pytest.raises(StatusError) as error:
            api.made("CreateEnvWithOptions", byref(Options(29, 3, None, None, None, None, None)))
        assert error.value.code == 2


def test_a_client_chooses_the_device(ours: Api, theirs: Api) -> None:
    kind = ctypes.CFUNCTYPE(c_void_p, POINTER(c_void_p), c_size_t, c_void_p, c_void_p, POINTER(c_void_p), c_size_t, POINTER(c_size_t), c_void_p)
    asked: list[int] = []

    def choose(devices, count, _model, _runtime, selected, _room, out, _state):  # noqa: ANN001
        asked.append(count)
        selected[0], out[0] = devices[0], 1

    def choose_none(_devices, _count, _model, _runtime, _selected, _room, out, _state):  # noqa: ANN001
        out[0] = 0

    for api in (ours, theirs):
        options, delegate = api.options(), kind(choose)
        api.call("SessionOptionsSetEpSelectionPolicyDelegate", options, delegate, c_void_p())
        assert api.run_arrays(api.session(affine(), options), {"x": np.ones((1, 3), np.float32)}, ["y"])[0].tolist() == [[7, 8]]
        none, options = kind(choose_none), api.options()
        api.call("SessionOptionsSetEpSelectionPolicyDelegate", options, none, c_void_p())
        with pytest.raises(StatusError):
            api.session(affine(), options)
    assert asked == [1, 1]


def test_one_run_has_a_profile(ours: Api, theirs: Api, tmp_path: pathlib.Path) -> None:
    for name, api in (("ours", ours), ("theirs", theirs)):
        session, options, x = api.session(affine()), api.made("CreateRunOptions"), np.ones((1, 3), np.float32)
        folder = tmp_path / name
        folder.mkdir()
        api.call("RunOptionsEnableProfiling", options, str(folder / "run").encode())
        api.run_arrays(session, {"x": x}, ["y"], options)
        [path] = folder.glob("run_*.json")
        events = json.loads(path.read_text())
        assert [event["args"]["op_name"] for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")]
        api.call("RunOptionsDisableProfiling", options)
        api.run_arrays(session, {"x": x}, ["y"], options)
        assert len(list(folder.iterdir())) == 1


def test_lists_of_texts_are_read(ours: Api, theirs: Api) -> None:
    for api in (ours, theirs):
        attribute = api.made("CreateOpAttr", b"names", strings(b"ab", b"c"), 2, 6)
        room, size = ctypes.create_string_buffer(8), c_size_t()
        api.call("ReadOpAttr", attribute, 6, room, c_size_t(8), byref(size))
        assert (room.raw[:5], size.value) == (b"ab\0c\0", 5)
        assert api.number("OpAttr_GetType", attribute, kind=c_int) == 6


def test_profiles_are_written(ours: Api, tmp_path: pathlib.Path) -> None:
    options = ours.options()
    ours.call("EnableProfiling", options, str(tmp_path / "profile").encode())
    session = ours.session(affine(), options)
    ours.run(session, {"x": ours.value(np.ones((1, 3), np.float32))}, ["y"])
    assert pathlib.Path(ours.text("SessionEndProfiling", session)).read_text().startswith(("[", "{"))


def test_places_are_those_of_the_interface() -> None:
    """Compiled clients call functions by position. Checks some positions that the documentation or compiled clients fix."""
    assert [PLACES[name] for name in ("CreateStatus", "Run", "CreateTensorWithDataAsOrtValue", "ReleaseStatus", "RunWithBinding", "GetTensorData")] == [0, 9, 49, 93, 133, 378]
    assert TensorProto.FLOAT == 1
    assert onnx.__version__


COMPILER = """ReleaseModelCompilationOptions CreateModelCompilationOptionsFromSessionOptions SetInputModelPath SetInputModelFromBuffer SetOutputModelPath
SetOutputModelExternalInitializersFile SetOutputModelBuffer SetEpContextEmbedMode CompileModel SetFlags SetEpContextBinaryInformation
SetGraphOptimizationLevel SetOutputModelWriteFunc SetOutputModelGetInitializerLocationFunc""".split()


def gemm_graph(api: Api, editor: Part, weight: np.ndarray, source: bytes) -> c_void_p:
    """Builds a graph z = 2 * source @ weight, with the weight in the caller's memory."""
    graph = editor.made("CreateGraph")
    two = ctypes.c_float(2)
    alpha = api.made("CreateOpAttr", b"alpha", byref(two), 1, 3)
    node = editor.made("CreateNode", b"Gemm", b"", b"gemm", strings(source, b"weight"), c_size_t(2), strings(b"z"), c_size_t(1), handles(alpha), c_size_t(1))
    editor.call("AddNodeToGraph", graph, node)
    editor.call("AddInitializerToGraph", graph, b"weight", api.value(weight), ctypes.c_bool(True))
    z = value_info(api, editor, b"z", [-1, weight.shape[1]])
    editor.call("SetGraphOutputs", graph, handles(z), c_size_t(1))
    return graph


@pytest.mark.parametrize("library", ["ours", "theirs"])
def test_a_model_is_put_together(library: str, request: pytest.FixtureRequest) -> None:
    api: Api = request.getfixturevalue(library)
    editor = Part(api, "GetModelEditorApi", EDITOR)
    weight = np.arange(48, dtype=np.float32).reshape(8, 6)
    graph = gemm_graph(api, editor, weight, b"x")
    editor.call("SetGraphInputs", graph, handles(value_info(api, editor, b"x", [-1, 8])), c_size_t(1))
    made = editor.made("CreateModel", strings(b""), (c_int * 1)(18), c_size_t(1))
    editor.call("AddGraphToModel", made, graph)
    session = editor.made("CreateSessionFromModel", api.env, made, api.made("CreateSessionOptions"))
    assert editor_opset(editor, session, b"") == 18
    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    np.testing.assert_allclose(api.run_arrays(session, {"x": x}, ["z"])[0], 2 * x @ weight)
    api.call("ReleaseSession", session, result=None)
    api.call("ReleaseModel", made, result=None)


def editor_opset(editor: Part, session: c_void_p, domain: bytes) -> int:
    out = c_int()
    editor.call("SessionGetOpsetForDomain", session, domain, byref(out))
    return out.value


@pytest.mark.parametrize("library", ["ours", "theirs"])
def test_nodes_are_added_to_a_model_that_is_there(library: str, request: pytest.FixtureRequest) -> None:
    api: Api = request.getfixturevalue(library)
    editor = Part(api, "GetModelEditorApi", EDITOR)
    data = affine()
    session = editor.made("CreateModelEditorSessionFromArray", api.env, data, c_size_t(len(data)), api.made("CreateSessionOptions"))
    opset = editor_opset(editor, session, b"")
    assert opset == 21
    weight = np.arange(40, dtype=np.float32).reshape(2, 20)
    graph = gemm_graph(api, editor, weight, b"xw")  # "xw" is an inner value of the model
    made = editor.made("CreateModel", strings(b""), (c_int * 1)(opset), c_size_t(1))
    editor.call("AddGraphToModel", made, graph)
    editor.call("ApplyModelToModelEditorSession", session, made)
    editor.call("FinalizeModelEditorSession", session, api.made("CreateSessionOptions"), c_void_p())
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    w = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.testing.assert_allclose(api.run_arrays(session, {"x": x, "b": np.ones(2, np.float32)}, ["z"])[0], 2 * x @ w @ weight)


def test_a_session_under_edit_does_not_run(ours: Api) -> None:
    editor = Part(ours, "GetModelEditorApi", EDITOR)
    data = affine()
    session = editor.made("CreateModelEditorSessionFromArray", ours.env, data, c_size_t(len(data)), ours.made("CreateSessionOptions"))
    with pytest.raises(StatusError, match="still edited"):
        ours.run_arrays(session, {"x": np.zeros((1, 3), np.float32)}, ["y"])
    other = editor.made("CreateModel", strings(b""), (c_int * 1)(20), c_size_t(1))
    editor.call("AddGraphToModel", other, editor.made("CreateGraph"))
    with pytest.raises(StatusError, match="Current version: 21"):
        editor.call("ApplyModelToModelEditorSession", session, other)


@pytest.mark.parametrize("library", ["ours", "theirs"])
@pytest.mark.parametrize("level", [0, 99])
def test_a_compiled_model_gives_what_the_model_gives(library: str, level: int, request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> None:
    api: Api = request.getfixturevalue(library)
    compiler = Part(api, "GetCompileApi", COMPILER)
    data, feeds = affine(), {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, np.float32)}
    w = np.arange(6, dtype=np.float32).reshape(3, 2)

    def options() -> c_void_p:
        made = compiler.made("CreateModelCompilationOptionsFromSessionOptions", api.env, api.made("CreateSessionOptions"))
        compiler.call("SetInputModelFromBuffer", made, data, c_size_t(len(data)))
        compiler.call("SetGraphOptimizationLevel", made, level)
        return made

    to_file, path = options(), tmp_path / "compiled.onnx"
    compiler.call("SetOutputModelPath", to_file, str(path).encode())
    compiler.call("CompileModel", api.env, to_file)
    to_memory, buffer, size = options(), c_void_p(), c_size_t()
    compiler.call("SetOutputModelBuffer", to_memory, api.allocator, byref(buffer), byref(size))
    compiler.call("CompileModel", api.env, to_memory)
    written: list[bytes] = []
    write = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_size_t)(lambda _, memory, length: written.append(ctypes.string_at(memory, length)))
    to_function = options()
    compiler.call("SetOutputModelWriteFunc", to_function, write, c_void_p())
    compiler.call("CompileModel", api.env, to_function)
    for contents in (path.read_bytes(), ctypes.string_at(buffer.value, size.value), b"".join(written)):
        onnx.checker.check_model(onnx.load_from_string(contents))
        session = api.made("CreateSessionFromArray", api.env, contents, c_size_t(len(contents)), api.made("CreateSessionOptions"))
        np.testing.assert_allclose(api.run_arrays(session, feeds, ["y"])[0], feeds["x"] @ w + feeds["b"])

    again = options()
    compiler.call("SetOutputModelPath", again, str(path).encode())
    compiler.call("SetFlags", again, c_uint32(2))
    with pytest.raises(StatusError, match="exist"):
        compiler.call("CompileModel", api.env, again)


@pytest.mark.parametrize("library", ["ours", "theirs"])
@pytest.mark.parametrize("level", [0, 99])
def test_initializers_go_where_the_client_says(library: str, level: int, request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> None:
    api: Api = request.getfixturevalue(library)
    compiler = Part(api, "GetCompileApi", COMPILER)
    data, feeds = affine(), {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, np.float32)}
    w = np.arange(6, dtype=np.float32).reshape(3, 2)
    (tmp_path / "w.bin").write_bytes(b"....." + w.tobytes())
    asked: list[tuple[bytes, object]] = []

    @ctypes.CFUNCTYPE(c_void_p, c_void_p, c_char_p, c_void_p, c_void_p, POINTER(c_void_p))
    def place(_: object, name: bytes, value: int, was: object, out: object) -> int | None:
        asked.append((name, was))
        if name == b"w":
            out[0] = api.made("CreateExternalInitializerInfo", b"w.bin", c_int64(5), c_size_t(24)).value  # type: ignore[index]
        return None

    options = compiler.made("CreateModelCompilationOptionsFromSessionOptions", api.env, api.made("CreateSessionOptions"))
    compiler.call("SetInputModelFromBuffer", options, data, c_size_t(len(data)))
    compiler.call("SetGraphOptimizationLevel", options, level)
    compiler.call("SetOutputModelPath", options, str(tmp_path / "compiled.onnx").encode())
    compiler.call("SetOutputModelGetInitializerLocationFunc", options, place, c_void_p())
    compiler.call("CompileModel", api.env, options)
    assert sorted(asked) == [(b"b", None), (b"w", None)]
    written = onnx.load(tmp_path / "compiled.onnx", load_external_data=False)
    assert sorted((i.name, i.data_location, [(e.key, e.value) for e in i.external_data]) for i in written.graph.initializer) == [
        ("b", 0, []),
        ("w", 1, [("location", "w.bin"), ("offset", "5"), ("length", "24")]),
    ]
    session = api.session(str(tmp_path / "compiled.onnx"))
    np.testing.assert_allclose(api.run_arrays(session, feeds, ["y"])[0], feeds["x"] @ w + feeds["b"])

    @ctypes.CFUNCTYPE(c_void_p, c_void_p, c_char_p, c_void_p, c_void_p, POINTER(c_void_p))
    def refuses(*_: object) -> int | None:
        return api.call("CreateStatus", 1, b"no room", result=c_void_p)

    compiler.call("SetOutputModelGetInitializerLocationFunc", options, refuses, c_void_p())
    with pytest.raises(StatusError, match="no room"):
        compiler.call("CompileModel", api.env, options)


def test_bytes_that_are_no_model_have_a_status_of_their_own(ours: Api, theirs: Api) -> None:
    for api in (ours, theirs):
        with pytest.raises(StatusError) as error:
            api.session(b"\1\2\3")
        assert error.value.code == 7


CLIENT = """
#include <stdio.h>
struct Base { const void* (*api)(unsigned); const char* (*version)(void); };
const struct Base* OrtGetApiBase(void);
int main(void) { puts(OrtGetApiBase()->version()); return 0; }
"""


@pytest.mark.parametrize("release", ["1.17.0", "1.31.1", "1.32.0"])
@pytest.mark.parametrize("binding", ["lazy", "now"])
def test_a_client_that_asks_for_a_version_of_the_symbol_is_linked(binding: str, release: str, tmp_path: pathlib.Path) -> None:
    """onnxruntime's symbol has the release as its version, and lists of libraries in clients contain its name."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "client.c").write_text(CLIENT)
    (tmp_path / "stub.c").write_text("const void* OrtGetApiBase(void) { return 0; }")
    (tmp_path / "stub.map").write_text(f"VERS_{release} {{ global: OrtGetApiBase; local: *; }};")
    built, replaced = tmp_path / "built", tmp_path / "replaced"
    built.mkdir(), replaced.mkdir()
    name = f"libonnxruntime.so.{release}"
    stub = ["-shared", "-fPIC", "stub.c", "-Wl,--version-script=stub.map", f"-Wl,-soname,{name}", "-o", str(built / name)]
    for arguments in (stub, ["client.c", str(built / name), f"-Wl,-z,{binding}", "-o", "client"]):
        subprocess.run([compiler, *arguments], cwd=tmp_path, check=True)
    (replaced / name).symlink_to(LIBRARY)
    run = subprocess.run([str(tmp_path / "client")], env={"LD_LIBRARY_PATH": str(replaced)}, capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("1.32.0\n", "")  # the loader prints no warning "no version information available"


@pytest.mark.parametrize("getter, places", [("GetEpApi", 74), ("GetInteropApi", 13), ("GetModelPackageApi", 0)])
def test_no_table_is_null_and_its_functions_say_why_they_refuse(ours: Api, theirs: Api, getter: str, places: int) -> None:
    assert theirs.call(getter, result=c_void_p)
    table = (c_void_p * (places + 1)).from_address(ours.call(getter, result=c_void_p))
    assert all(table)
    for entry in (table[0], table[places]):
        with pytest.raises(StatusError, match="does not have") as error:
            ours.call_at(entry, c_void_p(), c_void_p(), c_void_p())
        assert error.value.code == 9
    if places:  # table[1] is ReleaseEpDevice or ReleaseExternalResourceImporter, which accept null
        ctypes.CFUNCTYPE(None, c_void_p)(table[1])(c_void_p())


def test_tables_that_onnxruntime_has_not_either_are_null(ours: Api, theirs: Api) -> None:
    for api in (ours, theirs):
        assert not api.call("GetTrainingApi", c_uint32(32), result=c_void_p)
        assert not api.call("GetExperimentalFunction", b"anything", result=c_void_p)


@pytest.mark.parametrize("library", ["ours", "theirs"])
def test_adapters_feed_what_runs_do_not(library: str, request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    api: Api = request.getfixturevalue(library)
    adapter = onnxruntime.AdapterFormat()
    adapter.set_parameters({"b": onnxruntime.OrtValue.ortvalue_from_numpy(np.array([5, 6], np.float32))})
    adapter.export_adapter(str(tmp_path / "b.onnx_adapter"))
    contents = (tmp_path / "b.onnx_adapter").read_bytes()
    data, x, w = affine(), np.ones((1, 3), np.float32), np.arange(6, dtype=np.float32).reshape(3, 2)
    session = api.made("CreateSessionFromArray", api.env, data, c_size_t(len(data)), api.made("CreateSessionOptions"))
    for loaded in (
        api.made("CreateLoraAdapter", str(tmp_path / "b.onnx_adapter").encode(), c_void_p()),
        api.made("CreateLoraAdapterFromArray", contents, c_size_t(len(contents)), c_void_p()),
    ):
        options = api.made("CreateRunOptions")
        api.call("RunOptionsAddActiveLoraAdapter", options, loaded)
        np.testing.assert_allclose(api.run_arrays(session, {"x": x}, ["y"], options)[0], x @ w + [5, 6])
        api.call("ReleaseRunOptions", options, result=None)
        api.call("ReleaseLoraAdapter", loaded, result=None)

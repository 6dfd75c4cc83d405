"""Compares inputs and outputs of every type with ONNX Runtime, for the types that it has."""

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from onnx import TensorProto, helper

import treadle
from treadle import errors

import small_models as small

ml_dtypes = pytest.importorskip("ml_dtypes")


def run(bytes_, **feeds):
    return treadle.InferenceSession(bytes_).run(None, feeds)


def echo(dtype, x):
    """Runs a model of an Identity on the array, and returns its output."""
    return run(small.identity(dtype, [None] * np.ndim(x)), x=x)[0]


NUMERIC = {
    TensorProto.FLOAT: np.float32,
    TensorProto.DOUBLE: np.float64,
    TensorProto.FLOAT16: np.float16,
    TensorProto.INT8: np.int8,
    TensorProto.INT16: np.int16,
    TensorProto.INT32: np.int32,
    TensorProto.INT64: np.int64,
    TensorProto.UINT8: np.uint8,
    TensorProto.UINT16: np.uint16,
    TensorProto.UINT32: np.uint32,
    TensorProto.UINT64: np.uint64,
    TensorProto.BOOL: np.bool_,
    TensorProto.COMPLEX64: np.complex64,
    TensorProto.COMPLEX128: np.complex128,
}


@pytest.mark.parametrize(("code", "dtype"), NUMERIC.items(), ids=lambda v: getattr(v, "__name__", ""))
def test_numeric_arrays_come_back_as_they_went_in(code, dtype):
    for shape in [(), (3,), (2, 3), (0, 4), (2, 1, 3)]:
        x = np.arange(1, 1 + int(np.prod(shape))).reshape(shape).astype(dtype)
        y = echo(code, x)
        assert isinstance(y, np.ndarray)
        assert (y.dtype, y.shape) == (x.dtype, x.shape)
        np.testing.assert_array_equal(x, y)
        assert y.flags.writeable
        assert y.flags.c_contiguous


@pytest.mark.parametrize(
    ("code", "dtype"),
    [
        (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
        (TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn),
        (TensorProto.FLOAT8E4M3FNUZ, ml_dtypes.float8_e4m3fnuz),
        (TensorProto.FLOAT8E5M2, ml_dtypes.float8_e5m2),
        (TensorProto.FLOAT8E5M2FNUZ, ml_dtypes.float8_e5m2fnuz),
        (TensorProto.INT4, ml_dtypes.int4),
        (TensorProto.UINT4, ml_dtypes.uint4),
        (TensorProto.FLOAT4E2M1, ml_dtypes.float4_e2m1fn),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_types_that_numpy_lacks_come_back_as_those_of_ml_dtypes(code, dtype):
    x = np.array([[0, 1, 2], [3, 4, 6], [1.5, -2, 0]]).clip(0 if code == TensorProto.UINT4 else -8, 6).astype(dtype)
    value = treadle.OrtValue.ortvalue_from_numpy(x)
    assert value.element_type() == code
    y = value.numpy()
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(x.astype(np.float32), y.astype(np.float32))
    assert value.tensor_size_in_bytes() == {4: 5, 8: 9, 16: 18}[ml_dtypes.finfo(dtype).bits if "float" in dtype.__name__ else 4]
    if code in (TensorProto.BFLOAT16, TensorProto.INT4, TensorProto.UINT4):
        np.testing.assert_array_equal(echo(code, x).astype(np.float32), x.astype(np.float32))


def test_without_ml_dtypes_bits_come_as_unsigned_integers(monkeypatch):
    import sys

    x = np.array([1.5, -2], ml_dtypes.bfloat16)
    value = treadle.OrtValue.ortvalue_from_numpy(x)
    nibbles = treadle.OrtValue.ortvalue_from_numpy(np.array([-8, 7], ml_dtypes.int4))
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    np.testing.assert_array_equal(value.numpy(), x.view(np.uint16))
    assert value.numpy().dtype == np.uint16
    np.testing.assert_array_equal(nibbles.numpy(), np.array([-8, 7], np.int8))


def test_any_layout_of_an_array_is_taken():
    base = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    misaligned = np.frombuffer(b"x" + base.tobytes(), np.uint8)[1:].view(np.float32).reshape(base.shape)
    readonly = base.copy()
    readonly.flags.writeable = False
    for x in [
        base[:, ::2],
        base[::-1],
        base.transpose(2, 0, 1),
        np.asfortranarray(base),
        base.astype(">f4"),
        misaligned,
        readonly,
        np.broadcast_to(base[0, 0], (3, 4)),
        base.view(np.matrix) if base.ndim == 2 else np.matrix([[1, 2]], np.float32),
    ]:
        np.testing.assert_array_equal(echo(TensorProto.FLOAT, x), x)


def test_inputs_are_used_in_place():
    import tracemalloc

    x = np.ones(4_000_000, np.float32)
    session = treadle.InferenceSession(
        small.model([small.node("ReduceSum", ["x"], ["y"])], [small.tensor("x", ["N"])], [small.tensor("y", None)])
    )
    session.run(None, {"x": x})
    value = treadle.OrtValue.ortvalue_from_numpy(x)
    assert value.data_ptr() == x.ctypes.data
    tracemalloc.start()
    session.run(None, {"x": x})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < x.nbytes / 10


STRINGS = [
    np.array(["a", "bé", "", "日本"]),
    np.array([["a", "b"], ["c", "d"]], dtype=object),
    np.array(["a", 3, None, np.nan], dtype=object),
    np.array([b"a", b"bcd"]),
    np.array("scalar"),
    np.array([], dtype=object),
    np.array(["a\0b", "tail\0"], dtype=object),
]


@pytest.mark.parametrize("x", STRINGS, ids=repr)
def test_strings_come_back_as_in_onnxruntime(ort, x):
    bytes_ = small.identity(TensorProto.STRING, [None] * x.ndim)
    ours = run(bytes_, x=x)[0]
    assert ours.dtype == object
    assert ours.shape == x.shape
    if "\0" not in "".join(map(str, x.ravel())):  # ONNX Runtime cuts strings at a zero character
        theirs = ort.InferenceSession(bytes_, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        assert ours.tolist() == theirs.tolist()
    else:
        assert ours.tolist() == x.tolist()


def test_strings_that_are_not_utf8_survive():
    x = np.array([b"\xff\xfe", b"ok"], dtype=object)
    y = echo(TensorProto.STRING, x)
    assert [text.encode("utf-8", "surrogateescape") for text in y] == x.tolist()
    assert echo(TensorProto.STRING, y).tolist() == y.tolist()


def test_lists_are_sequences():
    bytes_ = small.model(
        [small.node("ConcatFromSequence", ["x"], ["y"], axis=0), small.node("Identity", ["x"], ["z"])],
        [small.sequence("x", [None])],
        [small.tensor("y", [None]), small.sequence("z", [None])],
    )
    parts = [np.float32([1, 2]), np.float32([3]), np.float32([])]
    joined, copy = run(bytes_, x=parts)
    np.testing.assert_array_equal(joined, [1, 2, 3])
    assert isinstance(copy, list)
    for a, b in zip(copy, parts, strict=True):
        np.testing.assert_array_equal(a, b)
        assert not np.shares_memory(a, b)
    np.testing.assert_array_equal(run(bytes_, x=tuple(parts[:1]))[0], [1, 2])
    with pytest.raises(errors.InvalidArgument, match="x"):
        run(bytes_, x=parts[0])


def test_the_elements_of_a_sequence_outlive_their_arrays():
    bytes_ = small.model([small.node("Identity", ["x"], ["y"])], [small.sequence("x", [None])], [small.sequence("y", [None])])
    results = run(bytes_, x=[np.full(1000, i, np.float32) for i in range(5)])[0]
    _ = [np.full(1000, -1, np.float32) for _ in range(5)]
    assert [float(r[0]) for r in results] == [0, 1, 2, 3, 4]
    assert all((r == r[0]).all() for r in results)


@pytest.mark.parametrize("labels", [{"classlabels_int64s": [10, 20, 30]}, {"classlabels_strings": ["a", "b", "ç"]}])
def test_maps_are_dicts(ort, labels):
    key = TensorProto.INT64 if "classlabels_int64s" in labels else TensorProto.STRING
    tensor_type = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    output = helper.make_value_info("y", helper.make_sequence_type_proto(helper.make_map_type_proto(key, tensor_type)))
    bytes_ = small.model([small.node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", **labels)], [small.tensor("x", [None, 3])], [output])
    x = np.float32([[0.25, 0.5, 0.25], [1, 0, 0]])
    ours, theirs = treadle.InferenceSession(bytes_), ort.InferenceSession(bytes_, providers=["CPUExecutionProvider"])
    assert ours.run(None, {"x": x}) == theirs.run(None, {"x": x})
    assert ours.get_outputs()[0].type == theirs.get_outputs()[0].type


def test_a_map_may_be_fed():
    tensor_type = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    declared = helper.make_value_info("x", helper.make_map_type_proto(TensorProto.STRING, tensor_type))
    bytes_ = small.model(
        [small.node("DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", string_vocabulary=["a", "b", "c"])],
        [declared],
        [small.tensor("y", [1, 3])],
    )
    np.testing.assert_array_equal(run(bytes_, x={"c": 3.0, "a": 1.0})[0], [[1, 0, 3]])


def test_none_is_an_empty_optional():
    bytes_ = small.model(
        [small.node("OptionalHasElement", ["x"], ["has"]), small.node("Identity", ["x"], ["y"])],
        [small.optional("x", [None])],
        [small.tensor("has", [], TensorProto.BOOL), small.optional("y", [None])],
    )
    session = treadle.InferenceSession(bytes_)
    assert session.get_inputs()[0].type == "optional(tensor(float))"
    has, value = session.run(None, {"x": np.float32([1, 2])})
    assert bool(has) is True
    np.testing.assert_array_equal(value, [1, 2])
    for feeds in ({"x": None}, {}):
        has, value = session.run(None, feeds)
        assert (bool(has), value) == (False, None)


@pytest.mark.parametrize("op_type", ["Identity", "SequenceAt", "SequenceLength", "SequenceConstruct", "Optional", "If"])
def test_operators_take_no_sequences_of_sequences(ort, op_type):
    """ONNX's operators take no sequences of sequences; only inputs and outputs of a graph may have such types."""
    tensors = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    nested = helper.make_sequence_type_proto(tensors)
    s, i = helper.make_value_info("s", nested if op_type != "SequenceConstruct" else tensors), helper.make_tensor_value_info("i", TensorProto.INT64, [])
    out = helper.make_value_info("out", onnx.TypeProto())
    inputs = {"SequenceAt": ["s", "i"], "SequenceConstruct": ["s", "s"]}.get(op_type, ["s"])
    if op_type == "If":
        body = helper.make_graph([helper.make_node("Identity", ["s"], ["inner"])], "body", [], [helper.make_value_info("inner", onnx.TypeProto())])
        given = [onnx.numpy_helper.from_array(np.array(True), "yes")]
        node = helper.make_node("If", ["yes"], ["out"], then_branch=body, else_branch=body)
    else:
        given, node = [], helper.make_node(op_type, inputs, ["out"])
    graph = helper.make_graph([node], "nested", [s, i], [out], given)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()
    with pytest.raises(Exception, match=r"seq\(seq\(|seq\(tensor\(float\)\)' of input"):
        ort.InferenceSession(made)
    with pytest.raises(treadle.Error, match=r"is seq\("):
        treadle.InferenceSession(made)
    whole = helper.make_graph([], "nested", [helper.make_value_info("s", nested)], [helper.make_value_info("s", nested)])
    session = treadle.InferenceSession(helper.make_model(whole, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString())
    assert session.get_inputs()[0].type == "seq(seq(tensor(float)))"


MAPS = {"text to integers": ("STRING", "INT64"), "integers to integers": ("INT64", "INT64"), "integers to floats": ("INT64", "FLOAT")}


def sum_of_map(kind):
    """Makes a DictVectorizer of a map. Its vocabulary is "a" and "b", or 1 and 2."""
    key, value = (getattr(TensorProto, name) for name in MAPS[kind])
    made = helper.make_map_type_proto(key, helper.make_tensor_type_proto(value, []))
    vocabulary = {"string_vocabulary": ["a", "b"]} if key == TensorProto.STRING else {"int64_vocabulary": [1, 2]}
    node = helper.make_node("DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", **vocabulary)
    graph = helper.make_graph([node], "maps", [helper.make_value_info("x", made)], [helper.make_tensor_value_info("y", value, [1, 2])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)], ir_version=8).SerializeToString()


@pytest.mark.parametrize("value", [3, np.int64(3), np.array(3), 3.0, np.float32(3)])
@pytest.mark.parametrize("kind", MAPS)
def test_maps_take_whole_numbers_of_every_type(kind, value):
    given = {"a": value} if kind.startswith("text") else {np.int32(1): value}
    assert run(sum_of_map(kind), x=given)[0].tolist() == [[3, 0]]


@pytest.mark.parametrize(("kind", "given"), [
    ("text to integers", {"a": 1.5}), ("text to integers", {"a": np.array(1.5)}), ("text to integers", {"a": "x"}), ("text to integers", {1: 1}),
    ("integers to integers", {1: float("nan")}), ("integers to integers", {1.5: 1}), ("integers to floats", {"1": 1.0}), ("integers to floats", {1.5: 1.0})])  # fmt: skip
def test_maps_cut_nothing_off(kind, given):
    with pytest.raises(errors.InvalidArgument, match="Unexpected input data type"):
        run(sum_of_map(kind), x=given)

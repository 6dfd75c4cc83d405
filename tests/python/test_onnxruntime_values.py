"""Compares sequences, maps, optionals and sparse tensors of libonnxruntime.so.1 with those of onnxruntime's own library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_int, c_int64, c_size_t, c_void_p

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime_c import LIBRARY, MAP, SEQUENCE, Api, StatusError, handles, model, strings, tensor

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="libonnxruntime.so.1 is not built; set TREADLE_ORT_LIBRARY")

FAIL, INVALID_ARGUMENT = 1, 2
COO, CSR, BLOCKS = 1, 2, 4


def floats(api: Api, *values: float) -> c_void_p:
    return api.value(np.array(values, np.float32))


def ints(api: Api, *values: int) -> c_void_p:
    return api.value(np.array(values, np.int64))


def made(api: Api, kind: int, *parts: c_void_p) -> c_void_p:
    out = c_void_p()
    api.call("CreateValue", handles(*parts), c_size_t(len(parts)), kind, byref(out))
    return out


def part(api: Api, value: c_void_p, index: int) -> c_void_p:
    out = c_void_p()
    api.call("GetValue", value, index, api.allocator, byref(out))
    return out


def pair(api: Api) -> c_void_p:
    return made(api, MAP, ints(api, 1), floats(api, 2))


def two(api: Api) -> c_void_p:
    return made(api, SEQUENCE, floats(api, 1), floats(api, 2))


FAULTS: dict[str, tuple[Callable[[Api], object], int, str]] = {
    "behind a sequence": (lambda api: part(api, two(api), 2), FAIL, ""),
    "before a sequence": (lambda api: part(api, two(api), -1), FAIL, ""),
    "behind a map": (lambda api: part(api, pair(api), 2), FAIL, "Invalid index requested for map type"),
    "a part of a tensor": (lambda api: part(api, floats(api, 1), 0), FAIL, "Input is not of type sequence or map"),
    "a tensor's count": (lambda api: api.number("GetValueCount", floats(api, 1)), FAIL, "Input is not of type sequence or map"),
    "a sequence of nothing": (lambda api: made(api, SEQUENCE), FAIL, "Number of values should be at least 1."),
    "a sequence of two dtypes": (lambda api: made(api, SEQUENCE, floats(api, 1), ints(api, 1)), FAIL, "Sequences must have tensors of the same data type"),
    "a sequence of sequences": (lambda api: made(api, SEQUENCE, two(api)), FAIL, "Each element of the sequence should be either tensor or map"),
    "a sequence of a map and a tensor": (lambda api: made(api, SEQUENCE, pair(api), floats(api, 1)), FAIL, "is of a type different from others"),
    "a value of another kind": (lambda api: made(api, 1, floats(api, 1)), FAIL, "Input is not of type sequence or map"),
    "a map of keys alone": (lambda api: made(api, MAP, ints(api, 1)), FAIL, "For map type num_values MUST be 2"),
    "a map with a value too few": (lambda api: made(api, MAP, ints(api, 1, 2), floats(api, 1)), FAIL, "Key and value tensors have unequal number of elements"),
    "a map of matrices": (
        lambda api: made(api, MAP, api.value(np.ones((1, 2), np.int64)), api.value(np.ones((1, 2), np.float32))), FAIL, "Either the key tensor or the value tensor has NumDimensions > 1"),
    "a map with keys of another dtype": (lambda api: made(api, MAP, floats(api, 1), floats(api, 1)), FAIL, "Key type is not supported yet"),
    "a map with values of another dtype": (lambda api: made(api, MAP, ints(api, 1), api.value(np.array([1], np.int32))), FAIL, "Value type is not supported yet: int32"),
    "an index behind a sparse tensor": (lambda api: filled(api, [0, 4, 9]), INVALID_ARGUMENT, "COO linear index out of bounds: 9 must be in [0, 9)"),
    "an index before a sparse tensor": (lambda api: filled(api, [-1, 4, 8]), INVALID_ARGUMENT, "COO linear index out of bounds: -1 must be in [0, 9)"),
    "an index too few": (lambda api: filled(api, [0, 4]), INVALID_ARGUMENT, "COO indices count must be equal to or twice the values count"),
    "a sparse tensor that is filled twice": (lambda api: fill(api, filled(api, [0, 4, 8]), [0, 4, 8]), FAIL, "already has populated sparse_indices"),
    "rows that hold less than there is": (lambda api: rows(api, [0], [0, 1, 2, 2]), INVALID_ARGUMENT, ""),
    "a sequence read as a tensor": (lambda api: api.made("GetTensorMutableData", two(api)), 6, ""),
    "a map read as a tensor": (lambda api: api.made("GetTensorMutableData", pair(api)), FAIL, ""),
    "a tensor read as sparse": (lambda api: api.number("GetSparseTensorFormat", floats(api, 1), kind=c_int), 6, ""),
    "the memory of a map": (lambda api: api.made("GetTensorMemoryInfo", pair(api)), FAIL, ""),
    "the memory of a sequence of maps": (lambda api: api.made("GetTensorMemoryInfo", made(api, SEQUENCE, pair(api))), FAIL, ""),
    "the shape of a sequence": (lambda api: api.made("GetTensorTypeAndShape", two(api)), FAIL, ""),
    "texts in the client's memory": (lambda api: around(api, 8), INVALID_ARGUMENT, "Can not use strings in pre-allocated memory. Use CreateSparseTensorAsOrtValue()"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("library", ["ours", "theirs"])
def test_faults_of_values(library: str, fault: str, request: pytest.FixtureRequest) -> None:
    call, code, words = FAULTS[fault]
    with pytest.raises(StatusError) as error:
        call(request.getfixturevalue(library))
    assert (error.value.code, error.value.message) == (code, error.value.message)
    assert words in error.value.message


def test_maps_are_sorted_and_keep_the_first_of_a_key(ours: Api, theirs: Api) -> None:
    for api in (ours, theirs):
        numbers = made(api, MAP, ints(api, 5, 1, 5), floats(api, 0.5, 2, 7))
        assert [api.content(part(api, numbers, k)).tolist() for k in (0, 1)] == [[1, 5], [2, 0.5]]
        texts = made(api, MAP, api.value(np.array(["b", "a"], object)), api.value(np.array(["x", "y"], object)))
        assert [api.content(part(api, texts, k)).tolist() for k in (0, 1)] == [["a", "b"], ["y", "x"]]


def sequence_length() -> bytes:
    return model([helper.make_node("SequenceLength", ["s"], ["n"])], [helper.make_tensor_sequence_value_info("s", 1, None)], [tensor("n", 7, [])])


def test_a_sequence_of_another_dtype_is_refused(ours: Api, theirs: Api) -> None:
    for api in (ours, theirs):
        session = api.session(sequence_length())
        assert api.content(api.run(session, {"s": two(api)}, ["n"])[0]) == 2
        with pytest.raises(StatusError, match="Unexpected input data type") as error:
            api.run(session, {"s": made(api, SEQUENCE, ints(api, 1))}, ["n"])
        assert error.value.code == INVALID_ARGUMENT
        for other in (floats(api, 1), pair(api)):
            with pytest.raises(StatusError):
                api.run(session, {"s": other}, ["n"])


def optional_model(element: onnx.TypeProto, op_type: str, output: onnx.ValueInfoProto) -> bytes:
    given = helper.make_value_info("o", helper.make_optional_type_proto(element))
    graph = helper.make_graph([helper.make_node(op_type, ["o"], ["y"])], "graph", [given], [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()


def test_optional_inputs_take_plain_values_or_none(ours: Api, theirs: Api) -> None:
    one = helper.make_tensor_type_proto(1, [None])
    several = helper.make_sequence_type_proto(one)
    for api in (ours, theirs):
        for element, value in ((one, floats(api, 5)), (several, two(api))):
            session = api.session(optional_model(element, "OptionalHasElement", tensor("y", 9, [])))
            assert api.content(api.run(session, {"o": value}, ["y"])[0])
            assert not api.run_arrays(session, {}, ["y"])[0]
        session = api.session(optional_model(one, "OptionalGetElement", tensor("y", 1, [None])))
        assert api.content(api.run(session, {"o": floats(api, 5)}, ["y"])[0]).tolist() == [5]
        session = api.session(optional_model(several, "OptionalGetElement", helper.make_tensor_sequence_value_info("y", 1, [None])))
        assert [each.tolist() for each in api.content(api.run(session, {"o": two(api)}, ["y"])[0])] == [[1], [2]]
        session = api.session(optional_model(one, "OptionalHasElement", tensor("y", 9, [])))
        with pytest.raises(StatusError, match="Unexpected input data type") as error:
            api.run(session, {"o": ints(api, 1)}, ["y"])
        assert error.value.code == INVALID_ARGUMENT


def test_an_output_that_holds_nothing_is_filled(ours: Api) -> None:
    one = helper.make_tensor_type_proto(1, [None])
    made = helper.make_graph([helper.make_node("Optional", [], ["o"], type=one)], "graph", [], [helper.make_value_info("o", helper.make_optional_type_proto(one))])
    nothing = ours.run(ours.session(helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()), {}, ["o"])[0]
    session = ours.session(model([helper.make_node("Neg", ["x"], ["y"])], [tensor("x", 1, [None])], [tensor("y", 1, [None])]))
    assert ours.content(ours.run(session, {"x": floats(ours, 2, 3)}, ["y"], into=[nothing])[0]).tolist() == [-2, -3]


def empty(api: Api, dtype: int = 1, dims: tuple[int, int] = (3, 3)) -> c_void_p:
    return api.made("CreateSparseTensorAsOrtValue", api.allocator, (c_int64 * 2)(*dims), c_size_t(2), dtype)


def fill(api: Api, value: c_void_p, indices: list[int]) -> c_void_p:
    values, places = np.array([1, 2, 3], np.float32), np.array(indices, np.int64)
    api.call("FillSparseTensorCoo", value, api.memory, (c_int64 * 1)(3), c_size_t(1), c_void_p(values.ctypes.data), c_void_p(places.ctypes.data), c_size_t(len(indices)))
    return value


def filled(api: Api, indices: list[int]) -> c_void_p:
    return fill(api, empty(api), indices)


def around(api: Api, dtype: int = 1) -> c_void_p:
    values, out = np.array([1, 2], np.float32), c_void_p()
    api.kept.append(values)
    api.call("CreateSparseTensorWithValuesAsOrtValue", api.memory, c_void_p(values.ctypes.data), (c_int64 * 2)(3, 3), c_size_t(2), (c_int64 * 1)(2), c_size_t(1), dtype, byref(out))
    return out


def rows(api: Api, inner: list[int], outer: list[int]) -> c_void_p:
    value, columns, ends = around(api), np.array(inner, np.int64), np.array(outer, np.int64)
    api.kept += [columns, ends]
    api.call("UseCsrIndices", value, c_void_p(columns.ctypes.data), c_size_t(len(inner)), c_void_p(ends.ctypes.data), c_size_t(len(outer)))
    return value


def indices_of(api: Api, value: c_void_p, kind: int, dtype: type) -> np.ndarray:
    count, data = c_size_t(), c_void_p()
    api.call("GetSparseTensorIndices", value, kind, byref(count), byref(data))
    _, dims, _ = api.shape_and_dtype(api.made("GetSparseTensorIndicesTypeShape", value, kind))
    return np.frombuffer(ctypes.string_at(data.value, count.value * np.dtype(dtype).itemsize), dtype).reshape(dims)


def test_sparse_tensors_in_every_format(ours: Api, theirs: Api) -> None:
    for api in (ours, theirs):
        assert api.number("GetSparseTensorFormat", around(api), kind=c_int) == 0
        assert indices_of(api, filled(api, [0, 4, 8]), 0, np.int64).tolist() == [0, 4, 8]
        assert indices_of(api, filled(api, [0, 0, 1, 1, 2, 2]), 0, np.int64).tolist() == [[0, 0], [1, 1], [2, 2]]
        in_rows = rows(api, [0, 1], [0, 1, 2, 2])
        assert api.number("GetSparseTensorFormat", in_rows, kind=c_int) == CSR
        assert (indices_of(api, in_rows, 1, np.int64).tolist(), indices_of(api, in_rows, 2, np.int64).tolist()) == ([0, 1], [0, 1, 2, 2])
        blocks, values, places = empty(api, dims=(8, 8)), np.arange(8, dtype=np.float32).reshape(2, 2, 2), np.array([[0, 1], [1, 2]], np.int32)
        api.call("FillSparseTensorBlockSparse", blocks, api.memory, (c_int64 * 3)(2, 2, 2), c_size_t(3), c_void_p(values.ctypes.data), (c_int64 * 2)(2, 2), c_size_t(2), c_void_p(places.ctypes.data))
        assert api.number("GetSparseTensorFormat", blocks, kind=c_int) == BLOCKS
        assert (indices_of(api, blocks, 3, np.int32) == places).all()
        assert api.shape_and_dtype(api.made("GetSparseTensorValuesTypeAndShape", blocks))[:2] == (1, [2, 2, 2])
        with pytest.raises(StatusError):
            indices_of(api, blocks, 0, np.int64)


def test_sparse_texts(ours: Api, theirs: Api) -> None:
    for api in (ours, theirs):
        value, texts, places = empty(api, 8), strings(b"a", b"bc"), np.array([1, 5], np.int64)
        api.call("FillSparseTensorCoo", value, api.memory, (c_int64 * 1)(2), c_size_t(1), ctypes.cast(texts, c_void_p), c_void_p(places.ctypes.data), c_size_t(2))
        assert api.strings(value, 2) == ["a", "bc"]
        assert api.number("GetStringTensorElementLength", value, c_size_t(1)) == 2
        with pytest.raises(StatusError, match="to retrieve strings"):
            api.made("GetSparseTensorValues", value)


def test_an_output_that_is_declared_sparse_is_sparse(ours: Api, theirs: Api) -> None:
    sparse = helper.make_sparse_tensor(numpy_helper.from_array(np.array([1.5, 2.5, 3.5], np.float32), "v"), numpy_helper.from_array(np.array([2, 3, 5], np.int64), "i"), [3, 3])
    kind = onnx.TypeProto()
    kind.sparse_tensor_type.elem_type = 1
    for extent in (3, 3):
        kind.sparse_tensor_type.shape.dim.add().dim_value = extent
    graph = helper.make_graph([helper.make_node("Constant", [], ["s"], sparse_value=sparse)], "graph", [], [helper.make_value_info("s", kind)])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=7).SerializeToString()
    for api in (ours, theirs):
        [value] = api.run(api.session(data), {}, ["s"])
        assert (api.number("IsSparseTensor", value, kind=c_int), api.number("GetSparseTensorFormat", value, kind=c_int)) == (1, COO)
        assert indices_of(api, value, 0, np.int64).tolist() == [2, 3, 5]
        assert np.frombuffer(ctypes.string_at(api.made("GetSparseTensorValues", value).value, 12), np.float32).tolist() == [1.5, 2.5, 3.5]
        assert api.shape_and_dtype(api.made("GetTensorTypeAndShape", value))[:2] == (1, [3, 3])


def test_the_axes_of_a_type_only_grow(ours: Api, theirs: Api) -> None:
    told = []
    for api in (ours, theirs):
        for dims in ([], [2], [2, 3]):
            for steps in ([[5]], [[]], [[1, 2, 3], [4]], [(b"a",)], [()], [(b"a", b"b"), [7]], [[7, 8], (b"a",), [1]]):
                info = api.made("GetTensorTypeAndShape", api.value(np.zeros(dims, np.float32)))
                for step in steps:
                    if isinstance(step, tuple):
                        api.call("SetSymbolicDimensions", info, strings(*step), c_size_t(len(step)))
                    else:
                        api.call("SetDimensions", info, (c_int64 * max(len(step), 1))(*step), c_size_t(len(step)))
                told.append((dims, steps, api.shape_and_dtype(info)))
    assert told[: len(told) // 2] == told[len(told) // 2 :]


def test_a_shape_of_no_axes_is_a_shape(ours: Api, theirs: Api) -> None:
    for api in (ours, theirs):
        for function, values in (("SetSymbolicDimensions", strings()), ("SetDimensions", (c_int64 * 1)())):
            info = api.made("CreateTensorTypeAndShapeInfo")
            assert not api.call("TensorTypeAndShape_HasShape", info, result=ctypes.c_bool)
            api.call(function, info, values, c_size_t(0))
            assert api.call("TensorTypeAndShape_HasShape", info, result=ctypes.c_bool)


def test_values_of_a_map_have_no_shape(ours: Api, theirs: Api) -> None:
    for api in (ours, theirs):
        made = c_void_p()
        api.call("CreateValue", handles(api.value(np.array([1, 2], np.int64)), api.value(np.array([0.5, 2], np.float32))), c_size_t(2), MAP, byref(made))
        values = api.made("GetMapValueType", api.made("CastTypeInfoToMapTypeInfo", api.made("GetTypeInfo", made)))
        assert not api.call("TensorTypeAndShape_HasShape", api.made("CastTypeInfoToTensorInfo", values), result=ctypes.c_bool)


ROWS = helper.make_tensor_type_proto(1, [2, "n"])
NESTED = {
    "a sequence": helper.make_sequence_type_proto(ROWS), "a sequence of scalars": helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, [])),
    "a sequence of any rank": helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, None)), "an optional": helper.make_optional_type_proto(ROWS),
    "an optional sequence": helper.make_optional_type_proto(helper.make_sequence_type_proto(ROWS)),
}


def innermost(api: Api, kind: c_void_p) -> list:
    """Returns the tensor's shape within sequences and optionals, and whether it has one."""
    number = api.number("GetOnnxTypeFromTypeInfo", kind, kind=c_int)
    if number == 1:
        info = api.made("CastTypeInfoToTensorInfo", kind)
        return [api.call("TensorTypeAndShape_HasShape", info, result=ctypes.c_bool), *api.shape_and_dtype(info)]
    cast, element = {SEQUENCE: ("CastTypeInfoToSequenceTypeInfo", "GetSequenceElementType"), 6: ("CastTypeInfoToOptionalTypeInfo", "GetOptionalContainedTypeInfo")}[number]
    return innermost(api, api.made(element, api.made(cast, kind)))


@pytest.mark.parametrize("case", NESTED)
def test_the_extents_in_sequences_and_optionals(ours: Api, theirs: Api, case: str) -> None:
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "graph", [helper.make_value_info("x", NESTED[case])], [helper.make_value_info("y", NESTED[case])])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    told = []
    for api in (ours, theirs):
        session = api.session(data)
        told.append([innermost(api, api.made(f"SessionGet{side}TypeInfo", session, c_size_t(0))) for side in ("Input", "Output")])
    assert told[0] == told[1]


def test_a_type_has_its_denotation(ours: Api, theirs: Api) -> None:
    x, y = tensor("x", 1, [2]), tensor("y", 1, [2])
    x.type.denotation, y.type.denotation = "TENSOR", "IMAGE"
    data = model([helper.make_node("Relu", ["x"], ["y"])], [x], [y])
    for api in (ours, theirs):
        session = api.session(data)
        for side, expected in (("Input", b"TENSOR"), ("Output", b"IMAGE")):
            text, length = ctypes.c_char_p(), c_size_t()
            api.call("GetDenotationFromTypeInfo", api.made(f"SessionGet{side}TypeInfo", session, c_size_t(0)), byref(text), byref(length))
            assert (text.value, length.value) == (expected, len(expected))

"""Tests custom operators in all forms that the interface allows, in libonnxruntime.so.1 and in onnxruntime's own library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_size_t, c_void_p

import numpy as np
import onnxruntime_operators as operators
import pytest
from onnx import helper
from onnxruntime_c import LIBRARY, Api, StatusError, strings, tensor

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="libonnxruntime.so.1 is not built; set TREADLE_ORT_LIBRARY")

REQUIRED, OPTIONAL, VARIADIC = 0, 1, 2
ANY, FLOAT, INT64, STRING = 0, 1, 7, 8
DOMAIN = "custom.test"
X = np.arange(3, dtype=np.float32)


class Operator(operators.Operator):
    """A custom operator of version 18. `same`: variadic operands have one type. `infer(context)` sets output shapes."""

    def __init__(self, api: Api, name: str, input_types: list[int], output_types: list[int], compute: Callable, *, inputs: list[int] | None = None,
                 outputs: list[int] | None = None, least: int = 1, same: bool = True, infer: Callable | None = None, create: Callable = lambda _info: None) -> None:
        super().__init__(api, name, input_types, output_types, create, compute)
        kinds, output_kinds = inputs or [REQUIRED] * len(input_types), outputs or [REQUIRED] * len(output_types)
        self.op.version = 18
        self.op.input_kind, self.op.output_kind = operators._TYPE(lambda _op, i: kinds[i]), operators._TYPE(lambda _op, i: output_kinds[i])
        self.op.least_inputs = operators._VARIADIC(lambda _op: least)
        self.op.same_inputs = self.op.same_outputs = operators._VARIADIC(lambda _op: int(same))
        self.infer = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p)(lambda _op, context: self._told(lambda: infer(c_void_p(context))))
        self.start, self.end = operators._VARIADIC(lambda _op: 1), operators._VARIADIC(lambda _op: 2**31 - 1)
        for place, function in enumerate((self.infer if infer else None, self.start, self.end)):
            self.op.later[place] = ctypes.cast(function, c_void_p).value if function else None


def session_of(api: Api, operator: Operator, nodes: list, inputs: list, outputs: list) -> c_void_p:
    graph = helper.make_graph(nodes, "graph", inputs, outputs)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    return api.session(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString(), operator.options(DOMAIN))


def node(op_type: str, inputs: list[str], outputs: list[str], **attributes: object) -> object:
    return helper.make_node(op_type, inputs, outputs, domain=DOMAIN, **attributes)


def type_of(api: Api, value: c_void_p) -> tuple[int, list[int]]:
    return api.shape_and_dtype(api.made("GetTensorTypeAndShape", value))[:2]


def copier(api: Api) -> Callable:
    """Returns a kernel function that copies each input to the output at its position."""

    def compute(_kernel: object, context: c_void_p) -> None:
        for place in range(api.number("KernelContext_GetOutputCount", context)):
            given = operators.input_of(api, context, place)
            dtype, dims = type_of(api, given)
            made = operators.output_of(api, context, place, dims)
            if dtype == STRING:
                texts = api.strings(given, int(np.prod(dims)))
                api.call("FillStringTensor", made, strings(*[text.encode() for text in texts]), c_size_t(len(texts)))
            else:
                ctypes.memmove(api.made("GetTensorMutableData", made).value, api.made("GetTensorMutableData", given).value, api.number("GetTensorSizeInBytes", given))

    return compute


@pytest.mark.parametrize("library", ["ours", "theirs"])
def test_an_output_of_any_dtype_has_its_inputs(library: str, request: pytest.FixtureRequest) -> None:
    api: Api = request.getfixturevalue(library)
    for number, x in ((FLOAT, X), (INT64, X.astype(np.int64))):
        operator = Operator(api, "Copy", [ANY], [ANY], copier(api))
        session = session_of(api, operator, [node("Copy", ["x"], ["z"]), helper.make_node("Neg", ["z"], ["y"])], [tensor("x", number, [3])], [tensor("y", number, [3])])
        assert api.run_arrays(session, {"x": x}, ["y"])[0].tolist() == [0, -1, -2]


@pytest.mark.parametrize("library", ["ours", "theirs"])
def test_variadic_operands_of_several_dtypes(library: str, request: pytest.FixtureRequest) -> None:
    api: Api = request.getfixturevalue(library)
    operator = Operator(api, "CopyAll", [ANY], [ANY], copier(api), inputs=[VARIADIC], outputs=[VARIADIC], same=False)
    kinds = {"a": FLOAT, "b": INT64, "c": STRING}
    session = session_of(api, operator, [node("CopyAll", list("abc"), list("pqr"))], [tensor(name, kind, None) for name, kind in kinds.items()],
                         [tensor(name, kind, None) for name, kind in zip("pqr", kinds.values())])
    values = api.run_arrays(session, {"a": X, "b": X.astype(np.int64), "c": np.array(["hi"], object)}, list("pqr"))
    assert [value.tolist() for value in values] == [[0, 1, 2], [0, 1, 2], ["hi"]]


@pytest.mark.parametrize("library", ["ours", "theirs"])
def test_variadic_operands_of_one_dtype(library: str, request: pytest.FixtureRequest) -> None:
    api: Api = request.getfixturevalue(library)
    operator = Operator(api, "CopyAlike", [ANY], [ANY], copier(api), inputs=[VARIADIC], outputs=[VARIADIC])
    with pytest.raises(StatusError, match="bound to different types") as error:
        session_of(api, operator, [node("CopyAlike", ["a", "b"], ["p", "q"])], [tensor("a", FLOAT, [3]), tensor("b", INT64, [3])], [tensor("p", FLOAT, [3]), tensor("q", INT64, [3])])
    assert error.value.code == 1


@pytest.mark.parametrize("library", ["ours", "theirs"])
@pytest.mark.parametrize("what", ["input", "output"])
def test_only_the_last_operand_is_variadic(library: str, what: str, request: pytest.FixtureRequest) -> None:
    api: Api = request.getfixturevalue(library)
    kinds = {f"{what}s": [VARIADIC, REQUIRED]}
    operator = Operator(api, f"First{what}", [FLOAT, FLOAT], [FLOAT, FLOAT], copier(api), **kinds)
    with pytest.raises(StatusError, match=f"Only the last {what} to a custom op may be marked variadic") as error:
        session_of(api, operator, [node(f"First{what}", ["a", "b"], ["p", "q"])], [tensor(name, FLOAT, [3]) for name in "ab"], [tensor(name, FLOAT, [3]) for name in "pq"])
    assert error.value.code == 1


@pytest.mark.parametrize("library", ["ours", "theirs"])
def test_too_few_variadic_operands(library: str, request: pytest.FixtureRequest) -> None:
    api: Api = request.getfixturevalue(library)
    operator = Operator(api, "AtLeastThree", [FLOAT], [FLOAT], copier(api), inputs=[VARIADIC], least=3)
    with pytest.raises(StatusError) as error:
        session_of(api, operator, [node("AtLeastThree", ["a", "a"], ["p"])], [tensor("a", FLOAT, [3])], [tensor("p", FLOAT, [3])])
    assert error.value.code == 10


@pytest.mark.parametrize("library", ["ours", "theirs"])
@pytest.mark.parametrize("dims", [[3], ["rows"], ["rows", 4], [None]])
def test_shape_inference_reads_symbols(library: str, dims: list, request: pytest.FixtureRequest) -> None:
    api: Api = request.getfixturevalue(library)
    seen = []

    def infer(context: c_void_p) -> None:
        info = c_void_p()
        api.call("ShapeInferContext_GetInputTypeShape", context, c_size_t(0), byref(info))
        seen.append(api.shape_and_dtype(info))
        api.call("ShapeInferContext_SetOutputTypeShape", context, c_size_t(0), info)

    operator = Operator(api, "Copy", [FLOAT], [FLOAT], copier(api), infer=infer)
    session_of(api, operator, [node("Copy", ["x"], ["y"])], [tensor("x", FLOAT, dims)], [tensor("y", FLOAT, None)])
    assert seen[0] == (FLOAT, [extent if isinstance(extent, int) else -1 for extent in dims], [extent if isinstance(extent, str) else "" for extent in dims])


@pytest.mark.parametrize("library", ["ours", "theirs"])
def test_an_operator_that_fails_to_tell_shapes_tells_none(library: str, request: pytest.FixtureRequest) -> None:
    api: Api = request.getfixturevalue(library)

    def infer(context: c_void_p) -> None:
        api.call("ShapeInferContext_GetAttribute", context, b"no_such", byref(c_void_p()))

    operator = Operator(api, "Copy", [FLOAT], [FLOAT], copier(api), infer=infer)
    session = session_of(api, operator, [node("Copy", ["x"], ["y"])], [tensor("x", FLOAT, [3])], [tensor("y", FLOAT, [3])])
    assert api.run_arrays(session, {"x": X}, ["y"])[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("library", ["ours", "theirs"])
def test_a_kernel_that_fails_names_its_node(library: str, request: pytest.FixtureRequest) -> None:
    api: Api = request.getfixturevalue(library)

    def compute(_kernel: object, _context: c_void_p) -> None:
        raise RuntimeError("it is ill")

    operator = Operator(api, "Fails", [FLOAT], [FLOAT], compute)
    session = session_of(api, operator, [node("Fails", ["x"], ["y"], name="some node")], [tensor("x", FLOAT, [3])], [tensor("y", FLOAT, [3])])
    with pytest.raises(StatusError, match="Non-zero status code returned while running Fails node. Name:'some node' Status Message: it is ill") as error:
        api.run_arrays(session, {"x": X}, ["y"])
    assert error.value.code == 1


@pytest.mark.parametrize("library", ["ours", "theirs"])
def test_a_domain_is_added_once(library: str, request: pytest.FixtureRequest) -> None:
    api: Api = request.getfixturevalue(library)
    options = api.options()
    for _ in range(2):
        operator = Operator(api, "Copy", [FLOAT], [FLOAT], copier(api))
        operator.options(DOMAIN)
        api.call("AddCustomOpDomain", options, operator.domain)
    graph = helper.make_graph([node("Copy", ["x"], ["y"])], "graph", [tensor("x", FLOAT, [3])], [tensor("y", FLOAT, [3])])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)], ir_version=10).SerializeToString()
    with pytest.raises(StatusError, match="Domain already set in registry") as error:
        api.session(data, options)
    assert error.value.code == 1


@pytest.mark.parametrize("library", ["ours", "theirs"])
def test_a_called_operator_leaves_out_attributes_that_it_has_not(library: str, request: pytest.FixtureRequest) -> None:
    api: Api = request.getfixturevalue(library)
    made = []

    def create(info: c_void_p) -> None:
        attribute, one = c_void_p(), (ctypes.c_int64 * 1)(1)
        api.call("CreateOpAttr", b"no_such", one, 1, 1, byref(attribute))
        made.append(operators.create_op(api, info, "Relu", "", 14, {"T": FLOAT}, [attribute], 1, 1))

    def compute(_kernel: object, context: c_void_p) -> None:
        given = operators.input_of(api, context, 0)
        operators.invoke_op(api, context, made[0], [given], [operators.output_of(api, context, 0, type_of(api, given)[1])])

    operator = Operator(api, "CallsRelu", [FLOAT], [FLOAT], compute, create=create)
    session = session_of(api, operator, [node("CallsRelu", ["x"], ["y"])], [tensor("x", FLOAT, [3])], [tensor("y", FLOAT, [3])])
    assert api.run_arrays(session, {"x": X - 1}, ["y"])[0].tolist() == [0, 0, 1]

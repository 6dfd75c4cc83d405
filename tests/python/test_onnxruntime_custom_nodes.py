"""Which nodes are custom operators, and what their kernels learn of them, in libonnxruntime.so.1 and in onnxruntime's own library."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import byref, c_size_t, c_void_p

import numpy as np
import onnx
import onnxruntime_operators as operators
import pytest
from onnx import helper, numpy_helper
from onnxruntime_c import LIBRARY, Api, StatusError, strings, tensor
from test_onnxruntime_custom import DOMAIN, FLOAT, OPTIONAL, REQUIRED, VARIADIC, Operator, copier, node, type_of

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="libonnxruntime.so.1 is not built; set TREADLE_ORT_LIBRARY")

NEWEST = 2**31 - 1
DOMAINS: list[c_void_p] = []
X = np.array([-1, 0, 2], np.float32)


@pytest.fixture(params=["ours", "theirs"])
def api(request: pytest.FixtureRequest) -> Api:
    return request.getfixturevalue(request.param)


def scaler(api: Api, name: str, factor: float, *, start: int = 1, end: int = NEWEST, inputs: int = 1) -> Operator:
    """Returns an operator that multiplies its first input by `factor`."""

    def compute(_kernel: object, context: c_void_p) -> None:
        given = operators.input_of(api, context, 0)
        dims = type_of(api, given)[1]
        made, count = operators.output_of(api, context, 0, dims), int(np.prod(dims))
        source, target = ((ctypes.c_float * count).from_address(api.made("GetTensorMutableData", one).value) for one in (given, made))
        target[:] = [factor * element for element in source]

    operator = Operator(api, name, [FLOAT] * inputs, [FLOAT], compute)
    operator.start, operator.end = operators._VARIADIC(lambda _op: start), operators._VARIADIC(lambda _op: end)
    operator.op.later[1], operator.op.later[2] = (ctypes.cast(function, c_void_p).value for function in (operator.start, operator.end))
    return operator


@pytest.fixture(autouse=True)
def domains(api: Api) -> Iterator[None]:
    """Releases a test's operators after it."""
    yield
    while DOMAINS:
        api.call("ReleaseCustomOpDomain", DOMAINS.pop(), result=None)


def session_of(api: Api, nodes: list, inputs: list, outputs: list, initializers: list = (), *, domain: str = DOMAIN, own: list[Operator] = (), opset: int = 21, version: int = 1,
               functions: list = ()) -> c_void_p:
    options = api.options()
    if own:
        added = api.made("CreateCustomOpDomain", domain.encode())
        DOMAINS.append(added)
        for operator in own:
            api.call("CustomOpDomain_Add", added, byref(operator.op))
            operators.KEPT.append(operator)
        api.call("AddCustomOpDomain", options, added)
    graph = helper.make_graph(nodes, "graph", inputs, outputs, list(initializers))
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, version), helper.make_opsetid("local", 1)]
    return api.session(helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=list(functions)).SerializeToString(), options)


def relu(api: Api, own: list[Operator], opset: int = 21) -> list:
    session = session_of(api, [helper.make_node("Relu", ["x"], ["y"])], [tensor("x", FLOAT, [3])], [tensor("y", FLOAT, [3])], domain="", own=own, opset=opset)
    return api.run_arrays(session, {"x": X}, ["y"])[0].tolist()


@pytest.mark.parametrize(("start", "opset", "is_own"), [(1, 21, True), (1, 7, True), (14, 21, True), (22, 21, False), (15, 14, False)])
def test_an_operator_of_onnx_is_replaced_from_a_version_on(api: Api, start: int, opset: int, is_own: bool) -> None:
    assert relu(api, [scaler(api, "Relu", 10, start=start)], opset) == ([-10, 0, 20] if is_own else [0, 0, 2])
    assert relu(api, []) == [0, 0, 2]  # other sessions still use ONNX's operator


def test_replaced_operators_are_not_optimised_as_what_they_were(api: Api) -> None:
    eye, weights = numpy_helper.from_array(np.eye(3, dtype=np.float32), "eye"), numpy_helper.from_array(X, "w")
    nodes = [helper.make_node("MatMul", ["x", "eye"], ["z"]), helper.make_node("Relu", ["z"], ["r"]), helper.make_node("Relu", ["w"], ["v"]), helper.make_node("Add", ["r", "v"], ["y"])]
    session = session_of(api, nodes, [tensor("x", FLOAT, [1, 3])], [tensor("y", FLOAT, [1, 3])], [eye, weights], domain="", own=[scaler(api, "Relu", 10)])
    assert api.run_arrays(session, {"x": X[None]}, ["y"])[0].tolist() == [[-20, 0, 40]]


def test_replaced_operators_in_bodies_and_functions(api: Api) -> None:
    then, other = (helper.make_graph([helper.make_node(op, ["z"], [op])], op, [], [tensor(op, FLOAT, [3])]) for op in ("Relu", "Neg"))
    function = helper.make_function("local", "Calls", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], [helper.make_opsetid("", 21)])
    nodes = [helper.make_node("Calls", ["x"], ["z"], domain="local"), helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    session = session_of(api, nodes, [tensor("x", FLOAT, [3]), tensor("c", 9, [])], [tensor("y", FLOAT, [3])], domain="", own=[scaler(api, "Relu", 10)], functions=[function])
    assert api.run_arrays(session, {"x": X, "c": np.array(True)}, ["y"])[0].tolist() == [-100, 0, 200]


@pytest.mark.parametrize(("dtype", "reads"), [(11, 1), (FLOAT, 2)])
def test_a_replaced_operator_takes_only_its_own_operands(api: Api, dtype: int, reads: int) -> None:
    with pytest.raises(StatusError):
        session_of(api, [helper.make_node("Add", ["x"] * reads, ["y"])], [tensor("x", dtype, [3])], [tensor("y", dtype, [3])], domain="", own=[scaler(api, "Add", 10)])


def scaled(api: Api, version: int, *ranges: tuple[int, int]) -> list:
    own = [scaler(api, "Versions", 10 * (place + 1), start=start, end=end) for place, (start, end) in enumerate(ranges)]
    session = session_of(api, [node("Versions", ["x"], ["y"])], [tensor("x", FLOAT, [3])], [tensor("y", FLOAT, [3])], own=own, version=version)
    return api.run_arrays(session, {"x": X}, ["y"])[0].tolist()


@pytest.mark.parametrize(("version", "ranges"), [(1, [(1, 3), (5, NEWEST)]), (4, [(1, 3), (5, NEWEST)]), (7, [(1, 3), (5, NEWEST)]), (7, [(1, NEWEST), (5, NEWEST)]), (7, [(5, NEWEST), (1, 4)]),
                                                 (3, [(1, NEWEST), (1, NEWEST)]), (3, [(1, 2)]), (1, [(0, 2)])])
def test_the_first_operator_that_has_begun_counts(api: Api, version: int, ranges: list) -> None:
    assert scaled(api, version, *ranges) == [-10, 0, 20]


@pytest.mark.parametrize("ranges", [(5, 6), (4, 2)])
def test_an_operator_that_has_not_begun_is_not_there(api: Api, ranges: tuple[int, int]) -> None:
    with pytest.raises(StatusError, match="is not a registered function/op") as error:
        scaled(api, 3, ranges)
    assert error.value.code == 1


def test_each_session_has_its_own_operators_first(api: Api) -> None:
    def session(own: Operator) -> c_void_p:
        return session_of(api, [node("Mine", ["x"], ["y"])], [tensor("x", FLOAT, [3])], [tensor("y", FLOAT, [3])], own=[own])

    first, second = scaler(api, "Mine", 10), scaler(api, "Mine", 20)
    assert [api.run_arrays(session(own), {"x": X}, ["y"])[0].tolist()[2] for own in (first, second, first)] == [20, 40, 20]


def told(api: Api, kinds: list[int], reads: list[str], output_kinds: list[int] = (REQUIRED,), makes: list[str] = ("y",), **more: object) -> list:
    """Returns what a kernel sees: how many operands the node has, and which are present."""
    seen = []

    def compute(_kernel: object, context: c_void_p) -> None:
        counts = [api.number(f"KernelContext_Get{what}Count", context) for what in ("Input", "Output")]
        seen.append([bool(operators.input_of(api, context, place).value) for place in range(counts[0])])
        seen.append([bool(operators.output_of(api, context, place, [1]).value) for place in range(counts[1])])

    def create(info: c_void_p) -> None:
        seen.append([api.number(f"KernelInfo_Get{what}Count", info) for what in ("Input", "Output")])

    operator = Operator(api, "Told", [FLOAT] * len(kinds), [FLOAT] * len(output_kinds), compute, inputs=kinds, outputs=list(output_kinds), create=create, **more)
    names = [name for name in makes if name]
    session = session_of(api, [node("Told", reads, list(makes))], [tensor(name, FLOAT, [1]) for name in dict.fromkeys(reads) if name], [tensor(name, FLOAT, [1]) for name in names], own=[operator])
    api.run_arrays(session, {name: X[:1] for name in reads if name}, names)
    return seen


INPUTS = [([REQUIRED, OPTIONAL], ["a"]), ([REQUIRED, OPTIONAL], ["a", "b"]), ([REQUIRED, OPTIONAL], ["a", ""]), ([OPTIONAL, REQUIRED], ["", "b"]), ([REQUIRED, OPTIONAL, REQUIRED], ["a", "", "c"]),
          ([REQUIRED, OPTIONAL, OPTIONAL], ["a", "", "c"]), ([REQUIRED, OPTIONAL, OPTIONAL], ["a", "", ""]), ([OPTIONAL], [""]), ([OPTIONAL], [])]


@pytest.mark.parametrize(("kinds", "reads"), INPUTS)
def test_kernels_are_told_of_every_input(api: Api, kinds: list, reads: list) -> None:
    assert told(api, kinds, reads) == [[len(reads), 1], [bool(name) for name in reads], [True]]


@pytest.mark.parametrize(("kinds", "reads"), [([VARIADIC], []), ([REQUIRED, VARIADIC], ["a"])])
def test_variadic_inputs_may_be_none(api: Api, kinds: list, reads: list) -> None:
    assert told(api, kinds, reads, least=0) == [[len(reads), 1], [True] * len(reads), [True]]


OUTPUTS = [([REQUIRED, OPTIONAL], ["y"]), ([REQUIRED, OPTIONAL], ["y", ""]), ([REQUIRED, OPTIONAL], ["y", "z"]), ([OPTIONAL, REQUIRED], ["", "z"]), ([REQUIRED, VARIADIC], ["y", "z", "", "w"]),
           ([REQUIRED, OPTIONAL, OPTIONAL], ["y", "", "w"])]


@pytest.mark.parametrize(("kinds", "makes"), OUTPUTS)
def test_kernels_are_told_of_every_output(api: Api, kinds: list, makes: list) -> None:
    assert told(api, [REQUIRED], ["a"], kinds, makes) == [[1, len(makes)], [True], [bool(name) for name in makes]]


@pytest.mark.parametrize(("kinds", "reads"), [([OPTIONAL, REQUIRED], ["b"]), ([REQUIRED], [""]), ([REQUIRED, REQUIRED], ["a", ""]), ([REQUIRED, REQUIRED], ["a"]), ([REQUIRED], ["a", "b"]),
                                              ([REQUIRED, VARIADIC], ["a"]), ([VARIADIC], [])])
def test_operands_that_are_required_are_there(api: Api, kinds: list, reads: list) -> None:
    with pytest.raises(StatusError) as error:
        told(api, kinds, reads)
    assert error.value.code == 10


@pytest.mark.parametrize("makes", [["y"], ["y", ""], ["y", "z", "w"]])
def test_outputs_that_are_required_are_there(api: Api, makes: list) -> None:
    with pytest.raises(StatusError) as error:
        told(api, [REQUIRED], ["a"], [REQUIRED, REQUIRED], makes)
    assert error.value.code == 10


def inferred(api: Api, dims: list, declared: list | None, told_dims: list | None) -> tuple[list[int], list[str]]:
    """Returns the extents of the output if the operator infers `told_dims`. None means that it infers those of its input."""

    def infer(context: c_void_p) -> None:
        info = c_void_p()
        api.call("ShapeInferContext_GetInputTypeShape", context, c_size_t(0), byref(info))
        if told_dims is not None:
            info, count = api.made("CreateTensorTypeAndShapeInfo"), len(told_dims)
            api.call("SetTensorElementType", info, FLOAT)
            api.call("SetDimensions", info, (ctypes.c_int64 * count)(*[extent if isinstance(extent, int) else -1 for extent in told_dims]), c_size_t(count))
            api.call("SetSymbolicDimensions", info, strings(*[b"" if isinstance(extent, int) else extent.encode() for extent in told_dims]), c_size_t(count))
        api.call("ShapeInferContext_SetOutputTypeShape", context, c_size_t(0), info)

    operator = Operator(api, "Copy", [FLOAT], [FLOAT], copier(api), infer=infer)
    session = session_of(api, [node("Copy", ["x"], ["y"])], [tensor("x", FLOAT, dims)], [tensor("y", FLOAT, declared)], own=[operator])
    return api.shape_and_dtype(api.made("CastTypeInfoToTensorInfo", api.made("SessionGetOutputTypeInfo", session, c_size_t(0))))[1:]


@pytest.mark.parametrize(("dims", "declared", "told_dims", "expected"), [
    (["rows", 4], None, None, ([-1, 4], ["rows", ""])), ([None, 4], None, None, ([-1, 4], ["", ""])), (["rows", 4], ["a", 4], None, ([-1, 4], ["a", ""])),
    (["rows", 4], None, ["rows", 4], ([-1, 4], ["rows", ""])), (["rows", "columns"], None, ["columns", 7], ([-1, 7], ["columns", ""]))])
def test_symbols_of_outputs(api: Api, dims: list, declared: list | None, told_dims: list | None, expected: tuple) -> None:
    assert inferred(api, dims, declared, told_dims) == expected


def told_to_kernel(api: Api, nodes: list, own: list[str], inputs: list, outputs: list, *, tells: bool = True) -> dict[str, list]:
    """Returns, by node, what kernels see of the operands: names, extents and their symbols."""
    told: dict[str, list] = {}

    def text(function: str, info: c_void_p, *place: object) -> str:
        size = c_size_t()
        api.call(function, info, *place, c_void_p(), byref(size))
        room = ctypes.create_string_buffer(size.value)
        api.call(function, info, *place, room, byref(size))
        return room.value.decode()

    def create(info: c_void_p) -> None:
        said = []
        for side in ("Input", "Output"):
            for place in range(api.number(f"KernelInfo_Get{side}Count", info)):
                said.append([text(f"KernelInfo_Get{side}Name", info, c_size_t(place))])
                try:
                    kind = api.made(f"KernelInfo_Get{side}TypeInfo", info, c_size_t(place))
                    said[-1] += api.shape_and_dtype(api.made("CastTypeInfoToTensorInfo", kind))
                except StatusError as error:
                    said[-1].append(error.code)
        told[text("KernelInfo_GetNodeName", info)] = said

    infer = (lambda context: same_shape(api, context)) if tells else None
    operators_of = [Operator(api, name, [FLOAT, FLOAT], [FLOAT], copier(api), inputs=[REQUIRED, OPTIONAL], infer=infer, create=create) for name in own]
    session_of(api, nodes, inputs, outputs, own=operators_of)
    return told


def test_texts_of_an_empty_list_need_an_allocator_too(api: Api) -> None:
    codes = []

    def create(info: c_void_p) -> None:
        size, texts = c_size_t(), c_void_p()
        for allocator in (c_void_p(), api.allocator):
            try:
                api.call("KernelInfoGetAttributeArray_string", info, b"names", allocator, byref(texts), byref(size))
                codes.append((0, size.value))
            except StatusError as error:
                codes.append(error.code)

    copy = node("Copy", ["x"], ["y"])
    copy.attribute.add(name="names", type=onnx.AttributeProto.STRINGS)
    session_of(api, [copy], [tensor("x", FLOAT, [2])], [tensor("y", FLOAT, None)], own=[Operator(api, "Copy", [FLOAT], [FLOAT], copier(api), create=create)])
    assert codes == [1, (0, 0)]


def same_shape(api: Api, context: c_void_p) -> None:
    info = c_void_p()
    api.call("ShapeInferContext_GetInputTypeShape", context, c_size_t(0), byref(info))
    api.call("ShapeInferContext_SetOutputTypeShape", context, c_size_t(0), info)


def test_kernels_are_told_names_and_symbols_of_their_operands(api: Api) -> None:
    nodes = [node("Copy", ["x"], ["a"], name="first"), node("Copy", ["a", "w"], ["b"], name="second"), node("Copy", ["b", ""], ["y"], name="third")]
    inputs = [tensor("x", FLOAT, ["rows", 4]), tensor("w", FLOAT, [None, "columns"])]
    told = told_to_kernel(api, nodes, ["Copy"], inputs, [tensor("y", FLOAT, None)])
    assert told["first"][0] == ["x", 1, [-1, 4], ["rows", ""]]
    assert told["second"] == [["a", 1, [-1, 4], ["rows", ""]], ["w", 1, [-1, -1], ["", "columns"]], ["b", 1, [-1, 4], ["rows", ""]]]
    assert told["third"][1:] == [["", 10], ["y", 1, [-1, 4], ["rows", ""]]]  # an absent operand has no type


@pytest.mark.parametrize(("declared", "expected"), [(["out", 4], ([-1, 4], ["out", ""])), ([3, None], ([3, -1], ["", ""])), ([], ([], [])), (None, ([], []))])
def test_kernels_are_told_what_the_model_declares_of_outputs_that_nothing_infers(api: Api, declared: list | None, expected: tuple) -> None:
    nodes = [node("Copy", ["x"], ["a"], name="first"), node("Copy", ["a"], ["y"], name="second")]
    told = told_to_kernel(api, nodes, ["Copy"], [tensor("x", FLOAT, ["rows", 4])], [tensor("y", FLOAT, declared)], tells=False)
    assert told["first"][1] == ["a", 1, [], []]
    assert told["second"] == [["a", 1, [], []], ["y", 1, *expected]]

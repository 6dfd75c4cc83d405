"""Tests operators that custom kernels call through ONNX Runtime's C interface, in Treadle's library and in onnxruntime's own."""

from __future__ import annotations

import ctypes
import itertools
import threading
from ctypes import byref, c_size_t, c_void_p
from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnxruntime_c import LIBRARY, Api, StatusError, model, tensor, their_api
from onnxruntime_operators import Operator, create_op, input_of, invoke_op, output_of

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="libonnxruntime.so.1 is not built; set TREADLE_ORT_LIBRARY")

FLOAT, INT64 = 1, 7
NUMBERS = itertools.count()


@pytest.fixture(scope="module", params=["ours", "theirs"])
def api(request: pytest.FixtureRequest) -> Api:
    return Api(str(LIBRARY)) if request.param == "ours" else their_api()


def int_attribute(api: Api, name: bytes, value: int) -> c_void_p:
    return api.made("CreateOpAttr", name, byref(ctypes.c_int64(value)), 1, 1)


def float_attribute(api: Api, name: bytes, value: float) -> c_void_p:
    return api.made("CreateOpAttr", name, byref(ctypes.c_float(value)), 1, 3)


def dims_of(api: Api, value: c_void_p) -> list[int]:
    return api.shape_and_dtype(api.made("GetTensorTypeAndShape", value))[1]


def session_with(api: Api, op: Operator, name: str, inputs: list, outputs: list) -> c_void_p:
    node = helper.make_node(name, [value.name for value in inputs], [value.name for value in outputs], name="custom", domain="test.calls")
    return api.session(model([node], inputs, outputs, domains=["test.calls"]), op.options("test.calls"))


def gemm_operator(api: Api, name: str) -> Operator:
    """Creates an operator for 2 a b + c (Gemm)."""

    def create(info: c_void_p) -> c_void_p:
        attributes = [float_attribute(api, b"alpha", 2), float_attribute(api, b"beta", 1), int_attribute(api, b"transA", 0), int_attribute(api, b"transB", 1)]
        # Onnxruntime has no default values for the attributes here.
        return create_op(api, info, "Gemm", "", 13, {"T": FLOAT}, attributes, 3, 1)

    def compute(op: c_void_p, context: c_void_p) -> None:
        a, b, c = [input_of(api, context, i) for i in range(3)]
        invoke_op(api, context, op, [a, b, c], [output_of(api, context, 0, [dims_of(api, a)[0], dims_of(api, b)[0]])])

    return Operator(api, name, [FLOAT] * 3, [FLOAT], create, compute)


def gemm_session(api: Api, op: Operator, name: str) -> c_void_p:
    return session_with(api, op, name, [tensor("a", 1, ["m", "k"]), tensor("b", 1, ["n", "k"]), tensor("c", 1, ["n"])], [tensor("y", 1, None)])


def test_a_kernel_calls_an_operator_with_attributes(api: Api) -> None:
    op = gemm_operator(api, "CallsGemm")
    session = gemm_session(api, op, "CallsGemm")
    rng = np.random.default_rng(1)
    for m, k, n in ((2, 3, 4), (5, 3, 4), (1, 64, 33)):
        a, b, c = [rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (n, k), (n,))]
        [y] = api.run_arrays(session, {"a": a, "b": b, "c": c}, ["y"])
        np.testing.assert_allclose(y, 2 * a @ b.T + c, rtol=2e-5, atol=1e-5)
    assert not op.errors


def test_runs_at_once_call_one_operator(api: Api) -> None:
    op = gemm_operator(api, "CallsGemmAtOnce")
    session = gemm_session(api, op, "CallsGemmAtOnce")
    faults: list[str] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for m in range(1, 12):
            a, b, c = [rng.standard_normal(shape).astype(np.float32) for shape in ((m, 3), (2, 3), (2,))]
            [y] = api.run_arrays(session, {"a": a, "b": b, "c": c}, ["y"])
            if not np.allclose(y, 2 * a @ b.T + c, atol=1e-5):
                faults.append(f"{seed} {m}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not faults
    assert not op.errors


def test_a_kernel_calls_an_operator_of_two_outputs_and_two_types(api: Api) -> None:
    def create(info: c_void_p) -> c_void_p:
        attributes = [int_attribute(api, name, value) for name, value in ((b"axis", -1), (b"largest", 0), (b"sorted", 1))]
        return create_op(api, info, "TopK", "", 11, {"T": FLOAT, "I": INT64}, attributes, 2, 2)

    def compute(op: c_void_p, context: c_void_p) -> None:
        x, k = input_of(api, context, 0), input_of(api, context, 1)
        count = int(api.content(k)[0])
        invoke_op(api, context, op, [x, k], [output_of(api, context, i, [*dims_of(api, x)[:-1], count]) for i in range(2)])

    op = Operator(api, "CallsTopK", [FLOAT, INT64], [FLOAT, INT64], create, compute)
    session = session_with(api, op, "CallsTopK", [tensor("x", 1, ["n", "m"]), tensor("k", 7, [1])], [tensor("y", 1, None), tensor("i", 7, None)])
    x = np.random.default_rng(2).standard_normal((3, 8)).astype(np.float32)
    for k in (1, 5):
        y, places = api.run_arrays(session, {"x": x, "k": np.array([k])}, ["y", "i"])
        np.testing.assert_array_equal(places, np.argsort(x, axis=-1)[:, :k])
        np.testing.assert_array_equal(y, np.sort(x, axis=-1)[:, :k])
    assert not op.errors


def test_a_kernel_calls_an_operator_of_com_microsoft_and_one_of_its_own_making(api: Api) -> None:
    """Some operands are the kernel's own tensors. An old opset keeps its old meaning."""

    def create(info: c_void_p) -> dict[str, c_void_p]:
        kept = api.made("CopyKernelInfo", info)
        made = {
            "product": create_op(api, kept, "FusedMatMul", "com.microsoft", 1, {"T": FLOAT}, [float_attribute(api, b"alpha", 0.5), int_attribute(api, b"transA", 1)], 2, 1),
            "softmax": create_op(api, kept, "Softmax", "", 11, {"T": FLOAT}, [int_attribute(api, b"axis", 1)], 1, 1),
        }
        api.call("ReleaseKernelInfo", kept, result=None)
        return made

    def compute(made: dict[str, c_void_p], context: c_void_p) -> None:
        x = input_of(api, context, 0)
        between = api.value(np.zeros((3, 3), np.float32))
        invoke_op(api, context, made["product"], [x, x], [between])
        [y] = [output_of(api, context, 0, [3, 3])]
        invoke_op(api, context, made["softmax"], [between], [y])

    op = Operator(api, "CallsFused", [FLOAT], [FLOAT], create, compute)
    session = session_with(api, op, "CallsFused", [tensor("x", 1, ["n", 3])], [tensor("y", 1, [3, 3])])
    x = np.random.default_rng(3).standard_normal((4, 3)).astype(np.float32)
    [y] = api.run_arrays(session, {"x": x}, ["y"])
    scores = np.exp(0.5 * x.T @ x)
    np.testing.assert_allclose(y, scores / scores.sum(1, keepdims=True), rtol=1e-5)
    assert not op.errors


def creation(api: Api, *arguments: Any) -> str:
    """Returns the error of making a session whose kernel creates this operator."""

    def create(info: c_void_p) -> c_void_p:
        return create_op(api, info, *arguments)

    name = f"Creates{next(NUMBERS)}"
    op = Operator(api, name, [FLOAT], [FLOAT], create, lambda _op, _context: None)
    with pytest.raises(StatusError) as error:
        session_with(api, op, name, [tensor("x", 1, [2])], [tensor("y", 1, [2])])
    return error.value.message


@pytest.mark.parametrize("arguments", [("NoSuchOperator", "", 13, {"T": FLOAT}, [], 1, 1), ("Relu", "no.such.domain", 1, {"T": FLOAT}, [], 1, 1), ("Softmax", "", 13, {"T": INT64}, [], 1, 1)])
def test_an_operator_that_is_not_there_is_an_error(api: Api, arguments: Any) -> None:
    assert creation(api, *arguments)


def test_attributes_have_their_defaults(ours: Api) -> None:
    def compute(op: c_void_p, context: c_void_p) -> None:
        x = input_of(ours, context, 0)
        invoke_op(ours, context, op, [x], [output_of(ours, context, 0, dims_of(ours, x))])

    op = Operator(ours, "CallsLeakyRelu", [FLOAT], [FLOAT], lambda info: create_op(ours, info, "LeakyRelu", "ai.onnx", 16, {}, [], 1, 1), compute)
    session = session_with(ours, op, "CallsLeakyRelu", [tensor("x", 1, [2])], [tensor("y", 1, [2])])
    np.testing.assert_allclose(ours.run_arrays(session, {"x": np.array([-1, 2], np.float32)}, ["y"])[0], [-0.01, 2], rtol=1e-6)


def test_faults_name_the_operator(ours: Api) -> None:
    assert "there is no operator NoSuch" in creation(ours, "NoSuch", "", 13, {}, [], 1, 1)
    assert "Softmax does not take int64 as T" in creation(ours, "Softmax", "", 13, {"T": INT64}, [], 1, 1)
    assert "Relu in version 99" in creation(ours, "Relu", "", 99, {}, [], 1, 1)
    assert "inputs, not 5" in creation(ours, "Gemm", "", 13, {"T": FLOAT}, [], 5, 1)


def test_calls_that_do_not_fit_are_errors_of_the_run(ours: Api) -> None:
    api = ours

    def create(info: c_void_p) -> c_void_p:
        return create_op(api, info, "Add", "", 14, {"T": FLOAT}, [], 2, 1)

    def compute(op: c_void_p, context: c_void_p) -> None:
        x = input_of(api, context, 0)
        count = int(api.content(x)[0])
        wrong = api.value(np.zeros(7, np.float32))
        y = output_of(api, context, 0, dims_of(api, x))
        calls = {0: ([x, x], [y]), 1: ([x, x, x], [y]), 2: ([x, x], [wrong]), 3: ([x, wrong], [y]), 4: ([x, x], [None]), 5: ([x, None], [y])}
        invoke_op(api, context, op, *calls[count])

    op = Operator(api, "CallsAdd", [FLOAT], [FLOAT], create, compute)
    session = session_with(api, op, "CallsAdd", [tensor("x", 1, [3])], [tensor("y", 1, [3])])
    np.testing.assert_array_equal(api.run_arrays(session, {"x": np.array([0, 1, 2], np.float32)}, ["y"])[0], [0, 2, 4])
    for case, text in {1: "created with 2 inputs", 2: "7", 3: "3", 4: "without an output", 5: "Add"}.items():
        with pytest.raises(StatusError, match=text):
            api.run_arrays(session, {"x": np.array([case, 1, 2], np.float32)}, ["y"])
    np.testing.assert_array_equal(api.run_arrays(session, {"x": np.array([0, 1, 2], np.float32)}, ["y"])[0], [0, 2, 4])


def test_outputs_are_there_once_a_kernel_has_asked_for_them(ours: Api) -> None:
    seen: list[tuple[bool, bool]] = []

    def compute(_kernel: None, context: c_void_p) -> None:
        before = ours.made("KernelContext_GetPreallocatedOutput", context, c_size_t(0))
        y = output_of(ours, context, 0, [2])
        after = ours.made("KernelContext_GetPreallocatedOutput", context, c_size_t(0))
        seen.append((bool(before), after.value == y.value))
        assert not ours.made("KernelContext_GetSyncStream", context)
        ctypes.memset(ours.made("GetTensorMutableData", y).value, 0, 8)
        with pytest.raises(StatusError, match="output 3 of 1"):
            ours.made("KernelContext_GetPreallocatedOutput", context, c_size_t(3))

    op = Operator(ours, "LooksAtOutputs", [FLOAT], [FLOAT], lambda _info: None, compute)
    session = session_with(ours, op, "LooksAtOutputs", [tensor("x", 1, [2])], [tensor("y", 1, [2])])
    ours.run_arrays(session, {"x": np.ones(2, np.float32)}, ["y"])
    assert seen == [(False, True)]
    assert not op.errors


def test_a_name_may_be_given_again_when_its_operator_is_gone(api: Api) -> None:
    for factor in (1, 2, 3):

        def compute(_kernel: None, context: c_void_p, factor: int = factor) -> None:
            x = api.content(input_of(api, context, 0))
            y = api.made("GetTensorMutableData", output_of(api, context, 0, list(x.shape)))
            np.frombuffer((ctypes.c_char * x.nbytes).from_address(y.value), np.float32)[:] = factor * x

        op = Operator(api, "Scale", [FLOAT] * factor, [FLOAT], lambda _info: None, compute)
        inputs = [tensor(f"x{i}", 1, [2]) for i in range(factor)]
        session = session_with(api, op, "Scale", inputs, [tensor("y", 1, [2])])
        [y] = api.run_arrays(session, {value.name: np.array([1, 5], np.float32) for value in inputs}, ["y"])
        assert y.tolist() == [factor, 5 * factor]
        api.call("ReleaseSession", session, result=None)
        op.release()
        ctypes.memset(ctypes.addressof(op.op), 0xFF, ctypes.sizeof(op.op))  # simulates that the memory was freed and used again
        assert not op.errors

"""Tests that handles of libonnxruntime.so.1 stay alive as long as other objects use them."""

from __future__ import annotations

import ctypes
import threading
from ctypes import POINTER, byref, c_int, c_int64, c_size_t, c_void_p

import numpy as np
import pytest
from onnx import helper, numpy_helper
from onnxruntime_c import EDITOR, LIBRARY, Api, Part, StatusError, handles, model, strings, tensor, value_info

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="libonnxruntime.so.1 is not built; set TREADLE_ORT_LIBRARY")

SIZE, LAYERS = 192, 24
CALLBACK = ctypes.CFUNCTYPE(None, c_void_p, POINTER(c_void_p), c_size_t, c_void_p)


def products() -> bytes:
    """Returns a model that runs so long that the next call is made during the run."""
    w = numpy_helper.from_array(np.eye(SIZE, dtype=np.float32), "w")
    nodes = [helper.make_node("MatMul", [f"x{k}", "w"], [f"x{k + 1}"]) for k in range(LAYERS)]
    return model(nodes, [tensor("x0", 1, [SIZE, SIZE])], [tensor(f"x{LAYERS}", 1, [SIZE, SIZE])], [w])


def owned(api: Api, array: np.ndarray) -> c_void_p:
    """Makes a tensor whose memory the library has allocated."""
    out = c_void_p()
    api.call("CreateTensorAsOrtValue", api.allocator, (c_int64 * array.ndim)(*array.shape), c_size_t(array.ndim), 1, byref(out))
    ctypes.memmove(api.made("GetTensorMutableData", out).value, array.ctypes.data, array.nbytes)
    return out


class Asynchronous:
    """A run whose arguments are all released right after it starts. `then` is called in the callback."""

    def __init__(self, api: Api, session: c_void_p, then: object = None) -> None:
        self.api, self.done, self.then, self.failed, self.result = api, threading.Event(), then, False, None
        self.callback, self.outputs = CALLBACK(self._ended), (c_void_p * 1)()
        x, options = owned(api, np.ones((SIZE, SIZE), np.float32)), api.made("CreateRunOptions")
        api.call("RunOptionsSetRunTag", options, b"some run")
        given, wanted = ctypes.create_string_buffer(b"x0"), ctypes.create_string_buffer(f"x{LAYERS}".encode())
        names, outputs = (c_void_p * 1)(ctypes.addressof(given)), (c_void_p * 1)(ctypes.addressof(wanted))
        api.call("RunAsync", session, options, names, handles(x), c_size_t(1), outputs, c_size_t(1), self.outputs, self.callback, c_void_p())
        given[0:2], wanted[0:2] = b"??", b"??"
        names[0] = outputs[0] = 0
        api.call("ReleaseValue", x, result=None)
        api.call("ReleaseRunOptions", options, result=None)

    def _ended(self, _data: object, outputs: object, _count: int, status: int | None) -> None:
        self.failed = bool(status)
        if not status:
            self.result = self.api.content(c_void_p(outputs[0]))  # type: ignore[index]
        if self.then:
            self.then()
        self.done.set()


def test_a_session_is_released_while_it_runs(ours: Api) -> None:
    for runs in (1, 3):
        for _ in range(10):
            session = ours.session(products())
            under_way = [Asynchronous(ours, session) for _ in range(runs)]
            ours.call("ReleaseSession", session, result=None)
            for run in under_way:
                assert run.done.is_set()  # the release waited for the callbacks
                assert not run.failed
                assert (run.result == 1).all()


def test_a_session_is_released_in_the_callback_of_a_run(ours: Api) -> None:
    for _ in range(10):
        session = ours.session(products())
        run = Asynchronous(ours, session, then=lambda session=session: ours.call("ReleaseSession", session, result=None))
        assert run.done.wait(60)
        assert (run.result == 1).all()


def test_values_outlive_the_allocator_that_they_are_of(ours: Api) -> None:
    session = ours.session(products())
    allocator = ours.made("CreateAllocator", session, ours.memory)
    ours.call("ReleaseSession", session, result=None)
    made, around = c_void_p(), c_void_p()
    ours.call("CreateTensorAsOrtValue", allocator, (c_int64 * 1)(1000), c_size_t(1), 1, byref(made))
    block = c_void_p()
    ours.call("AllocatorAlloc", allocator, c_size_t(4000), byref(block))
    ours.call("CreateTensorWithDataAndDeleterAsOrtValue", allocator, block, c_size_t(4000), (c_int64 * 1)(1000), c_size_t(1), 1, byref(around))
    ours.call("ReleaseAllocator", allocator, result=None)
    # These new objects may get the released memory.
    others = [ours.made("CreateAllocator", ours.session(products()), ours.memory) for _ in range(8)]
    for value in (made, around):
        ctypes.memset(ours.made("GetTensorMutableData", value).value, 0, 4000)
        assert not ours.content(value).any()
        ours.call("ReleaseValue", value, result=None)
    for other in others:
        ours.call("ReleaseAllocator", other, result=None)


def test_what_makes_no_tensor_leaves_the_memory_to_the_client(ours: Api, theirs: Api) -> None:
    for api in (ours, theirs):
        out, value = c_void_p(), c_void_p()
        api.call("AllocatorAlloc", api.allocator, c_size_t(8), byref(out))
        with pytest.raises(StatusError):
            api.call("CreateTensorWithDataAndDeleterAsOrtValue", api.allocator, out, c_size_t(8), (c_int64 * 1)(9), c_size_t(1), 1, byref(value))
        ctypes.memset(out.value, 1, 8)
        api.call("AllocatorFree", api.allocator, out)


def test_an_environment_keeps_the_allocator_that_is_registered(ours: Api) -> None:
    environment = ours.made("CreateEnv", 4, b"of its own")
    allocator = ours.made("CreateAllocator", ours.session(products()), ours.memory)
    options = ours.made("CreateSessionOptions")
    ours.call("DisableCpuMemArena", options)
    plain = ours.made("CreateAllocator", ours.session(products(), options), ours.memory)
    with pytest.raises(StatusError, match="as OrtDeviceAllocator"):
        ours.call("RegisterAllocator", environment, allocator)
    ours.call("RegisterAllocator", environment, plain)
    for handle in (allocator, plain):
        ours.call("ReleaseAllocator", handle, result=None)
    options, data = ours.options(), products()
    ours.call("AddSessionConfigEntry", options, b"session.use_env_allocators", b"1")
    session = ours.made("CreateSessionFromArray", environment, data, c_size_t(len(data)), options)
    ours.call("ReleaseEnv", environment, result=None)
    ours.call("ReleaseSessionOptions", options, result=None)
    [y] = ours.run_arrays(session, {"x0": np.ones((SIZE, SIZE), np.float32)}, [f"x{LAYERS}"])
    assert (y == 1).all()
    ours.call("ReleaseSession", session, result=None)


def test_options_do_not_use_operators_of_a_domain_that_is_released(ours: Api) -> None:
    domain, options = ours.made("CreateCustomOpDomain", b"some.domain"), ours.options()
    ours.call("AddCustomOpDomain", options, domain)
    ours.call("ReleaseCustomOpDomain", domain, result=None)
    with pytest.raises(StatusError, match=r"\"some.domain\".* is released"):
        ours.session(products(), options)


def test_a_model_is_compiled_after_its_release(ours: Api) -> None:
    editor = Part(ours, "GetModelEditorApi", EDITOR)
    compiler = Part(ours, "GetCompileApi", [*[f"f{place}" for place in range(14)], "SetInputModel"])
    graph = editor.made("CreateGraph")
    relu = editor.made("CreateNode", b"Relu", b"", b"relu", strings(b"x"), c_size_t(1), strings(b"y"), c_size_t(1), handles(), c_size_t(0))
    editor.call("AddNodeToGraph", graph, relu)
    editor.call("SetGraphInputs", graph, handles(value_info(ours, editor, b"x", [2])), c_size_t(1))
    editor.call("SetGraphOutputs", graph, handles(value_info(ours, editor, b"y", [2])), c_size_t(1))
    made = editor.made("CreateModel", strings(b""), (c_int * 1)(18), c_size_t(1))
    editor.call("AddGraphToModel", made, graph)
    options = compiler.made("f1", ours.env, ours.options())
    compiler.call("SetInputModel", options, made)
    ours.call("ReleaseModel", made, result=None)
    buffer, size = c_void_p(), c_size_t()
    compiler.call("f6", options, ours.allocator, byref(buffer), byref(size))
    compiler.call("f8", ours.env, options)
    data = ctypes.string_at(buffer.value, size.value)
    assert ours.run_arrays(ours.session(data), {"x": np.array([-1, 2], np.float32)}, ["y"])[0].tolist() == [0, 2]


def test_what_belongs_to_a_graph_is_not_taken_again(ours: Api) -> None:
    editor = Part(ours, "GetModelEditorApi", EDITOR)
    value = value_info(ours, editor, b"x", [2])
    graph, other = editor.made("CreateGraph"), editor.made("CreateGraph")
    with pytest.raises(StatusError, match="belongs to a graph already"):
        editor.call("SetGraphInputs", graph, handles(value, value), c_size_t(2))
    editor.call("SetGraphInputs", graph, handles(value), c_size_t(1))
    with pytest.raises(StatusError, match="belongs to a graph already"):
        editor.call("SetGraphOutputs", graph, handles(value), c_size_t(1))
    models = [editor.made("CreateModel", strings(b""), (c_int * 1)(18), c_size_t(1)) for _ in range(2)]
    editor.call("AddGraphToModel", models[0], graph)
    with pytest.raises(StatusError, match="in a model already"):
        editor.call("AddGraphToModel", models[1], graph)
    with pytest.raises(StatusError, match="has a graph already"):
        editor.call("AddGraphToModel", models[0], other)


def test_bound_values_outlive_their_handles_and_the_session(ours: Api) -> None:
    session = ours.session(products())
    binding = ours.made("CreateIoBinding", session)
    x = owned(ours, np.ones((SIZE, SIZE), np.float32))
    ours.call("BindInput", binding, b"x0", x)
    ours.call("ReleaseValue", x, result=None)
    ours.call("BindOutputToDevice", binding, f"x{LAYERS}".encode(), ours.memory)
    ours.call("RunWithBinding", session, c_void_p(), binding)
    values, count = c_void_p(), c_size_t()
    ours.call("GetBoundOutputValues", binding, ours.allocator, byref(values), byref(count))
    [y] = (c_void_p * count.value).from_address(values.value)
    ours.call("ReleaseIoBinding", binding, result=None)
    ours.call("ReleaseSession", session, result=None)
    assert (ours.content(c_void_p(y)) == 1).all()

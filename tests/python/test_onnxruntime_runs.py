"""Compares settings, runs and bindings of libonnxruntime.so.1 with those of onnxruntime's own library."""

from __future__ import annotations

import ctypes
import pathlib
from ctypes import byref, c_int, c_size_t, c_void_p

import numpy as np
import pytest
from onnx import helper
from onnxruntime_c import EDITOR, LIBRARY, Api, Part, StatusError, model, tensor

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="libonnxruntime.so.1 is not built; set TREADLE_ORT_LIBRARY")


def two() -> bytes:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
    return model(nodes, [tensor("x", 1, [2])], [tensor("y", 1, [2]), tensor("z", 1, [2])], producer_name="a test")


def test_settings_are_taken_as_config_entries(ours: Api, theirs: Api, tmp_path: pathlib.Path) -> None:
    for name, api in (("ours", ours), ("theirs", theirs)):
        options = api.options()
        entries = {"session.execution_mode": "parallel", "session.enable_mem_pattern": "False", "session.intra_op_num_threads": " +2", "session.graph_optimization_level": "enable_basic",
                   "session.optimized_model_filepath": str(tmp_path / name), "session.enable_profiling": str(tmp_path / f"profile_{name}"), "session.log_id": "x", "session.use_per_session_threads": "1"}
        for key, value in entries.items():
            api.call("AddSessionConfigEntry", options, key.encode(), value.encode())
            assert api.number("HasSessionConfigEntry", options, key.encode(), kind=c_int) == 0, key
        assert (api.number("GetSessionExecutionMode", options, kind=c_int), api.number("GetMemPatternEnabled", options, kind=c_int)) == (1, 0)
        session = api.session(two(), options)
        assert (tmp_path / name).exists()
        assert f"profile_{name}" in str(api.text("SessionEndProfiling", session))


def test_outputs_are_wanted_several_times(ours: Api) -> None:
    """If an output is requested several times, onnxruntime writes only to the last one."""
    session, x, memory = ours.session(two()), np.array([1, -2], np.float32), np.zeros(2, np.float32)
    values = ours.run(session, {"x": ours.value(x)}, ["y", "z", "y"], [ours.value(memory), None, None])
    assert [ours.content(value).tolist() for value in values] == [[1, 0], [-1, 2], [1, 0]]
    assert memory.tolist() == [1, 0]


def bound(api: Api, binding: c_void_p) -> list:
    values, count = ctypes.POINTER(c_void_p)(), c_size_t()
    api.call("GetBoundOutputValues", binding, api.allocator, byref(values), byref(count))
    given = [c_void_p(values[i]) for i in range(count.value)]
    return [api.content(value).tolist() if api.number("HasValue", value, kind=c_int) else None for value in given]


def test_bound_outputs_are_told_before_the_run(ours: Api, theirs: Api) -> None:
    for api in (ours, theirs):
        session = api.session(two())
        binding, memory = api.made("CreateIoBinding", session), np.array([5, 6], np.float32)
        api.call("BindInput", binding, b"x", api.value(np.array([1, -2], np.float32)))
        api.call("BindOutput", binding, b"y", api.value(memory))
        api.call("BindOutputToDevice", binding, b"z", api.memory)
        assert bound(api, binding) == [[5, 6], None]
        api.call("RunWithBinding", session, c_void_p(), binding)
        assert bound(api, binding) == [[1, 0], [-1, 2]]


def test_a_binding_goes_to_the_session_that_is_named(ours: Api, theirs: Api) -> None:
    for api in (ours, theirs):
        relu, neg = (api.session(model([helper.make_node(each, ["x"], ["y"])], [tensor("x", 1, [2])], [tensor("y", 1, [2])])) for each in ("Relu", "Neg"))
        binding, memory = api.made("CreateIoBinding", relu), np.zeros(2, np.float32)
        api.call("BindInput", binding, b"x", api.value(np.array([1, -2], np.float32)))
        api.call("BindOutput", binding, b"y", api.value(memory))
        for session, expected in ((relu, [1, 0]), (neg, [-1, 2])):
            api.call("RunWithBinding", session, c_void_p(), binding)
            assert memory.tolist() == expected


def test_a_run_that_fails_has_a_profile(ours: Api, theirs: Api, tmp_path: pathlib.Path) -> None:
    for name, api in (("ours", ours), ("theirs", theirs)):
        session, options = api.session(two()), api.made("CreateRunOptions")
        api.call("RunOptionsEnableProfiling", options, str(tmp_path / name).encode())
        with pytest.raises(StatusError, match="Missing Input"):
            api.run_arrays(session, {}, ["y"], options)
        assert len(list(tmp_path.glob(f"{name}*.json"))) == 1


def test_a_session_under_edit_tells_of_its_model(ours: Api, theirs: Api) -> None:
    for api in (ours, theirs):
        session = Part(api, "GetModelEditorApi", EDITOR).made("CreateModelEditorSessionFromArray", api.env, two(), c_size_t(len(two())), api.options())
        assert api.describe(session)["ProducerName"] == "a test"
        w = helper.make_tensor("w", 1, [2], [1, 2])
        data = model([helper.make_node("Add", ["x", "w"], ["y"])], [tensor("x", 1, [2]), tensor("w", 1, [2])], [tensor("y", 1, [2])], [w])
        session = Part(api, "GetModelEditorApi", EDITOR).made("CreateModelEditorSessionFromArray", api.env, data, c_size_t(len(data)), api.options())
        assert [name for name, _ in api.describe(session)["OverridableInitializer"]] == ["w"]

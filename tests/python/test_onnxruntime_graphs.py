"""Graphs that a client has built, as ONNX Runtime's C interface reports them. onnxruntime's own library reports only graphs of sessions, to execution
providers, so the expected values are what the client passed."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_bool, c_char_p, c_int, c_int64, c_size_t, c_void_p
from typing import Any

import numpy as np
import pytest
from onnx import defs
from onnxruntime_c import EDITOR, LIBRARY, Api, Part, StatusError, handles, strings, value_info

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="libonnxruntime.so.1 is not built; set TREADLE_ORT_LIBRARY")


@pytest.fixture(scope="module")
def api() -> Api:
    return Api(str(LIBRARY))


class Made:
    """A graph that a client builds: y = Gemm(x, w, b; alpha=2), i, j = Split(y), z = Relu(j). w is an initializer, b an input with a
    default."""

    def __init__(self, api: Api) -> None:
        self.api, self.editor = api, Part(api, "GetModelEditorApi", EDITOR)
        self.graph = self.editor.made("CreateGraph")
        alpha = api.made("CreateOpAttr", b"alpha", byref(ctypes.c_float(2)), 1, 3)
        parts = api.made("CreateOpAttr", b"num_outputs", byref(c_int64(2)), 1, 1)
        self.gemm = self._node(b"Gemm", b"gemm", [b"x", b"w", b"b"], [b"y"], [alpha])
        self.split = self._node(b"Split", b"split", [b"y"], [b"i", b"j"], [parts])
        self.relu = self._node(b"Relu", b"relu", [b"j"], [b"z"], [])
        self.weight = np.arange(12, dtype=np.float32).reshape(3, 4)
        self.editor.call("AddInitializerToGraph", self.graph, b"w", api.value(self.weight), c_bool(False))
        self.editor.call("AddInitializerToGraph", self.graph, b"b", api.value(np.ones(4, np.float32)), c_bool(False))
        self.editor.call("SetGraphInputs", self.graph, handles(value_info(api, self.editor, b"x", [2, 3]), value_info(api, self.editor, b"b", [4])), c_size_t(2))
        self.editor.call("SetGraphOutputs", self.graph, handles(value_info(api, self.editor, b"i", [1, 4]), value_info(api, self.editor, b"z", [1, 4])), c_size_t(2))
        self.model = self.editor.made("CreateModel", strings(b"", b"com.microsoft"), (c_int * 2)(18, 1), c_size_t(2))
        self.editor.call("AddGraphToModel", self.model, self.graph)

    def _node(self, op: bytes, name: bytes, inputs: list[bytes], outputs: list[bytes], attributes: list[c_void_p]) -> c_void_p:
        node = self.editor.made("CreateNode", op, b"", name, strings(*inputs), c_size_t(len(inputs)), strings(*outputs), c_size_t(len(outputs)), handles(*attributes), c_size_t(len(attributes)))
        self.editor.call("AddNodeToGraph", self.graph, node)
        return node


@pytest.fixture
def made(api: Api) -> Made:
    return Made(api)


def text(api: Api, name: str, of: c_void_p) -> str:
    out = c_char_p()
    api.call(name, of, byref(out))
    return (out.value or b"").decode()


def name_of(api: Api, value: int | None) -> str | None:
    return text(api, "GetValueInfoName", c_void_p(value)) if value else None


def listed(api: Api, owner: str, what: str, of: c_void_p) -> list[c_void_p]:
    count = api.number(f"{owner}_GetNum{what}", of)
    room = (c_void_p * max(count, 1))()
    api.call(f"{owner}_Get{what}", of, room, c_size_t(count))
    return [c_void_p(handle) for handle in list(room)[:count]]


def names(api: Api, owner: str, what: str, of: c_void_p) -> list[str | None]:
    return [name_of(api, value.value) for value in listed(api, owner, what, of)]


def truth(api: Api, name: str, value: c_void_p) -> bool:
    out = c_bool()
    api.call(name, value, byref(out))
    return out.value


def test_a_graph_has_what_it_was_given(api: Api, made: Made) -> None:
    assert names(api, "Graph", "Inputs", made.graph) == ["x", "b"]
    assert names(api, "Graph", "Outputs", made.graph) == ["i", "z"]
    assert names(api, "Graph", "Initializers", made.graph) == ["w", "b"]
    nodes = listed(api, "Graph", "Nodes", made.graph)
    assert [node.value for node in nodes] == [made.gemm.value, made.split.value, made.relu.value]
    domains, versions = (c_char_p * 2)(), (c_int64 * 2)()
    assert api.number("Graph_GetNumOperatorSets", made.graph) == 2
    api.call("Graph_GetOperatorSets", made.graph, domains, versions, c_size_t(2))
    assert (list(domains), list(versions)) == ([b"", b"com.microsoft"], [18, 1])
    assert text(api, "Graph_GetModelPath", made.graph) == ""
    assert api.number("Graph_GetOnnxIRVersion", made.graph, kind=c_int64) >= 8
    assert not api.made("Graph_GetParentNode", made.graph)
    metadata = api.made("Graph_GetModelMetadata", made.graph)
    assert api.text("ModelMetadataGetGraphName", metadata) == text(api, "Graph_GetName", made.graph)


def test_a_node_has_what_it_was_given(api: Api, made: Made) -> None:
    assert [text(api, f"Node_Get{what}", made.split) for what in ("Name", "OperatorType", "Domain")] == ["split", "Split", ""]
    assert names(api, "Node", "Inputs", made.gemm) == ["x", "w", "b"]
    assert names(api, "Node", "Outputs", made.split) == ["i", "j"]
    assert [api.number("Node_GetId", node) for node in (made.gemm, made.split, made.relu)] == [0, 1, 2]
    for node, op in ((made.gemm, "Gemm"), (made.split, "Split"), (made.relu, "Relu")):
        assert api.number("Node_GetSinceVersion", node, kind=c_int) == defs.get_schema(op, 18).since_version
    assert api.made("Node_GetGraph", made.relu).value == made.graph.value
    assert not api.made("Node_GetEpName", made.relu)
    assert api.number("Node_GetNumSubgraphs", made.relu) == api.number("Node_GetNumImplicitInputs", made.relu) == 0


def test_attributes_are_read_back(api: Api, made: Made) -> None:
    [alpha] = listed(api, "Node", "Attributes", made.gemm)
    assert text(api, "OpAttr_GetName", alpha) == "alpha"
    assert api.number("OpAttr_GetType", alpha, kind=c_int) == 3
    number, size = ctypes.c_float(), c_size_t()
    api.call("ReadOpAttr", alpha, 3, byref(number), c_size_t(4), byref(size))
    assert (number.value, size.value) == (2, 4)
    assert api.made("Node_GetAttributeByName", made.gemm, b"alpha").value == alpha.value
    assert not api.made("Node_GetAttributeByName", made.gemm, b"beta")
    with pytest.raises(StatusError, match="no tensor"):
        api.made("OpAttr_GetTensorAttributeAsOrtValue", alpha)


def test_values_know_who_makes_and_who_reads_them(api: Api, made: Made) -> None:
    x, w, b = listed(api, "Node", "Inputs", made.gemm)
    [y] = listed(api, "Node", "Outputs", made.gemm)
    i, j = listed(api, "Node", "Outputs", made.split)

    def producer(value: c_void_p) -> tuple[Any, int]:
        node, index = c_void_p(), c_size_t()
        api.call("ValueInfo_GetValueProducer", value, byref(node), byref(index))
        return node.value, index.value

    def consumers(value: c_void_p) -> list[tuple[Any, int]]:
        count = api.number("ValueInfo_GetValueNumConsumers", value)
        nodes, indices = (c_void_p * max(count, 1))(), (c_int64 * max(count, 1))()
        api.call("ValueInfo_GetValueConsumers", value, nodes, indices, c_size_t(count))
        return list(zip(list(nodes)[:count], list(indices)[:count]))

    assert [producer(value) for value in (x, y, j)] == [(None, 0), (made.gemm.value, 0), (made.split.value, 1)]
    assert [consumers(value) for value in (w, y, j, i)] == [[(made.gemm.value, 1)], [(made.split.value, 0)], [(made.relu.value, 0)], []]
    kinds = ("IsRequiredGraphInput", "IsOptionalGraphInput", "IsGraphOutput", "IsConstantInitializer", "IsFromOuterScope")
    said = {name: [kind for kind in kinds if truth(api, f"ValueInfo_{kind}", value)] for name, value in {"x": x, "w": w, "b": b, "y": y, "i": i}.items()}
    assert said == {"x": ["IsRequiredGraphInput"], "w": ["IsConstantInitializer"], "b": ["IsOptionalGraphInput"], "y": [], "i": ["IsGraphOutput"]}
    np.testing.assert_array_equal(api.content(api.made("ValueInfo_GetInitializerValue", w)), made.weight)
    assert not api.made("ValueInfo_GetInitializerValue", x)
    assert not api.made("ValueInfo_GetExternalInitializerInfo", w)
    assert api.describe_type(api.made("GetValueInfoTypeInfo", w))[:3] == (1, 1, [3, 4])
    assert api.describe_type(api.made("GetValueInfoTypeInfo", x))[:3] == (1, 1, [2, 3])
    assert api.describe_type(api.made("GetValueInfoTypeInfo", y)) == (0,)


def test_a_view_has_the_edges_of_its_nodes(api: Api, made: Made) -> None:
    view = api.made("Graph_GetGraphView", made.graph, handles(made.split, made.gemm), c_size_t(2))
    assert names(api, "Graph", "Inputs", view) == ["x"]
    assert names(api, "Graph", "Outputs", view) == ["j", "i"]
    assert names(api, "Graph", "Initializers", view) == ["w", "b"]
    assert [text(api, "Node_GetName", node) for node in listed(api, "Graph", "Nodes", view)] == ["gemm", "split"]
    api.call("ReleaseGraph", view, result=None)
    other = Made(api)
    with pytest.raises(StatusError, match="another graph"):
        api.made("Graph_GetGraphView", made.graph, handles(other.relu), c_size_t(1))


def test_the_graph_that_was_read_runs(api: Api, made: Made) -> None:
    names(api, "Graph", "Initializers", made.graph)
    session = made.editor.made("CreateSessionFromModel", api.env, made.model, api.options())
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    i, z = api.run_arrays(session, {"x": x}, ["i", "z"])
    y = 2 * x @ made.weight + 1
    np.testing.assert_allclose(i, y[:1])
    np.testing.assert_allclose(z, np.maximum(y[1:], 0))


def test_an_edited_model_is_not_run_at_a_log_level_that_there_is_not(api: Api, made: Made) -> None:
    options = api.options()
    api.call("SetSessionLogSeverityLevel", options, 9)
    with pytest.raises(StatusError) as error:
        made.editor.made("CreateSessionFromModel", api.env, made.model, options)
    assert error.value.code == 1


def test_what_has_no_answer_yet_is_an_error(api: Api) -> None:
    editor = Part(api, "GetModelEditorApi", EDITOR)
    graph = editor.made("CreateGraph")
    assert names(api, "Graph", "Inputs", graph) == []
    with pytest.raises(StatusError, match="in no model yet"):
        api.number("Graph_GetNumOperatorSets", graph)
    node = editor.made("CreateNode", b"Relu", b"", b"relu", strings(b"x"), c_size_t(1), strings(b"y"), c_size_t(1), c_void_p(), c_size_t(0))
    with pytest.raises(StatusError, match='"relu" is in no graph yet'):
        listed(api, "Node", "Inputs", node)
    editor.call("AddNodeToGraph", graph, node)
    with pytest.raises(StatusError, match="room for 0"):
        api.call("Node_GetInputs", node, c_void_p(), c_size_t(0))
    with pytest.raises(StatusError, match="in a graph already"):
        editor.call("AddNodeToGraph", graph, node)


def test_an_initializer_in_a_file_is_described(api: Api) -> None:
    info = api.made("CreateExternalInitializerInfo", b"weights.bin", c_int64(128), c_size_t(64))
    said = [api.call(f"ExternalInitializerInfo_Get{what}", info, result=kind) for what, kind in (("FilePath", c_char_p), ("FileOffset", c_int64), ("ByteSize", c_size_t))]
    assert said == [b"weights.bin", 128, 64]
    api.call("ReleaseExternalInitializerInfo", info, result=None)

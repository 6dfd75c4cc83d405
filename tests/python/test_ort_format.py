"""Models in ONNX Runtime's format (.ort), written by onnxruntime: both libraries give the same results from the same bytes."""

from __future__ import annotations

import pathlib
from ctypes import c_size_t, c_void_p

import numpy as np
import onnx
import onnxruntime
import onnxruntime.tools.convert_onnx_models_to_ort as convert
import pytest
import treadle
from conftest import SHARED_DATA
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_c import EDITOR, LIBRARY, Api, Part, StatusError
from treadle.errors import NotImplemented  # noqa: A004

FLOAT, INT64, BOOL, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING
ALL, EXTENDED, NONE = (getattr(onnxruntime.GraphOptimizationLevel, name) for name in ("ORT_ENABLE_ALL", "ORT_ENABLE_EXTENDED", "ORT_DISABLE_ALL"))
X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


def value(name: str, dtype: int = FLOAT, shape: list | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(nodes: list, inputs: list, outputs: list, initializers: list = (), *, opset: int = 17, ir: int = 8, **rest: object) -> onnx.ModelProto:
    sparse, functions, doc = rest.pop("sparse", []), rest.pop("functions", []), rest.pop("doc", "")
    graph = helper.make_graph(nodes, "graph", inputs, outputs, list(initializers), doc, sparse_initializer=sparse)
    opsets = [helper.make_opsetid(*pair) for pair in [("", opset), ("ai.onnx.ml", 3), ("com.microsoft", 1), ("local", 1)]]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir, functions=functions, **rest)


def constant(name: str, array: np.ndarray) -> onnx.TensorProto:
    return numpy_helper.from_array(array, name)


def ort_bytes(given: onnx.ModelProto | str, path: pathlib.Path, level: onnxruntime.GraphOptimizationLevel = EXTENDED) -> bytes:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level, options.optimized_model_filepath, options.log_severity_level = level, str(path), 4
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(given if isinstance(given, str) else given.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return path.read_bytes()


def check(given: onnx.ModelProto, feeds: dict, folder: pathlib.Path, levels: tuple = (NONE, EXTENDED)) -> None:
    for level in levels:
        content = ort_bytes(given, folder / "model.ort", level)
        expected = onnxruntime.InferenceSession(content).run(None, feeds)
        for session in (treadle.InferenceSession(content), treadle.InferenceSession(folder / "model.ort")):
            for have, want in zip(session.run(None, feeds), expected, strict=True):
                if isinstance(want, list):
                    assert str(have) == str(want)
                elif want.dtype.kind == "f":
                    np.testing.assert_allclose(have, want, rtol=2e-5, atol=2e-6)
                else:
                    assert have.dtype == want.dtype
                    assert have.tolist() == want.tolist()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool", "str"])
def test_initializers_of_every_dtype(dtype: str, tmp_path: pathlib.Path) -> None:
    array = np.array([[0, 1], [2, 3]]).astype(dtype)
    tensor = constant("w", array.astype(object) if dtype == "str" else array)
    check(model([helper.make_node("Reshape", ["w", "to"], ["y"])], [value("to", INT64, [1])], [value("y", tensor.data_type)], [tensor]), {"to": np.array([4])}, tmp_path)


def branch(name: str, op: str, reads: list[str], own: list = ()) -> onnx.GraphProto:
    return helper.make_graph([helper.make_node(op, reads, [name])], name, [], [value(name)], list(own))


@pytest.mark.parametrize("chosen", [True, False])
def test_branches_see_values_around_them(chosen: bool, tmp_path: pathlib.Path) -> None:
    then, other = branch("t", "Add", ["z", "one"], [constant("one", np.ones(3, np.float32))]), branch("o", "Sub", ["z", "k"])
    nodes = [helper.make_node("Neg", ["x"], ["z"]), helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    check(model(nodes, [value("x", FLOAT, ["n", 3]), value("c", BOOL, []), value("k", FLOAT, [3])], [value("y")]),
          {"x": X, "c": np.array(chosen), "k": X[0]}, tmp_path)


def test_loops_and_scans(tmp_path: pathlib.Path) -> None:
    body = helper.make_graph([helper.make_node("Add", ["a", "x"], ["b"]), helper.make_node("Identity", ["go"], ["on"]), helper.make_node("ReduceSum", ["b"], ["s"])], "body",
                             [value("i", INT64, []), value("go", BOOL, []), value("a", FLOAT, [2, 3])], [value("on", BOOL, []), value("b", FLOAT, [2, 3]), value("s", FLOAT, [1, 1])])
    step = helper.make_graph([helper.make_node("Mul", ["h", "r"], ["g"]), helper.make_node("Identity", ["g"], ["e"])], "step", [value("h", FLOAT, [3]), value("r", FLOAT, [3])],
                             [value("g", FLOAT, [3]), value("e", FLOAT, [3])])
    nodes = [helper.make_node("Loop", ["n", "", "x"], ["l", "ls"], body=body), helper.make_node("Scan", ["h", "l"], ["f", "fs"], body=step, num_scan_inputs=1)]
    check(model(nodes, [value("x", FLOAT, [2, 3]), value("n", INT64, []), value("h", FLOAT, [3])], [value("ls"), value("f"), value("fs")]),
          {"x": X, "n": np.array(3), "h": X[0]}, tmp_path)


def test_sequences_and_maps(tmp_path: pathlib.Path) -> None:
    parts = helper.make_node("SplitToSequence", ["x"], ["s"], axis=0)
    whole = value("s")
    whole.type.CopyFrom(helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None)))
    check(model([parts, helper.make_node("SequenceAt", ["s", "i"], ["y"])], [value("x", FLOAT, ["n", 3]), value("i", INT64, [])], [whole, value("y")]), {"x": X, "i": np.array(1)}, tmp_path)
    maps = onnx.ValueInfoProto(name="m")
    maps.type.CopyFrom(helper.make_sequence_type_proto(helper.make_map_type_proto(STRING, helper.make_tensor_type_proto(FLOAT, []))))
    check(model([helper.make_node("ZipMap", ["x"], ["m"], domain="ai.onnx.ml", classlabels_strings=["a", "b", "c"])], [value("x", FLOAT, [2, 3])], [maps]), {"x": X}, tmp_path)


def test_sparse_initializers(tmp_path: pathlib.Path) -> None:
    sparse = helper.make_sparse_tensor(constant("w", np.array([3, 4], np.float32)), constant("", np.array([1, 5])), [2, 3])
    check(model([helper.make_node("Add", ["x", "w"], ["y"])], [value("x", FLOAT, [2, 3])], [value("y")], sparse=[sparse]), {"x": X}, tmp_path)


def test_local_functions_are_in_place(tmp_path: pathlib.Path) -> None:
    function = helper.make_function("local", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 17)])
    nodes = [helper.make_node("Twice", ["x"], ["z"], domain="local"), helper.make_node("Twice", ["z"], ["y"], domain="local")]
    check(model(nodes, [value("x", FLOAT, [2, 3])], [value("y")], functions=[function]), {"x": X}, tmp_path)


def test_attributes_of_every_kind(tmp_path: pathlib.Path) -> None:
    nodes = [helper.make_node("LeakyRelu", ["x"], ["a"], alpha=0.25), helper.make_node("Transpose", ["a"], ["b"], perm=[1, 0]), helper.make_node("Concat", ["b", "b"], ["y"], axis=1),
             helper.make_node("LabelEncoder", ["k"], ["l"], domain="ai.onnx.ml", keys_strings=["a", "b"], values_floats=[0.5, 1.5], default_float=9.0),
             helper.make_node("ConstantOfShape", ["n"], ["c"], value=helper.make_tensor("v", INT64, [1], [7]))]
    check(model(nodes, [value("x", FLOAT, [2, 3]), value("k", STRING, [3]), value("n", INT64, [1])], [value("y"), value("l"), value("c", INT64)]),
          {"x": X, "k": np.array(["a", "b", "z"], object), "n": np.array([4])}, tmp_path)


def test_what_the_optimiser_fuses(tmp_path: pathlib.Path) -> None:
    random = np.random.default_rng(5)
    w, image = random.standard_normal((4, 3, 3, 3)).astype(np.float32), random.standard_normal((1, 3, 8, 8)).astype(np.float32)
    check(model([helper.make_node("Conv", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])], [value("x", FLOAT, [1, 3, 8, 8])], [value("y")], [constant("w", w)]), {"x": image}, tmp_path)
    square = random.standard_normal((3, 3)).astype(np.float32)
    nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]), helper.make_node("MatMul", ["t", "u"], ["m"]), helper.make_node("Add", ["m", "b"], ["n"]),
             helper.make_node("Erf", ["n"], ["e"]), helper.make_node("Mul", ["e", "n"], ["y"])]
    check(model(nodes, [value("x", FLOAT, [3, 3]), value("u", FLOAT, [3, 3])], [value("y")], [constant("b", square[0])]), {"x": square, "u": square.T.copy()}, tmp_path)


def blocked_model(channels: int, opset: int) -> onnx.ModelProto:
    """Returns a model with nodes that onnxruntime stores in blocks of channels: all kinds of convolutions, pools, joined and enlarged values, and
    edges to other nodes."""
    rng = np.random.default_rng(channels)
    weights = {"w1": (channels, 3, 3, 3), "b1": (channels,), "w2": (channels, channels, 1, 1), "w3": (channels, 1, 3, 3), "w4": (20, 2 * channels, 3, 3), "b4": (20,), "w5": (20, 20, 1, 1), "w6": (32, 16, 3, 3)}
    initializers = [constant(name, (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1)).astype(np.float32)) for name, shape in weights.items()]
    initializers += [constant("scales", np.array([1, 1, 2, 2], np.float32)), constant("regions", np.zeros(0, np.float32)), constant("low", np.float32(0)), constant("high", np.float32(6)), constant("w7", (rng.standard_normal((16, 20, 1, 1)) / 4).astype(np.float32))]
    node = helper.make_node
    clip = [node("Clip", ["f"], ["f6"], min=0.0, max=6.0)] if opset < 11 else [node("Clip", ["f", "low", "high"], ["f6"])]
    upsample = [] if opset < 11 else [node("Resize", ["q", "regions", "scales"], ["q2"], mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")]
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["a"], pads=[1, 1, 1, 1]), node("LeakyRelu", ["a"], ["ar"], alpha=0.2), node("MaxPool", ["ar"], ["p"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Conv", ["p", "w2"], ["d"]), node("Conv", ["p", "w3"], ["e"], group=channels, pads=[1, 1, 1, 1]), node("Add", ["d", "e"], ["f"]), *clip,
        node("AveragePool", ["f6"], ["g"], kernel_shape=[2, 2], strides=[2, 2], count_include_pad=1), node("Concat", ["g", "g"], ["h"], axis=1), node("Conv", ["h", "w4", "b4"], ["q"], strides=[2, 2], pads=[1, 1, 1, 1]),
        *upsample, node("GlobalAveragePool", [upsample[0].output[0] if upsample else "q"], ["means"]), node("Conv", ["means", "w5"], ["gates"]), node("Sigmoid", ["gates"], ["open"]), node("Mul", ["q", "open"], ["r"]),
        node("Conv", ["r", "w7"], ["s"]), node("Conv", ["s", "w6"], ["t"], pads=[1, 1, 1, 1]), node("GlobalMaxPool", ["t"], ["y"]),
    ]  # fmt: skip
    return model(nodes, [value("x", FLOAT, [1, 3, 16, 16])], [value("y"), value("f6"), value("q")], initializers, opset=opset)


@pytest.mark.parametrize("opset", [9, 10, 11, 17])
@pytest.mark.parametrize("channels", [8, 12, 16, 32])
def test_values_in_blocks_of_channels(channels: int, opset: int, tmp_path: pathlib.Path) -> None:
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)}
    check(blocked_model(channels, opset), feeds, tmp_path, (ALL,))
    assert b"ReorderOutput" in (tmp_path / "model.ort").read_bytes()


def test_groups_of_channels_in_blocks(tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(1)
    weights = [constant("w", (rng.standard_normal((64, 32, 3, 3)) / 8).astype(np.float32)), constant("b", rng.standard_normal(64).astype(np.float32))]
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y"], group=2, pads=[1, 1, 1, 1], dilations=[1, 1])]
    check(model(nodes, [value("x", FLOAT, [2, 64, 6, 5])], [value("y")], weights), {"x": rng.standard_normal((2, 64, 6, 5)).astype(np.float32)}, tmp_path, (ALL,))


@pytest.mark.skipif(SHARED_DATA is None, reason="no models")
@pytest.mark.parametrize("name", ["char_gpt_kv_external", "ml_mixed_strings_wine", "ml_rf_digits", "ml_tfidf_shakespeare", "minilm_l6_int8w", "slanet_plus_loop", "ultraface_rfb320_nms", "smart_turn_v3_qdq", "squeezenet_int8_qoperator"])
def test_real_models(name: str, tmp_path: pathlib.Path) -> None:
    path = SHARED_DATA / "models" / f"{name}.onnx"
    content = ort_bytes(str(path), tmp_path / "model.ort")
    theirs, ours, plain = onnxruntime.InferenceSession(content), treadle.InferenceSession(content), treadle.InferenceSession(path)
    assert [(one.name, one.type) for one in ours.get_inputs()] == [(one.name, one.type) for one in theirs.get_inputs()]
    random, feeds = np.random.default_rng(1), {}
    for one in theirs.get_inputs():
        shape = [extent if isinstance(extent, int) else 1 for extent in one.shape]
        if one.type == "tensor(float)":
            feeds[one.name] = random.standard_normal(shape).astype(np.float32)
        else:
            feeds[one.name] = np.full(shape, "word", object) if one.type == "tensor(string)" else np.ones(shape, np.int64)
    for have, want in zip(ours.run(None, feeds), plain.run(None, feeds), strict=True):
        assert (np.allclose(have, want, rtol=1e-3, atol=1e-3) if isinstance(have, np.ndarray) and have.dtype.kind == "f" else str(have) == str(want))


def test_says_what_the_onnx_file_says(tmp_path: pathlib.Path) -> None:
    given = model([helper.make_node("Add", ["x", "b"], ["y"])], [value("x", FLOAT, ["n", None, 3]), value("b", FLOAT, [3])], [value("y")], [constant("b", X[0])], producer_name="a test",
                  producer_version="2", domain="org.test", doc_string="what it does", model_version=3, doc="the graph")
    helper.set_model_props(given, {"key": "of the model"})
    content = ort_bytes(given, tmp_path / "model.ort")
    told = []
    for library in (treadle, onnxruntime):
        session = library.InferenceSession(content)
        said = session.get_modelmeta()
        told.append([[getattr(said, name) for name in ("producer_name", "graph_name", "graph_description", "domain", "description", "version", "custom_metadata_map")],
                     *([(one.name, one.type, one.shape) for one in of()] for of in (session.get_inputs, session.get_outputs, session.get_overridable_initializers))])
    assert told[0] == told[1]


def test_is_recognised_as_by_onnxruntime(tmp_path: pathlib.Path) -> None:
    given = model([helper.make_node("Neg", ["x"], ["y"])], [value("x", FLOAT, [2, 3])], [value("y")])
    content, plain = ort_bytes(given, tmp_path / "model.ort"), given.SerializeToString()
    for name, data in {"a.ort": content, "b.ORT": content, "c.onnx": plain, "d.ort": plain, "e": content}.items():
        (tmp_path / name).write_bytes(data)

    def outcome(library: object, source: object, form: str | None) -> str:
        options = library.SessionOptions()
        if form is not None:
            options.add_session_config_entry("session.load_model_format", form)
        try:
            return str(library.InferenceSession(source, options).run(None, {"x": X})[0].tolist())
        except Exception as error:  # noqa: BLE001
            return type(error).__name__

    for source, form in [(tmp_path / "a.ort", None), (tmp_path / "b.ORT", None), (tmp_path / "c.onnx", None), (tmp_path / "d.ort", None), (tmp_path / "d.ort", "ONNX"), (tmp_path / "e", "ORT"),
                         (tmp_path / "c.onnx", "ORT"), (content, None), (content, "ORT"), (content, "ONNX"), (plain, "ORT"), (plain, "other"), (content[:-20], None), (content[:20], None)]:
        assert outcome(treadle, source, form) == outcome(onnxruntime, source, form), (source if isinstance(source, pathlib.Path) else len(source), form)


@pytest.mark.parametrize(("version", "loads"), [("1", True), ("4", True), ("5", True), ("6", True), ("7", False)])
def test_versions(version: str, loads: bool, tmp_path: pathlib.Path) -> None:
    content = ort_bytes(model([helper.make_node("Neg", ["x"], ["y"])], [value("x", FLOAT, [2, 3])], [value("y")]), tmp_path / "model.ort")
    place = content.index(b"\x01\0\0\x006\0") + 4
    content = content[:place] + version.encode() + content[place + 1:]
    for library in (treadle, onnxruntime):
        if loads:
            library.InferenceSession(content)
        else:
            with pytest.raises(Exception, match=r"The ORT format model version \[7\] is not supported"):
                library.InferenceSession(content)


def test_becomes_onnx_and_is_not_written(tmp_path: pathlib.Path) -> None:
    given = model([helper.make_node("Neg", ["x"], ["y"])], [value("x", FLOAT, [2, 3])], [value("y")])
    content = ort_bytes(given, tmp_path / "model.ort")
    options = treadle.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    treadle.InferenceSession(content, options)
    assert onnxruntime.InferenceSession(tmp_path / "saved.onnx").run(None, {"x": X})[0].tolist() == (-X).tolist()
    for path, form in (("saved.ort", None), ("other.onnx", "ORT")):
        options = treadle.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / path)
        if form is not None:
            options.add_session_config_entry("session.save_model_format", form)
        with pytest.raises(NotImplemented, match="read, not written"):
            treadle.InferenceSession(given.SerializeToString(), options)
        assert not (tmp_path / path).exists()


def test_what_the_converter_writes(tmp_path: pathlib.Path) -> None:
    random = np.random.default_rng(5)
    w, image = random.standard_normal((4, 3, 3, 3)).astype(np.float32), random.standard_normal((1, 3, 8, 8)).astype(np.float32)
    given = model([helper.make_node("Conv", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])], [value("x", FLOAT, [1, 3, 8, 8])], [value("y")], [constant("w", w)])
    (tmp_path / "model.onnx").write_bytes(given.SerializeToString())
    convert.convert_onnx_models_to_ort(tmp_path, optimization_styles=list(convert.OptimizationStyle))
    written = sorted(path.name for path in tmp_path.glob("*.ort"))
    # The second file contains optimisations that are applied when it is loaded.
    assert written == ["model.ort", "model.with_runtime_opt.ort"]
    for name in written:
        have, want = (library.InferenceSession(tmp_path / name).run(None, {"x": image})[0] for library in (treadle, onnxruntime))
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not LIBRARY.exists(), reason="libonnxruntime.so.1 is not built; set TREADLE_ORT_LIBRARY")
def test_the_c_interface(ours: Api, theirs: Api, tmp_path: pathlib.Path) -> None:
    content = ort_bytes(model([helper.make_node("Neg", ["x"], ["y"])], [value("x", FLOAT, [2, 3])], [value("y")]), tmp_path / "model.ort")
    for name, data in {"cut": content[:100], "empty": b""}.items():
        (tmp_path / f"{name}.ort").write_bytes(data)
    for api in (ours, theirs):
        editor = Part(api, "GetModelEditorApi", EDITOR)
        edited = editor.made("CreateModelEditorSessionFromArray", api.env, content, c_size_t(len(content)), api.options())
        editor.call("FinalizeModelEditorSession", edited, api.options(), c_void_p())
        for session in (api.session(str(tmp_path / "model.ort")), api.session(content), edited):
            assert api.run_arrays(session, {"x": X}, ["y"])[0].tolist() == (-X).tolist()
        for source in (content[:100], str(tmp_path / "cut.ort"), str(tmp_path / "empty.ort")):
            with pytest.raises(StatusError, match="ORT model verification failed") as error:
                api.session(source)
            assert error.value.code == 1

"""Exports the optimised model as ONNX: onnx.checker accepts it, and ONNX Runtime computes the recorded outputs with it."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from test_shared_models import manifest, tolerances

import treadle

import small_models as small
from conftest import SHARED_DATA, need_exact_bytes


def models():
    reason = "no shared/data/manifest.json here; TREADLE_TEST_DATA names its folder"
    found = [pytest.param(model, id=model["name"]) for model in manifest()]
    return found or [pytest.param(None, id="absent", marks=pytest.mark.skip(reason=reason))]


def magnitude_of(reference):
    return float(np.abs(reference.astype(np.float64)).max(initial=0))


def saved_by_a_session(model: str, path: str) -> None:
    options = treadle.SessionOptions()
    options.optimized_model_filepath = path
    treadle.InferenceSession(model, options)


def saved_with_fused_operators(model: str, path: str) -> None:
    treadle.Model.load(model).save(path, optimized=True)


@pytest.mark.parametrize("save", [saved_by_a_session, saved_with_fused_operators])
@pytest.mark.parametrize("model", models())
def test_an_optimised_model_runs_on_onnxruntime(model, save, tmp_path):
    path = str(tmp_path / "optimised.onnx")
    save(str(SHARED_DATA / model["file"]), path)
    onnx.checker.check_model(path, full_check=True)
    written = onnx.load(path)
    if save is saved_by_a_session:
        assert not written.functions
    nodes = [*written.graph.node, *(node for function in written.functions for node in function.node)]
    if any("Integer" in node.op_type or "Quantize" in node.op_type or "QLinear" in node.op_type for node in nodes):
        need_exact_bytes()

    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, quiet, providers=["CPUExecutionProvider"])
    with np.load(SHARED_DATA / model["refs"][0]["file"]) as arrays:
        feeds = {key[3:]: arrays[key] for key in arrays.files if key.startswith("in:")}
        references = {key[4:]: arrays[key] for key in arrays.files if key.startswith("out:")}
    absolute, relative = tolerances(model)
    names = [output.name for output in session.get_outputs()]
    assert set(names) == set(references)
    for name, value in zip(names, session.run(None, feeds), strict=True):
        reference = references[name]
        if reference.dtype.kind == "f":
            allowed = absolute * max(1, magnitude_of(reference)) + relative * magnitude_of(reference)
            np.testing.assert_allclose(value.astype(np.float64), reference.astype(np.float64), rtol=0, atol=allowed, err_msg=name)
        elif "at most 1 level" in model["tolerance"]:
            assert np.abs(value.astype(np.int64) - reference.astype(np.int64)).max(initial=0) <= 1, name
        else:
            np.testing.assert_array_equal(value, reference, err_msg=name)


@pytest.mark.parametrize("level", ["ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"])
def test_a_saved_model_stays_quantised(level, tmp_path):
    weights = numpy_helper.from_array(np.arange(-6, 6, dtype=np.int8).reshape(3, 4), "w")
    scale = numpy_helper.from_array(np.float32(0.25), "scale")
    nodes = [small.node("DequantizeLinear", ["w", "scale"], ["dequantised"]), small.node("MatMul", ["x", "dequantised"], ["y"])]
    options = treadle.SessionOptions()
    options.graph_optimization_level = getattr(treadle.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    treadle.InferenceSession(small.model(nodes, [small.tensor("x", [2, 3])], [small.tensor("y", [2, 4])], [weights, scale]), options)
    saved = onnx.load(options.optimized_model_filepath).graph
    assert [node.op_type for node in saved.node] == ["DequantizeLinear", "MatMul"]
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in saved.initializer}
    np.testing.assert_array_equal(stored["w"], numpy_helper.to_array(weights))

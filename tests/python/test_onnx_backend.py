"""Runs ONNX's own backend tests (onnx.backend.test) through treadle.backend: node, simple, light, PyTorch models and PyTorch operators."""

import os
import tempfile

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
# The folder to which onnx.backend.test copies its light models.
os.environ.setdefault("ONNX_MODELS", tempfile.mkdtemp(prefix="onnx-models-"))

import onnx.backend.test  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402

import treadle  # noqa: E402
import treadle.backend as backend  # noqa: E402

# Patterns of cases that do not pass, each with the reason.
NOT_PASSED = {
    r"^test_bernoulli(_double|_seed)?(_expanded)?_cpu$": "the values are those of NumPy's generator",
    r"^test_training_dropout(_default)?(_mask)?_cpu$": "the values are those of NumPy's generator",
    r"^test_image_decoder_decode_\w+_cpu$": "the wheel has no codecs; treadle_conformance runs these",
    r"^test_loop16_seq_none_cpu$": "the case's optional sequence reaches the backend as an array without a length",
    r"^test_gradient_of_\w+_cpu$": "there is no Gradient operator: treadle.train makes gradients",
    r"^test_maxunpool_export_with_output_shape_cpu$": "its indices count in another shape than output_shape, which is none that a MaxPool gives",
    "_cuda$": "there is no CUDA device",
}
# Cases with wider tolerances than ONNX's 1e-3 and 1e-7. They have sums of hundreds of terms that should be 0, or half precision that is
# rounded at each step.
TOLERANCES = {
    **{f"test_dft{name}": {"atol": 1e-5} for name in ("", "_axis", "_axis_opset19", "_opset19", "_rfft", "_rfft_opset19")},
    "test_attention_4d_causal_fp16_expanded": {"rtol": 2e-3},
}


class Backend(backend.TreadleBackend):
    """A backend whose `prepare` accepts a case's tolerances, which the runner passes to it as well."""

    @classmethod
    def prepare(cls, model, device="CPU", **kwargs):
        return super().prepare(model, device, **{k: v for k, v in kwargs.items() if k not in ("rtol", "atol")})


_tests = onnx.backend.test.BackendTest(Backend, __name__, TOLERANCES)
for _pattern in NOT_PASSED:
    _tests.exclude(_pattern)
globals().update(_tests.test_cases)


def relu():
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"]) for name in "xy")
    return helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y]))


def test_run_model_takes_values_in_order_by_name_or_one_alone():
    x = np.float32([-1, 2])
    for inputs in ([x], {"x": x}, x):
        outputs = backend.run_model(relu(), inputs)
        np.testing.assert_array_equal(outputs[0], [0, 2])
        np.testing.assert_array_equal(outputs["y"], [0, 2])


def test_prepare_takes_options_of_a_session():
    prepared = backend.prepare(relu(), "CPU:0", intra_op_num_threads=1)
    assert prepared.session.get_session_options().intra_op_num_threads == 1
    np.testing.assert_array_equal(prepared.run([np.float32([-3])]).y, [0])
    with pytest.raises(TypeError, match="no option 'intra_threads'"):
        backend.prepare(relu(), intra_threads=1)
    with pytest.raises(ValueError, match="2 values are given"):
        prepared.run([np.float32([1]), np.float32([2])])


def test_run_node_knows_opsets_domains_and_inputs_left_out():
    node = helper.make_node("Clip", ["x", "", "high"], ["y"])
    np.testing.assert_array_equal(backend.run_node(node, [np.float32([1, 5]), np.float32(2)])[0], [1, 2])
    softmax = helper.make_node("Softmax", ["x"], ["y"])
    x = np.zeros((1, 2, 2), np.float32)
    np.testing.assert_allclose(backend.run_node(softmax, [x], opset_version=11)[0], np.full((1, 2, 2), 0.25))
    np.testing.assert_allclose(backend.run_node(softmax, {"x": x}, opset_version=13)[0], np.full((1, 2, 2), 0.5))
    scaler = helper.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[1.0], scale=[2.0])
    np.testing.assert_array_equal(backend.run_node(scaler, [np.float32([[3]])])[0], [[4]])


def test_devices_and_compatibility():
    assert backend.supports_device("CPU") and not backend.supports_device("CUDA") and not backend.supports_device("CPU:1")
    with pytest.raises(ValueError, match="no device 'CUDA'"):
        backend.prepare(relu(), "CUDA")
    assert backend.is_compatible(relu())
    model = relu()
    model.graph.node[0].op_type = "NoSuchOperator"
    assert not backend.is_compatible(model)
    with pytest.raises(treadle.Error, match="NoSuchOperator"):
        backend.prepare(model)

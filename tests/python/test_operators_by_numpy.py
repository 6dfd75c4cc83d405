"""Operators of ONNX in forms that few models use, by NumPy and by ONNX Runtime, with extents, symbols or nothing declared."""

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import treadle  # noqa: E402
from contrib import compare, model, run  # noqa: E402

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("alpha", [-0.5, -2.0, 0.5, 3.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_celu_takes_a_negative_alpha(alpha, dtype):
    """NumPy alone: onnxruntime has the operator for float32."""
    x = np.linspace(-4, 4, 41).astype(dtype)
    wide = x.astype(np.float64)
    expected = np.maximum(wide, 0) + np.minimum(0, alpha * np.expm1(wide / np.float32(alpha)))
    for static in (True, None):
        actual = run(model("Celu", {"x": x}, 1, {"alpha": alpha}, static=static, domain="", opset=28 if dtype == np.float64 else 12), {"x": x})[0]
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-7)

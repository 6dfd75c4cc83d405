"""Every model of the shared collection against its recorded outputs.

The folder (with manifest.json) is $TREADLE_TEST_DATA, or shared/data beside or above the repository; without it the tests are skipped.
"""

import functools
import json
import re

import numpy as np
import pytest
from conftest import SHARED_DATA

import treadle

# float32: of the largest magnitude of an output.
FLOAT32_TOLERANCE = 1e-4
# … or this many times what ONNX Runtime's own float32 differs from a run in float64.
ORT_ERROR_FACTOR = 3


def manifest():
    return json.loads((SHARED_DATA / "manifest.json").read_text())["models"] if SHARED_DATA else []


def cases():
    found = [pytest.param(model, ref, id=f"{model['name']}-{i}") for model in manifest() for i, ref in enumerate(model["refs"])]
    reason = "no shared/data/manifest.json here; TREADLE_TEST_DATA names its folder"
    return found or [pytest.param(None, None, id="absent", marks=pytest.mark.skip(reason=reason))]


def tolerances(model):
    """Absolute and relative (to the largest magnitude), from the manifest's words."""
    words = model["tolerance"]
    number = r"([0-9.]+(?:e-?[0-9]+)?)"
    absolute, relative = re.search("atol " + number, words), re.search("rtol " + number, words)
    if "at most 1 level" in words:
        return 1.0, 0.0
    return (float(absolute[1]) if absolute else 1e-4), (float(relative[1]) if relative else (0.0 if absolute else 1e-3))


@functools.lru_cache(maxsize=1)
def session_of(path):
    return treadle.InferenceSession(path)


def double_precision_error(model, feeds, references):
    """How far ONNX Runtime's float32 outputs are from the same model's in float64, by output; None where it cannot be told."""
    import onnx
    import onnxruntime
    from double_precision import to_double

    try:
        double = to_double(onnx.load(SHARED_DATA / model["file"])).SerializeToString()
        session = onnxruntime.InferenceSession(double, providers=["CPUExecutionProvider"])
        widened = {name: x.astype(np.float64) if x.dtype == np.float32 else x for name, x in feeds.items()}
        exact = session.run(None, widened)
    except Exception:  # noqa: BLE001 - not every model has a double in ONNX Runtime
        return None
    names = [output.name for output in session.get_outputs()]
    return {name: largest_difference(references[name], value) for name, value in zip(names, exact, strict=True)}, dict(
        zip(names, exact, strict=True)
    )


def largest_difference(a, b):
    finite = np.isfinite(b)
    return float(np.abs(a[finite].astype(np.float64) - b[finite]).max(initial=0))


def check_float(name, ours, reference, model, feeds, references):
    assert ours.shape == reference.shape, name
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(reference), err_msg=name)
    np.testing.assert_array_equal(ours[np.isinf(reference)], reference[np.isinf(reference)], err_msg=name)
    magnitude = float(np.abs(reference[np.isfinite(reference)]).astype(np.float64).max(initial=0))
    difference = largest_difference(ours, reference)
    absolute, relative = tolerances(model)
    assert difference <= absolute + relative * magnitude, f"{name}: {difference:g} of {magnitude:g}"
    quantised = any(op in model["ops"] for op in ("QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv"))
    if reference.dtype != np.float32 or quantised or difference <= FLOAT32_TOLERANCE * magnitude:
        return
    known = double_precision_error(model, feeds, references)
    assert known is not None, f"{name}: {difference:g} of {magnitude:g}, and there is no float64 to compare with"
    error, exact = known[0][name], known[1][name]
    assert largest_difference(ours, exact) <= max(ORT_ERROR_FACTOR * error, FLOAT32_TOLERANCE * magnitude), (
        f"{name}: {difference:g} of {magnitude:g}; from float64: ours {largest_difference(ours, exact):g}, ONNX Runtime's {error:g}"
    )


@pytest.mark.parametrize(("model", "ref"), cases())
def test_outputs_are_those_recorded(model, ref):
    with np.load(SHARED_DATA / ref["file"]) as arrays:
        feeds = {key[3:]: arrays[key] for key in arrays.files if key.startswith("in:")}
        references = {key[4:]: arrays[key] for key in arrays.files if key.startswith("out:")}
    session = session_of(str(SHARED_DATA / model["file"]))
    names = [output.name for output in session.get_outputs()]
    assert set(references) == set(names)
    for name, ours in zip(names, session.run(None, feeds), strict=True):
        reference = references[name]
        if reference.dtype.kind == "f":
            assert ours.dtype == reference.dtype, name
            check_float(name, ours, reference, model, feeds, references)
        elif "at most 1 level" in model["tolerance"]:
            assert ours.dtype == reference.dtype, name
            assert np.abs(ours.astype(np.int64) - reference.astype(np.int64)).max(initial=0) <= 1, name
        else:
            np.testing.assert_array_equal(ours, reference, err_msg=name)  # labels, indices, strings

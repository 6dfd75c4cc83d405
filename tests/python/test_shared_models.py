"""Compares every model of the shared collection with its recorded outputs.

The folder (with manifest.json) is $TREADLE_TEST_DATA, or shared/data in or above the repository; without it these tests are skipped.
"""

import functools
import json
import re

import numpy as np
import pytest

import treadle

from conftest import SHARED_DATA

# Allowed error of float32, relative to the largest magnitude of an output.
FLOAT32_TOLERANCE = 1e-4
# An error is also allowed up to this multiple of the error that ONNX Runtime's float32 has against a run in float64.
ORT_ERROR_FACTOR = 3


def manifest():
    return json.loads((SHARED_DATA / "manifest.json").read_text())["models"] if SHARED_DATA else []


def cases():
    found = [pytest.param(model, ref, id=f"{model['name']}-{i}") for model in manifest() for i, ref in enumerate(model["refs"])]
    reason = "no shared/data/manifest.json here; TREADLE_TEST_DATA names its folder"
    return found or [pytest.param(None, None, id="absent", marks=pytest.mark.skip(reason=reason))]


def tolerances(model):
    """Reads tolerances from the manifest's text: an absolute one for magnitudes up to 1 (proportional above), and one relative to the largest
    magnitude."""
    words = model["tolerance"]
    number = r"([0-9.]+(?:e-?[0-9]+)?)"
    absolute, relative = re.search("atol " + number, words), re.search("rtol " + number, words)
    if "at most 1 level" in words:
        return 1.0, 0.0
    return (float(absolute[1]) if absolute else 1e-4), (float(relative[1]) if relative else (0.0 if absolute else 1e-3))


@functools.lru_cache(maxsize=1)
def session_of(path):
    return treadle.InferenceSession(path)


@functools.lru_cache(maxsize=1)
def exact_outputs(path, ref):
    """Returns the model's outputs in float64, computed by the onnx package's reference implementation."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    from double_precision import to_double

    evaluator = ReferenceEvaluator(to_double(onnx.load(path)))
    with np.load(SHARED_DATA / ref) as arrays:
        feeds = {key[3:]: arrays[key] for key in arrays.files if key.startswith("in:")}
    widened = {name: x.astype(np.float64) if x.dtype == np.float32 else x for name, x in feeds.items()}
    return dict(zip(evaluator.output_names, evaluator.run(None, widened), strict=True))


def largest_difference(a, b):
    finite = np.isfinite(b)
    return float(np.abs(a[finite].astype(np.float64) - b[finite]).max(initial=0))


def check_float(name, ours, reference, model, ref):
    assert ours.shape == reference.shape, name
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(reference), err_msg=name)
    np.testing.assert_array_equal(ours[np.isinf(reference)], reference[np.isinf(reference)], err_msg=name)
    magnitude = float(np.abs(reference[np.isfinite(reference)]).astype(np.float64).max(initial=0))
    difference = largest_difference(ours, reference)
    absolute, relative = tolerances(model)
    assert difference <= absolute * max(1, magnitude) + relative * magnitude, f"{name}: {difference:g} of {magnitude:g}"
    quantised = any(op in model["ops"] for op in ("QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv"))
    if reference.dtype != np.float32 or quantised or difference <= FLOAT32_TOLERANCE * magnitude:
        return
    exact = exact_outputs(str(SHARED_DATA / model["file"]), ref["file"])[name]
    error, theirs = largest_difference(ours, exact), largest_difference(reference, exact)
    assert error <= ORT_ERROR_FACTOR * theirs, (
        f"{name}: {difference:g} of {magnitude:g}; from float64: ours {error:g}, ONNX Runtime's {theirs:g}"
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
            check_float(name, ours, reference, model, ref)
        elif "at most 1 level" in model["tolerance"]:
            assert ours.dtype == reference.dtype, name
            assert np.abs(ours.astype(np.int64) - reference.astype(np.int64)).max(initial=0) <= 1, name
        else:
            np.testing.assert_array_equal(ours, reference, err_msg=name)  # labels, indices and strings must be equal

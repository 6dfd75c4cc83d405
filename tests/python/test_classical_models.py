"""Compares every convertible classical model with the library that trained it, for 1 and 10,000 rows."""

import warnings

import pytest

pytest.importorskip("skl2onnx")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import classical_models

    MODELS = classical_models.models()

NEEDS = {"lightgbm": ["lightgbm", "onnxmltools"], "xgboost": ["xgboost", "onnxmltools"], "catboost": ["catboost"]}


def test_at_least_95_estimators_of_scikit_learn_are_tried():
    names = {type(model.make()).__name__ for name, model in MODELS.items() if "." not in name and not name.startswith("Pipeline")}
    assert len(names) >= 95


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_model_agrees_with_its_library(name):
    for package in NEEDS.get(name.split(".")[0], []):
        pytest.importorskip(package)
    assert classical_models.check(name, MODELS[name], (1, classical_models.MOST_ROWS)) == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(5))
def test_probabilities_of_a_nu_svc_are_as_exact_as_onnxruntimes(ort, seed):
    """The coefficients nearly cancel. Sums in single precision would have ten times the error."""
    import numpy as np
    from skl2onnx import to_onnx
    from sklearn import datasets, svm

    import treadle

    x, labels = datasets.make_classification(200, 8, n_informative=5, n_classes=3, random_state=seed)
    x = x.astype(np.float32)
    model = svm.NuSVC(probability=True, nu=0.2, random_state=seed).fit(x, labels)
    made = to_onnx(model, x[:1], options={id(model): {"zipmap": False}}).SerializeToString()
    wanted = model.predict_proba(x.astype(np.float64))
    sessions = [treadle.InferenceSession(made), ort.InferenceSession(made, providers=["CPUExecutionProvider"])]
    errors = [np.abs(session.run(None, {"X": x})[1] - wanted).max() for session in sessions]
    assert errors[0] < max(2 * errors[1], 1e-6)

"""Every classical model that can be converted, at 1 and 10,000 rows, against the library that trained it."""

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
